"""ONNX graphs: where the bytes of their tensors lie, in the file or in files beside it.

An ONNX file is a message of protocol buffers, which is read by the lengths of its fields. Numbers
that are coded one by one (varints) and the constants of small nodes stay other bytes.
Format: https://github.com/onnx/onnx (onnx.proto).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.errors import BadModelFile, DamagedData
from mvc.limits import MAX_NAME_BYTES
from mvc.model.tensor import TensorSpec, shared_spec

ONNX = b"\x08"
"""The field ``ir_version``, which begins every file."""

_DEEPEST = 500
_SIZES = {0: 0, 1: 8, 5: 4}
# By the kind of a message: its fields that are needed, by number, which is negative for a varint.
_FIELDS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {2: "name", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {
        -1: "length", 1: "lengths", -2: "dtype",
        4: "data", 8: "name", 9: "data", 10: "data", 13: "place",
    },
    "place": {1: "key", 2: "value"},
}  # fmt: skip
_FACTS = {
    1: "ir_version",
    2: "producer_name",
    3: "producer_version",
    4: "domain",
    5: "model_version",
}
# A node of at most so many bytes is passed over, unless it has a graph or names a file.
_SMALL = 4096
_INSIDE = re.compile(rb"\xa0\x01[\x05\x0a]|location")
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 24: "float8_e8m0fnu",
}  # fmt: skip


class GraphTensor(Struct, frozen=True):
    """A tensor, which lies in the graph's own file if ``location`` is empty.

    ``key``: its name, or that of the node of which it is a constant. ``spec``: of its bytes as they
    lie there; None if the graph does not say how many these are.
    """

    key: str
    location: str
    offset: int
    spec: TensorSpec | None


def parse_onnx(source: Source, name: str) -> FileParts:
    """Raises BadModelFile for what is no message, or has no tensors."""
    try:
        found = tensors(FileCursor(source))
    except LookupError as error:
        raise BadModelFile(f"{name}: {error}") from error
    if not found:
        raise BadModelFile(f"{name}: its graph has no tensors")
    return laid_out((each for each in found if not each.location), source.size())


def laid_out(tensors: Iterable[GraphTensor], size: int) -> FileParts:
    """A file of ``size`` bytes with these tensors. One that lies over another is left out.

    Of two with one name, as in two subgraphs, the second one has none.
    """
    contents, named, end = list[ParsedContent](), dict[str, ParsedTensor](), 0
    placed = [(each.offset, each.spec.nbytes, each.spec, each.key) for each in tensors if each.spec]
    for offset, length, spec, key in sorted(placed, key=lambda row: row[:2]):
        content = ParsedContent(offset, spec)
        if contents[-1:] != [content]:
            if not end <= offset <= size - length:
                continue
            contents.append(content)
            end = content.end
        if key:
            named.setdefault(key, ParsedTensor(key, spec, len(contents) - 1))
    return FileParts("onnx", tuple(contents), tuple(named.values()))


def tensors(file: FileCursor) -> list[GraphTensor]:
    """The tensors of a graph whose bytes lie as they are, in its file or in another one.

    Raises BadModelFile for a file that is cut off or no message, LookupError after too many fields.
    """
    found, above = list[GraphTensor](), [("model", file.end, _fields())]
    while above:
        kind, end, fields = above[-1]
        if file.at == end:
            above.pop()
            if "data" in fields or "external location" in fields:
                found.append(_tensor(fields))
            continue
        number, wire = divmod(_varint(file), 8)
        value = _varint(file) if wire in {0, 2} else 0
        size = value if wire == 2 else _SIZES.get(wire)
        start = file.at
        file.skip(size or 0)
        if size is None or file.at > end or len(above) > _DEEPEST:
            raise BadModelFile("it is no ONNX file")
        inner = _FIELDS[kind].get(number if wire == 2 else -number)
        if inner is not None:
            after, file.at = file.at, start
            if inner not in _FIELDS:
                _read(file, inner, value, above)
            elif inner != "node" or size > _SMALL or _INSIDE.search(file.take(size)):
                above.append((inner, after, _fields("" if kind == "graph" else fields["name"])))
                after = start
            file.at = after
    return found


def facts_of(file: FileCursor) -> dict[str, str | int]:
    """What a model says about itself before its graph. Raises BadModelFile and LookupError."""
    found = dict[str, str | int]()
    while file.at < file.end:
        number, wire = divmod(_varint(file), 8)
        value = _varint(file)
        if number not in _FACTS:
            break
        found[_FACTS[number]] = file.take(value).decode("utf-8", "replace") if wire else value
    return found


def _fields(name: str = "") -> dict[str, Any]:
    """The fields of a message; ``name``: of that in which it lies."""
    return {"name": name, "shape": [], "dtype": 0}


def _read(file: FileCursor, field: str, value: int, above: list[tuple[str, int, Any]]) -> None:
    """Reads a field of the last message ``above``; ``value``: its number, or its length."""
    fields, end = above[-1][2], file.at + value
    if field == "length":
        fields["shape"].append(value)
    elif field == "lengths":
        while file.at < end:
            fields["shape"].append(_varint(file))
    elif field == "dtype":
        fields["dtype"] = value
    elif field == "data":
        fields["data"] = file.at, value
    else:
        text = file.take(min(value, MAX_NAME_BYTES + 1)).decode("utf-8", "replace")
        fields[field] = fields.get(field) or text
        if field == "value":
            above[-2][2][f"external {fields.get('key')}"] = text


def _tensor(fields: dict[str, Any]) -> GraphTensor:
    start, size = fields.get("data", (0, -1))
    location = fields.get("external location", "")
    if location:
        with suppress(ValueError):
            start = int(fields.get("external offset", 0))
            size = int(fields.get("external length", -1))
    return GraphTensor(fields["name"], location, start, _spec(fields, size))


def _spec(fields: dict[str, Any], size: int) -> TensorSpec | None:
    """Of what has another size than its dtype and shape: that of bytes. ``size``: -1 if unknown."""
    with suppress(KeyError, DamagedData):
        spec = shared_spec(_DTYPES[fields["dtype"]], tuple(fields["shape"]))
        if size in {-1, spec.nbytes}:
            return spec
    return shared_spec("uint8", (size,)) if 0 <= size < 1 << 62 else None


def _varint(file: FileCursor) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.take(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise BadModelFile("it is no ONNX file")
