"""Parses GGUF files, the model files of llama.cpp.

A GGUF file has settings, the names and positions of tensors, and the data of the tensors. A
quantized tensor is stored in blocks of a fixed number of bytes. mvc reads it as a tensor of bytes:
its last dimension is the number of bytes of a row.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.safetensors import CODES
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.errors import BadModelFile, DamagedData
from mvc.limits import MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS
from mvc.model.tensor import TensorSpec, shared_spec

GGUF = b"GGUF"
_ALIGNMENT = "general.alignment"
_MAX_SETTINGS = 1 << 16
_MAX_TEXT = 1000  # bytes; a longer text of a setting is truncated
_NUMBERS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"),
    4: ("uint32", "I"), 5: ("int32", "i"), 6: ("float32", "f"), 7: ("bool", "?"),
    10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
"""Maps codes of numeric types of settings to their names and their formats in ``struct``."""
_TEXT, _ARRAY = 8, 9
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Maps codes of tensor types (ggml_type) to name, numbers per block, and bytes per block."""

Setting = str | int | float


class GgufTensor(NamedTuple):
    """A tensor of the header. ``type``: ggml's name of its type.

    ``offset``: number of bytes from the start of the tensor data.
    """

    key: str
    type: str
    spec: TensorSpec
    offset: int


class GgufHeader(NamedTuple):
    """The settings and tensors that the header lists.

    ``settings``: maps names to values. A long text is truncated. An array is replaced by a text
    with its type and length.
    """

    settings: dict[str, Setting]
    tensors: list[GgufTensor]


def parse_gguf(source: Source, name: str) -> FileParts:
    """The tensors of a file and their positions. Raises BadModelFile."""
    file = FileCursor(source)
    try:
        tensors = read_gguf(file).tensors
    except (LookupError, struct.error) as error:
        raise BadModelFile(f"{name}: {error}") from error
    if file.order == "big":
        raise BadModelFile(f"{name}: its numbers are big-endian")
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.spec.nbytes))
    return FileParts(
        "gguf",
        tuple(ParsedContent(file.at + tensor.offset, tensor.spec) for tensor in tensors),
        tuple(ParsedTensor(tensor.key, tensor.spec, i) for i, tensor in enumerate(tensors)),
    )


def read_gguf(file: FileCursor) -> GgufHeader:
    """Reads the header, which ends where the tensor data begins.

    Raises BadModelFile for a truncated file, and LookupError with the reason for unsupported
    content.
    """
    file.skip(len(GGUF))
    version = file.number(4)
    if version >> 16:
        file.order, version = "big", version >> 24
    if version not in {2, 3}:
        raise LookupError(f"its GGUF version is {version}; mvc reads 2 and 3")
    count, pairs = file.number(8), file.number(8)
    if count > MAX_TENSORS or pairs > _MAX_SETTINGS:
        raise LookupError(f"it has {count:,} tensors and {pairs:,} settings")
    settings = dict(_settings(file, pairs))
    alignment = settings.get(_ALIGNMENT, 32)
    if len(settings) != pairs or type(alignment) is not int or alignment < 1:
        raise LookupError("it has a setting twice, or an invalid alignment")
    tensors = [_tensor(file) for _ in range(count)]
    if tensors:
        file.skip(-file.at % alignment)
    return GgufHeader(settings, tensors)


def _settings(file: FileCursor, pairs: int) -> Iterator[tuple[str, Setting]]:
    return ((_text(file, _MAX_TEXT), _setting(file, file.number(4))) for _ in range(pairs))


def _setting(file: FileCursor, kind: int) -> Setting:
    if kind == _TEXT:
        return _text(file, _MAX_TEXT)
    if kind != _ARRAY:
        code = ("<" if file.order == "little" else ">") + _number(kind)[1]
        value: Setting = struct.unpack(code, file.read(struct.calcsize(code)))[0]
        return value
    kind, count = file.number(4), file.number(8)
    if kind == _TEXT:
        for _ in range(count):
            file.skip(file.number(8))
        return f"string[{count}]"
    name, code = _number(kind)
    file.skip(count * struct.calcsize(f"<{code}"))
    return f"{name}[{count}]"


def _number(kind: int) -> tuple[str, str]:
    if kind not in _NUMBERS:
        raise LookupError(f"a setting has the unknown type {kind}")
    return _NUMBERS[kind]


def _text(file: FileCursor, most: int) -> str:
    length = file.number(8)
    start = file.read(min(length, most))
    file.skip(max(0, length - most))
    return start.decode("utf-8", "surrogateescape")


def _tensor(file: FileCursor) -> GgufTensor:
    key, dimensions = _text(file, MAX_NAME_BYTES + 1), file.number(4)
    if dimensions > MAX_DIMENSIONS:
        raise LookupError(f"a tensor has {dimensions:,} dimensions")
    shape = [file.number(8) for _ in range(dimensions)][::-1]  # GGUF lists row length first
    kind, offset = file.number(4), file.number(8)
    if kind not in TYPES:
        raise LookupError(f"a tensor has the unknown type {kind}")
    name, numbers, nbytes = TYPES[kind]
    if numbers > 1:
        if not shape or shape[-1] % numbers:
            raise LookupError(f"the rows of a tensor are not whole blocks of {name}")
        shape[-1] = shape[-1] // numbers * nbytes
    try:
        spec = shared_spec(CODES.get(name, "uint8"), tuple(shape))
    except DamagedData as error:
        raise LookupError(error.message) from error
    return GgufTensor(key, name, spec, offset)
