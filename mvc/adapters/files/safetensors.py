"""safetensors files: an 8-byte header length, a JSON header, tensors without holes.

Stricter than the reference reader, which takes duplicate names: the header must
name each tensor once, and the tensors must tile the rest of the file exactly.
Format: https://github.com/huggingface/safetensors ("Format").
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.adapters.structure import decode
from mvc.errors import BadModelFile, DamagedData
from mvc.limits import MAX_SAFETENSORS_HEADER, MAX_TENSORS
from mvc.model.tensor import TensorSpec, shared_spec

__all__ = [
    "CODES",
    "NAMES",
    "from_file_shape",
    "parse_header",
    "parse_safetensors",
    "to_file_shape",
]

CODES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    # Not part of the format: mvc writes these where it has no name for a dtype,
    # and no other reader takes such a file.
    "C32": "complex32",
    "C128": "complex128",
}
"""dtype names in the header -> names in ``mvc.model.tensor``."""

NAMES = {name: code for code, name in CODES.items()}
"""The other way round."""

_PACKED = "float4_e2m1fn_x2"
_LENGTH_BYTES = 8


def parse_safetensors(source: Source, name: str) -> FileParts:
    """Raises BadModelFile unless the file is one safetensors file and nothing else."""
    size = source.size()
    length = int.from_bytes(source.read(0, _LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES or not 2 <= length <= min(size - _LENGTH_BYTES, MAX_SAFETENSORS_HEADER):
        raise BadModelFile(f"{name}: its header is longer than the file or than the limit")
    header = source.read(_LENGTH_BYTES, length)
    entries = parse_header(header, name)
    structure = entries.pop("__metadata__", {}).get("mvc")
    start = _LENGTH_BYTES + length
    contents, tensors = _layout(name, entries, start, size - start)
    is_state = structure is not None and _describes(structure, entries)
    return FileParts("state" if is_state else "safetensors", contents, tensors)


def _describes(structure: str, entries: dict[str, Any]) -> bool:
    """Whether a state's structure names exactly the tensors of the file that it came in.

    So a state that was written to a file is the same state when it is read from there.
    """
    names: list[str] = []
    try:
        decode(structure, lambda _tag, name: names.append(name))
    except DamagedData:
        return False
    return len(names) == len(entries) and set(names) == entries.keys()


def parse_header(header: bytes, name: str) -> dict[str, Any]:
    """The header as a dictionary in file order; ``__metadata__`` maps str to str.

    Raises BadModelFile for duplicate keys, NaN, invalid UTF-8 and anything that
    is not a JSON object that starts at the first byte.
    """
    if not header.startswith(b"{"):
        raise BadModelFile(f"{name}: its header does not start with '{{'")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadModelFile(f"{name}: its header names something twice")
        return found

    def constant(text: str) -> NoReturn:
        raise BadModelFile(f"{name}: its header holds {text}")

    try:
        entries = json.loads(
            header.decode("utf-8"), object_pairs_hook=once, parse_constant=constant
        )
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name}: its header is not valid JSON") from error
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise BadModelFile(f"{name}: its metadata is not a map of texts")
    return entries  # type: ignore[no-any-return]


def _layout(
    name: str, entries: dict[str, Any], start: int, length: int
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    if len(entries) > MAX_TENSORS:
        raise BadModelFile(f"{name}: it has more than {MAX_TENSORS} tensors")
    placed = [(*_entry(name, key, value), key) for key, value in entries.items()]
    placed.sort(key=lambda row: row[:2])
    contents, tensors = [], []
    end = 0
    for at, (begin, stop, spec, key) in enumerate(placed):
        if begin != end or stop - begin != spec.nbytes:
            raise BadModelFile(f"{name}: {key} does not follow the tensor before it")
        end = stop
        contents.append(ParsedContent(start + begin, spec))
        tensors.append(ParsedTensor(key, spec, at))
    if end != length:
        raise BadModelFile(f"{name}: its tensors do not fill it to the end")
    return tuple(contents), tuple(tensors)


def _entry(name: str, key: str, value: Any) -> tuple[int, int, TensorSpec]:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadModelFile(f"{name}: the header's entry for {key} is malformed")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in CODES:
        raise BadModelFile(f"{name}: {key} has an unknown dtype")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise BadModelFile(f"{name}: shape or offsets of {key} are malformed")
    return offsets[0], offsets[1], shared_spec(CODES[code], from_file_shape(CODES[code], shape))


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def from_file_shape(dtype: str, shape: list[int]) -> tuple[int, ...]:
    """The tensor's shape for the shape in the header: F4 counts its 4-bit halves."""
    if dtype != _PACKED:
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise BadModelFile("a tensor of 4-bit numbers does not fill whole bytes")
    return (*shape[:-1], shape[-1] // 2)


def to_file_shape(spec: TensorSpec) -> list[int]:
    """The shape in the header for a tensor's shape."""
    if spec.dtype != _PACKED or not spec.shape:
        return list(spec.shape)
    return [*spec.shape[:-1], spec.shape[-1] * 2]
