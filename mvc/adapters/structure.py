"""Nested Python values as JSON, exactly: what a state holds beside and around its tensors.

A node is ``null``, a boolean, a number, a text or a list for itself, and an
object with one tag for everything else:

=================  ==========================================================
``{}``             the torch tensor whose name is the node's place
``{"torch": k}``   the torch tensor named k; likewise ``numpy``, and ``scalar``
                   for a numpy scalar
``{"dict": x}``    a dictionary; x is an object where all keys are texts, else
                   a list of [key, value]; ``ordered`` for an OrderedDict
``{"tuple": [..]}``, ``{"bytes": base64}``, ``{"int": hex}`` beyond 64 bits,
``{"float": hex}`` the eight bytes of an infinity or NaN, big-endian,
``{"complex": [real, imaginary]}``
=================  ==========================================================

Other types are refused by their place and type: nothing is ever built by class name.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mvc.adapters.keys import join, part_name
from mvc.errors import DamagedData, UnsupportedTensor

__all__ = ["MAX_DEPTH", "decode", "encode"]

MAX_DEPTH = 100
"""Containers inside each other; also what ends a state that contains itself."""

_VERSION = 1

Leaf = Callable[[str, Any], tuple[str, str] | None]
Lookup = Callable[[str, str], Any]


def encode(value: Mapping[Any, Any], leaf: Leaf) -> str:
    """``value`` as ASCII JSON.

    ``leaf(place, x)`` is asked about everything that is no plain value: it gives
    (tag, name) for a tensor it has taken, or None. Raises UnsupportedTensor.
    """
    node = _Encoder(leaf).node(value, None, 0)
    return json.dumps({"version": _VERSION, "state": node}, separators=(",", ":"))


class _Encoder:
    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf

    def node(self, value: Any, path: str | None, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise UnsupportedTensor(
                f"{_place(path)[:200]} is nested deeper than {MAX_DEPTH} levels or contains itself"
            )
        plain = _plain(value)
        if plain is not None or value is None:
            return plain
        found = self._leaf(path or "", value)
        if found is not None:
            tag, name = found
            return {} if (tag, name) == ("torch", path) else {tag: name}
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        if type(value) is list:
            return self._items(value, path, depth)
        # torch.Size is a tuple of integers under another name.
        if type(value) is tuple or (type(value).__module__, type(value).__name__) == (
            "torch",
            "Size",
        ):
            return {"tuple": self._items(value, path, depth)}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UnsupportedTensor(
            f"{_place(path)} is of type {kind}, which a state cannot hold",
            hint="keep tensors, arrays, dictionaries, lists, tuples, numbers, texts and bytes",
        )

    def _items(self, values: Any, path: str | None, depth: int) -> list[Any]:
        # Histories are long lists of plain numbers: these need no place of their own.
        return [
            plain
            if (plain := _plain(v)) is not None
            else self.node(v, join(path, str(i)), depth + 1)
            for i, v in enumerate(values)
        ]

    def _mapping(self, value: Mapping[Any, Any], path: str | None, depth: int) -> Any:
        tag = "ordered" if type(value) is OrderedDict else "dict"
        pairs = [(k, self.node(v, join(path, part_name(k)), depth + 1)) for k, v in value.items()]
        if all(type(k) is str for k, _ in pairs):
            return {tag: dict(pairs)}
        return {tag: [[self._key(k, path), v] for k, v in pairs]}

    def _key(self, key: Any, path: str | None) -> Any:
        if type(key) is tuple:
            return {"tuple": [self._key(k, path) for k in key]}
        node = _plain(key)
        if node is None and key is not None:
            raise UnsupportedTensor(
                f"{_place(path)} has a key of type {type(key).__qualname__}",
                hint="use texts, numbers, bytes or tuples of them as keys",
            )
        return node


def _place(path: str | None) -> str:
    return "the state" if path is None else path


def _plain(value: Any) -> Any:
    """The node of a plain value, None for everything else."""
    kind = type(value)
    if kind in {bool, str}:
        return value
    if kind is int:
        return value if value.bit_length() <= 64 else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"complex": [_plain(value.real), _plain(value.imag)]}
    return None


def decode(text: str, lookup: Lookup) -> Any:
    """The value back; ``lookup(tag, name)`` gives the tensors. Raises DamagedData."""
    try:
        top = json.loads(text)
        if not isinstance(top, dict) or top.get("version") != _VERSION or "state" not in top:
            raise DamagedData("the structure of a state is of an unknown version")
        return _Decoder(lookup).value(top["state"], None, 0)
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise DamagedData("the structure of a state is malformed") from error


class _Decoder:
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def value(self, node: Any, path: str | None, depth: int) -> Any:
        if depth > MAX_DEPTH + 1:
            raise DamagedData("the structure of a state is nested too deeply")
        if isinstance(node, list):
            return [self.value(n, join(path, str(i)), depth + 1) for i, n in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if not node:
            return self._lookup("torch", path or "")
        if len(node) != 1:
            raise DamagedData("the structure of a state has a node with several tags")
        ((tag, body),) = node.items()
        if tag in {"torch", "numpy", "scalar"} and isinstance(body, str):
            return self._lookup(tag, body)
        if tag in {"dict", "ordered"}:
            return self._mapping(tag, body, path, depth)
        if tag == "tuple":
            return tuple(self.value(body, path, depth))
        return _simple(tag, body)

    def _mapping(self, tag: str, body: Any, path: str | None, depth: int) -> dict[Any, Any]:
        pairs = (
            body.items()
            if isinstance(body, dict)
            else [(_KEYS.value(k, "", depth), v) for k, v in body]
        )
        made = {k: self.value(v, join(path, part_name(k)), depth + 1) for k, v in pairs}
        return OrderedDict(made) if tag == "ordered" else made


def _no_tensor(_tag: str, name: str) -> NoReturn:
    raise DamagedData(f"the structure of a state has the tensor {name} as a key")


_KEYS = _Decoder(_no_tensor)


def _simple(tag: str, body: Any) -> Any:
    if tag == "bytes":
        return base64.b64decode(body, validate=True)
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(body))[0]
    if tag == "complex":
        real, imaginary = (_real(part) for part in body)
        return complex(real, imaginary)
    raise DamagedData(f"the structure of a state has an unknown tag {tag!r}")


def _real(node: Any) -> float:
    return float(_simple("float", node["float"]) if isinstance(node, dict) else node)
