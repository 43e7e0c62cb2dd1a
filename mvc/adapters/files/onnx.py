"""ONNX files: finds the positions of tensors, in the file or in external files.

An ONNX file is a protocol buffer message (https://github.com/onnx/onnx, onnx.proto). A message
consists of fields, and a field may be another message. This module reads the fields without the
packages onnx and protobuf. It ignores tensors whose numbers are encoded one by one (varints), and
constants of small nodes. Their bytes stay in the skeleton (all bytes outside of tensors).
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
"""The first byte of every ONNX file. It begins the field ``ir_version``."""

_DEEPEST = 500
_SIZES = {0: 0, 1: 8, 5: 4}
# Maps each kind of message to its needed fields: maps the number of a field to its meaning. If the
# value of a field is one number (a varint), the number of the field is negated here.
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
# A node with at most _SMALL bytes is skipped, unless it contains a graph or names a file.
_SMALL = 4096
_INSIDE = re.compile(rb"\xa0\x01[\x05\x0a]|location")
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 24: "float8_e8m0fnu",
}  # fmt: skip


class GraphTensor(Struct, frozen=True):
    """A tensor of a graph, and where its bytes are.

    ``key``: the tensor's name. For a constant, the name of its node. ``location``: the external
    file with the bytes; empty for the graph's own file. ``spec``: dtype and shape; None if the
    number of bytes is unknown.
    """

    key: str
    location: str
    offset: int
    spec: TensorSpec | None


def parse_onnx(source: Source, name: str) -> FileParts:
    """The tensors in an ONNX file, without external files, and their positions.

    Raises BadModelFile for an invalid file, or if the graph has no tensors.
    """
    try:
        graph_tensors = tensors(FileCursor(source))
    except LookupError as error:
        raise BadModelFile(f"{name}: {error}") from error
    if not graph_tensors:
        raise BadModelFile(f"{name}: its graph has no tensors")
    return laid_out((tensor for tensor in graph_tensors if not tensor.location), source.size())


def laid_out(tensors: Iterable[GraphTensor], size: int) -> FileParts:
    """The layout of a file of ``size`` bytes.

    Leaves out tensors that overlap earlier tensors, or that are outside the file. If several
    tensors have the same name, such as tensors of two subgraphs, only the first gets the name. The
    others have no name.
    """
    contents, named, end = list[ParsedContent](), dict[str, ParsedTensor](), 0
    placed = [
        (tensor.offset, tensor.spec.nbytes, tensor.spec, tensor.key)
        for tensor in tensors
        if tensor.spec
    ]
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
    """All tensors that are stored as plain numbers, in the graph's file or in external files.

    Raises BadModelFile for a truncated or invalid file, and LookupError for too many fields.
    """
    graph_tensors, open_messages = list[GraphTensor](), [("model", file.end, _fields())]
    while open_messages:
        kind, end, fields = open_messages[-1]
        if file.at == end:
            open_messages.pop()
            if "data" in fields or "external location" in fields:
                graph_tensors.append(_tensor(fields))
            continue
        number, wire = divmod(_varint(file), 8)
        value = _varint(file) if wire in {0, 2} else 0
        size = value if wire == 2 else _SIZES.get(wire)
        start = file.at
        file.skip(size or 0)
        if size is None or file.at > end or len(open_messages) > _DEEPEST:
            raise BadModelFile("it is not a valid ONNX file")
        inner = _FIELDS[kind].get(number if wire == 2 else -number)
        if inner is not None:
            after, file.at = file.at, start
            if inner not in _FIELDS:
                _read(file, inner, value, open_messages)
            elif inner != "node" or size > _SMALL or _INSIDE.search(file.read(size)):
                open_messages.append(
                    (inner, after, _fields("" if kind == "graph" else fields["name"]))
                )
                after = start
            file.at = after
    return graph_tensors


def facts_of(file: FileCursor) -> dict[str, str | int]:
    """The metadata at the beginning of an ONNX file. Raises BadModelFile and LookupError."""
    facts = dict[str, str | int]()
    while file.at < file.end:
        number, wire = divmod(_varint(file), 8)
        value = _varint(file)
        if number not in _FACTS:
            break
        facts[_FACTS[number]] = file.read(value).decode("utf-8", "replace") if wire else value
    return facts


def _fields(name: str = "") -> dict[str, Any]:
    """A dict for the fields of a message that begins. ``name``: the name of the outer message."""
    return {"name": name, "shape": [], "dtype": 0}


def _read(
    file: FileCursor, field: str, value: int, open_messages: list[tuple[str, int, Any]]
) -> None:
    """Reads a field of the innermost open message.

    ``value``: the field's value if this is a number, otherwise the field's length.
    """
    fields, end = open_messages[-1][2], file.at + value
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
        text = file.read(min(value, MAX_NAME_BYTES + 1)).decode("utf-8", "replace")
        fields[field] = fields.get(field) or text
        if field == "value":
            open_messages[-2][2][f"external {fields.get('key')}"] = text


def _tensor(fields: dict[str, Any]) -> GraphTensor:
    start, size = fields.get("data", (0, -1))
    location = fields.get("external location", "")
    if location:
        with suppress(ValueError):
            start = int(fields.get("external offset", 0))
            size = int(fields.get("external length", -1))
    return GraphTensor(fields["name"], location, start, _spec(fields, size))


def _spec(fields: dict[str, Any], size: int) -> TensorSpec | None:
    """The dtype and shape of a tensor. ``size``: the number of its bytes, or -1 if unknown.

    If dtype or shape is unknown, or contradicts the size, the result is uint8 and one dimension. If
    the size is unknown, too, the result is None.
    """
    with suppress(KeyError, DamagedData):
        spec = shared_spec(_DTYPES[fields["dtype"]], tuple(fields["shape"]))
        if size in {-1, spec.nbytes}:
            return spec
    return shared_spec("uint8", (size,)) if 0 <= size < 1 << 62 else None


def _varint(file: FileCursor) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise BadModelFile("it is not a valid ONNX file")
