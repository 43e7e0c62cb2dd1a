"""What a model file says about itself beside its tensors, read from its bytes outside of these."""

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
"""Bytes in which Keras has its first member, ``metadata.json``."""


class FileFacts(NamedTuple):
    """Metadata by name; by key how tensors are quantised, such as ``Q4_K``."""

    metadata: Mapping[str, Setting]
    types: Mapping[str, str]


def file_facts(file: PlacedFile, skeleton: Callable[[], bytes]) -> FileFacts:
    """None for a format without metadata, and for a skeleton that is not of the format."""
    try:
        if file.format == "safetensors":
            return FileFacts(safetensors_header(skeleton(), file.path).get("__metadata__", {}), {})
        if file.format == "gguf":
            settings, tensors = read_gguf(FileCursor(MemorySource(skeleton())))
            return FileFacts(settings, {t.key: t.type for t in tensors if t.type not in CODES})
        if file.format == "onnx":
            return FileFacts(facts_of(FileCursor(MemorySource(skeleton()))), {})
        if file.format == "keras":
            found = _KERAS.findall(skeleton()[:_KERAS_HEAD])
            return FileFacts({name.decode(): value.decode() for name, value in found}, {})
    except (BadModelFile, LookupError, struct.error):
        pass  # a stranger may have recorded any skeleton
    return FileFacts({}, {})
