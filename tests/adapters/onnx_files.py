"""ONNX files made field by field, so that tests need no package that writes them."""

from __future__ import annotations

import numpy as np

CODES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14,
    "complex128": 15,
}  # fmt: skip
TENSOR, GRAPH, LOCATION = 4, 5, "location"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | str | bytes) -> bytes:
    """A number as a varint; text, bytes and messages with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(
    name: str, array: np.ndarray, *, data: int = 9, packed: bool = False, last: bool = False
) -> bytes:
    """A tensor whose numbers are in the field ``data``; ``last``: before dtype and shape."""
    numbers = field(data, array.tobytes())
    shape = b"".join(field(1, n) for n in array.shape)
    if packed:
        shape = field(1, b"".join(map(varint, array.shape)))
    head = shape + field(2, CODES[array.dtype.name]) + (field(8, name) if name else b"")
    return numbers + head if last else head + numbers


def outside(name: str, array: np.ndarray, **place: object) -> bytes:
    """A tensor in another file: ``location``, ``offset``, ``length``."""
    head = b"".join(field(1, n) for n in array.shape) + field(2, CODES[array.dtype.name])
    places = (field(1, key) + field(2, str(value)) for key, value in place.items())
    return head + field(8, name) + b"".join(field(13, each) for each in places) + field(14, 1)


def node(output: str, *attributes: bytes) -> bytes:
    return field(2, output) + field(4, "Constant") + b"".join(field(5, a) for a in attributes)


def attribute(number: int, value: bytes, kind: int) -> bytes:
    """``number`` 5 for a tensor, 6 for a graph."""
    return field(1, "value") + field(number, value) + field(20, kind)


def graph(*tensors: bytes, nodes: tuple[bytes, ...] = (), more: bytes = b"") -> bytes:
    made = b"".join(field(1, each) for each in nodes) + field(2, "g")
    return made + b"".join(field(5, each) for each in tensors) + more


def model(*tensors: bytes, nodes: tuple[bytes, ...] = (), more: bytes = b"") -> bytes:
    """A file whose graph comes last. ``more``: other fields of the graph."""
    head = field(1, 10) + field(2, "tests") + field(8, field(2, 21))
    return head + field(7, graph(*tensors, nodes=nodes, more=more))


def small() -> bytes:
    """One file with tensors of several kinds, in several places."""
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    branch = graph(tensor("bias", rows[0]), tensor("inner", rows[1]))
    return model(
        tensor("weight", rows),
        tensor("half", rows.astype("<f2"), packed=True, last=True),
        tensor("bias", rows[:, 0].copy(), data=4),
        tensor("double", rows.astype("<f8"), data=10),
        tensor("empty", np.zeros((0, 3), "<f4")),
        tensor("scalar", np.array(3, "<i8")),
        outside("far", rows, location="w.bin", offset=64, length=48),
        nodes=(
            node("constant", attribute(5, tensor("", np.arange(2000, dtype="<f4")), TENSOR)),
            node("tiny", attribute(5, tensor("", rows), TENSOR)),
            node("if", attribute(6, branch, GRAPH)),
        ),
        more=field(15, field(1, tensor("sparse", rows)) + field(2, tensor("", np.arange(12)))),
    )
