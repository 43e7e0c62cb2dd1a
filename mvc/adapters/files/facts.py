"""Reads the metadata of model files, such as the ``__metadata__`` of a safetensors file."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.gguf import Setting, read_gguf
from mvc.adapters.files.onnx import facts_of
from mvc.adapters.files.safetensors import CODES, safetensors_header
from mvc.adapters.parsed import MemorySource, PlacedFile
from mvc.errors import BadModelFile

_KERAS = re.compile(rb'"(keras_version|date_saved)": "([ -~]{1,50}?)"')
_KERAS_HEAD = 512
"""A .keras file begins with its ``metadata.json``, which ends before this byte."""


class FileFacts(NamedTuple):
    """``metadata``: maps names to values. ``types``: maps the key of each quantized tensor to a
    type, for example ``Q4_K``.
    """

    metadata: Mapping[str, Setting]
    types: Mapping[str, str]


def file_facts(file: PlacedFile, skeleton: Callable[[], bytes]) -> FileFacts:
    """Reads the metadata from the file's *skeleton*, the bytes outside its tensors.

    The function ``skeleton`` returns these bytes. The result is empty if the format has no
    metadata, or if the skeleton is invalid.
    """
    try:
        if file.format == "safetensors":
            return FileFacts(safetensors_header(skeleton(), file.path).get("__metadata__", {}), {})
        if file.format == "gguf":
            settings, tensors = read_gguf(FileCursor(MemorySource(skeleton())))
            return FileFacts(settings, {t.key: t.type for t in tensors if t.type not in CODES})
        if file.format == "onnx":
            return FileFacts(facts_of(FileCursor(MemorySource(skeleton()))), {})
        if file.format == "keras":
            matches = _KERAS.findall(skeleton()[:_KERAS_HEAD])
            return FileFacts({name.decode(): value.decode() for name, value in matches}, {})
    except (BadModelFile, LookupError, struct.error):
        pass
    return FileFacts({}, {})
