"""Parses safetensors files, and writes their headers.

A file has the length of its header in 8 bytes, a JSON header, and contiguous tensors. The header
must name each tensor only once (the reference reader accepts duplicate names), and the tensors must
fill the rest of the file without gaps. Format:
https://github.com/huggingface/safetensors ("Format").
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.errors import BadModelFile, DamagedData
from mvc.limits import MAX_SAFETENSORS_HEADER, MAX_TENSORS
from mvc.model.tensor import TensorSpec, shared_spec
from mvc.structure import decode

CODES = {
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
    # mvc's own names for dtypes without a name in the format. Other readers reject such files.
    "C32": "complex32", "C128": "complex128",
}  # fmt: skip
"""Maps dtype names in the header to names in ``mvc.model.tensor``."""

NAMES = {name: code for code, name in CODES.items()}

LENGTH_BYTES = 8
_ALIGNMENT = 64
_PACKED = "float4_e2m1fn_x2"


def parse_safetensors(source: Source, name: str) -> FileParts:
    """The tensors of a file. Raises BadModelFile unless the whole file is one safetensors file."""
    rest = source.size() - LENGTH_BYTES
    length = int.from_bytes(source.read(0, LENGTH_BYTES), "little")
    if not 2 <= length <= min(rest, MAX_SAFETENSORS_HEADER):
        raise BadModelFile(f"{name}: its header is longer than the file or than the limit")
    entries = parse_header(source.read(LENGTH_BYTES, length), name)
    structure = entries.pop("__metadata__", {}).get("mvc")
    contents, tensors = _layout(name, entries, LENGTH_BYTES + length, rest - length)
    is_state = structure is not None and _describes(structure, entries)
    return FileParts("state" if is_state else "safetensors", contents, tensors)


def _describes(structure: str, entries: dict[str, Any]) -> bool:
    """Whether ``structure`` (the nesting of a Python state) names exactly the tensors of a file."""
    names: list[str] = []
    try:
        decode(structure, lambda _tag, name: names.append(name))
    except DamagedData:
        return False
    return len(names) == len(entries) and set(names) == entries.keys()


def safetensors_header(skeleton: bytes, name: str) -> dict[str, Any]:
    """The header. ``skeleton``: the bytes of a file without the tensors. Raises BadModelFile."""
    return parse_header(skeleton[LENGTH_BYTES:], name)


def parse_header(header: bytes, name: str) -> dict[str, Any]:
    """The header as a dictionary in file order.

    ``__metadata__`` maps str to str, or is absent. Raises BadModelFile for duplicate keys, NaN,
    invalid UTF-8, and anything but a JSON object that starts at the first byte.
    """
    if not header.startswith(b"{"):
        raise BadModelFile(f"{name}: its header does not start with '{{'")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) != len(pairs):
            raise BadModelFile(f"{name}: its header has a duplicate key")
        return unique

    def constant(text: str) -> NoReturn:
        raise BadModelFile(f"{name}: its header contains {text}")

    try:
        entries: dict[str, Any] = json.loads(
            header.decode("utf-8"), object_pairs_hook=once, parse_constant=constant
        )
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name}: its header is not valid JSON") from error
    if entries.get("__metadata__", {}) is None:
        del entries["__metadata__"]
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise BadModelFile(f"{name}: __metadata__ must map strings to strings")
    return entries


def _layout(
    name: str, entries: dict[str, Any], start: int, length: int
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    if len(entries) > MAX_TENSORS:
        raise BadModelFile(f"{name}: it has more than {MAX_TENSORS} tensors")
    placed = [(*_entry(name, key, value), key) for key, value in entries.items()]
    placed.sort(key=lambda row: row[:2])
    end = 0
    for begin, stop, spec, key in placed:
        if begin != end or stop - begin != spec.nbytes:
            raise BadModelFile(f"{name}: {key} does not start at the end of the previous tensor")
        end = stop
    if end != length:
        raise BadModelFile(f"{name}: the tensors do not end where the file ends")
    contents = tuple(ParsedContent(start + begin, spec) for begin, _, spec, _ in placed)
    return contents, tuple(ParsedTensor(key, spec, i) for i, (_, _, spec, key) in enumerate(placed))


def _entry(name: str, key: str, value: Any) -> tuple[int, int, TensorSpec]:
    """Start, end and spec of a tensor. Ignores unknown fields, as other readers do."""
    if not isinstance(value, dict) or not value.keys() >= {"dtype", "shape", "data_offsets"}:
        raise BadModelFile(f"{name}: the header's entry for {key} is malformed")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in CODES:
        raise BadModelFile(f"{name}: {key} has an unknown dtype")
    if not naturals(shape) or not naturals(offsets) or len(offsets) != 2:
        raise BadModelFile(f"{name}: shape or offsets of {key} are malformed")
    if CODES[code] == _PACKED:  # the header counts numbers of 4 bits, two per byte
        if not shape or shape[-1] % 2:
            raise BadModelFile("a tensor of 4-bit numbers does not fill whole bytes")
        shape = [*shape[:-1], shape[-1] // 2]
    return offsets[0], offsets[1], shared_spec(CODES[code], tuple(shape))


def naturals(values: Any) -> bool:
    """Whether ``values`` is a list of non-negative integers of at most 63 bits."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def header_entry(spec: TensorSpec, start: int) -> dict[str, Any]:
    """The header's entry for a tensor at ``start``.

    ``start`` is relative to the end of the header.
    """
    shape = list(spec.shape)
    if spec.dtype == _PACKED and shape:
        shape[-1] *= 2
    offsets = [start, start + spec.nbytes]
    return {"dtype": NAMES[spec.dtype], "shape": shape, "data_offsets": offsets}


def header_bytes(text: str) -> bytes:
    """Length and header, padded with spaces so that the tensors after the header are aligned."""
    header = text.encode()
    header += b" " * (-(len(header) + LENGTH_BYTES) % _ALIGNMENT)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header
