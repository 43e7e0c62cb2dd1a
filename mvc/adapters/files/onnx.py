"""ONNX graphs, by the lengths of their fields, and the files with weights that they name.

An ONNX file is a message of protocol buffers. Tensors may lie in files beside it.
Format: https://github.com/onnx/onnx (onnx.proto).
"""

from __future__ import annotations

from mvc.adapters.files.cursor import FileCursor
from mvc.errors import BadModelFile

_DEEPEST = 500
# By the kind of a message: the kinds of those of its fields that lead to tensors.
_FIELDS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "place"},
    "place": {1: "key", 2: "value"},
}


def external_data(file: FileCursor) -> set[str]:
    """The names of files in which tensors of the graph lie, as it spells them.

    Raises BadModelFile for a file that is cut off or no message, LookupError after too many fields.
    """
    found, key = set[str](), b""
    above = [("model", file.end)]
    while above:
        kind, end = above[-1]
        if file.at == end:
            above.pop()
            continue
        number, wire = divmod(_varint(file), 8)
        value = _varint(file) if wire in {0, 2} else 0
        size = {0: 0, 1: 8, 2: value, 5: 4}.get(wire)
        start = file.at
        file.skip(size or 0)
        if size is None or file.at > end or len(above) > _DEEPEST:
            raise BadModelFile("it is no ONNX file")
        inner = _FIELDS[kind].get(number, "") if wire == 2 else ""
        if inner in _FIELDS:
            above.append((inner, file.at))
            file.at = start
        elif inner:
            file.at = start
            text = file.take(size)
            if inner == "value" and key == b"location":
                found.add(text.decode("utf-8", "replace"))
            key = text
    return found


def _varint(file: FileCursor) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.take(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise BadModelFile("it is no ONNX file")
