"""Encodes a nested Python value that contains tensors as JSON, without the tensors' data.

A tensor gets a name: the keys and positions on the path to it, joined with '.'. Torch files and
states committed from Python use the same rules, so equal states have equal hashes.

The encoding of a value is called its *node*. ``None`` is encoded as ``null``. Booleans, numbers,
texts and lists are encoded as themselves. Every other value is encoded as an object:

====================  =======================================================
``{}``                the torch tensor that is named after this path
``{"torch": k}``      the torch tensor named k. The tag is ``numpy`` for a
                      numpy array, ``scalar`` for a numpy scalar
``{"dict": x}``       a dictionary. x is an object if all keys are texts, else
                      a list of [key, value]. OrderedDict: tag ``ordered``
``{"tuple": [..]}``   a tuple
``{"bytes": text}``   bytes, in base64
``{"int": hex}``      an integer of more than 64 bits
``{"float": hex}``    the eight bytes of an infinity or NaN, big-endian
``{"complex": [..]}`` the real and the imaginary part
====================  =======================================================

Values of other types are refused. Unlike pickle, decoding cannot run code.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mvc.errors import DamagedData, UnsupportedTensor

MAX_DEPTH = 100
"""The largest number of nested levels. This also refuses a value that contains itself."""

_VERSION = 1
_DECIMAL_BITS = 256

Leaf = Callable[[str, Any], tuple[str, str] | None]
Lookup = Callable[[str, str], Any]


def part_name(key: object) -> str:
    """A key of a dictionary or a position in a list, as a part of a tensor's name."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or key is None or isinstance(key, float):
        return repr(key)
    if isinstance(key, int):
        # Python refuses to write very long integers in decimal.
        return str(key) if key.bit_length() <= _DECIMAL_BITS else hex(key)
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, tuple):
        return ",".join("()" if isinstance(k, tuple) else part_name(k) for k in key)
    return "object"


def join(path: str | None, part: str) -> str:
    """The path of ``part`` inside ``path``. ``path`` is None for the outermost value."""
    return part if path is None else f"{path}.{part}"


class Names:
    """Makes names unique: the second tensor named ``a`` becomes ``a#2``."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def unique(self, name: str | None) -> str:
        """``name``, or ``name#N`` with the first unused N. An empty name becomes ``tensor``."""
        name = unique = name or "tensor"
        while unique in self._counts:
            self._counts[name] += 1
            unique = f"{name}#{self._counts[name]}"
        self._counts[unique] = 1
        return unique


def encode(value: Mapping[Any, Any], leaf: Leaf) -> str:
    """Encodes ``value`` as ASCII JSON.

    ``leaf(path, x)`` is called for ``value`` and each value x inside it except None, booleans,
    numbers, texts and bytes. ``leaf`` returns (tag, name) if x is a tensor, else None. Raises
    UnsupportedTensor for a type that cannot be encoded, and for more than ``MAX_DEPTH`` levels.
    """
    node = as_node(value, leaf)
    return json.dumps({"version": _VERSION, "state": node}, separators=(",", ":"))


def as_node(value: Mapping[Any, Any], leaf: Leaf) -> Any:
    """As ``encode``, but returns the node instead of its text."""
    return _encode(leaf, value, None, 0)


def _encode(leaf: Leaf, value: Any, path: str | None, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UnsupportedTensor(
            f"{_location(path)[:200]} is nested deeper than {MAX_DEPTH} levels or contains itself"
        )
    plain = _plain(value)
    if plain is not None or value is None:
        return plain
    tagged = leaf(path or "", value)
    if tagged is not None:
        tag, name = tagged
        return {} if (tag, name) == ("torch", path) else {tag: name}
    if isinstance(value, Mapping):
        return _encode_mapping(leaf, value, path, depth)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    # torch.Size is a subclass of tuple. It is encoded as a tuple of integers.
    if type(value) not in {list, tuple} and kind != "torch.Size":
        raise UnsupportedTensor(
            f"{_location(path)} is of type {kind}, which a state cannot contain",
            hint="use tensors, arrays, dictionaries, lists, tuples, numbers, texts and bytes",
        )
    # For speed, no path is joined for plain values: training histories are long lists of numbers.
    items = [
        plain
        if (plain := _plain(v)) is not None
        else _encode(leaf, v, join(path, str(i)), depth + 1)
        for i, v in enumerate(value)
    ]
    return items if type(value) is list else {"tuple": items}


def _encode_mapping(leaf: Leaf, value: Mapping[Any, Any], path: str | None, depth: int) -> Any:
    tag = "ordered" if type(value) is OrderedDict else "dict"
    pairs = [(k, _encode(leaf, v, join(path, part_name(k)), depth + 1)) for k, v in value.items()]
    if all(type(k) is str for k, _ in pairs):
        return {tag: dict(pairs)}
    return {tag: [[_encode_key(k, path), v] for k, v in pairs]}


def _encode_key(key: Any, path: str | None) -> Any:
    if type(key) is tuple:
        return {"tuple": [_encode_key(k, path) for k in key]}
    node = _plain(key)
    if node is None and key is not None:
        raise UnsupportedTensor(
            f"{_location(path)} has a key of type {type(key).__qualname__}",
            hint="use texts, numbers, bytes or tuples of them as keys",
        )
    return node


def _location(path: str | None) -> str:
    return "the state" if path is None else path


def _plain(value: Any) -> Any:
    """The node of a boolean, number, text or bytes; None for all other values."""
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
    """Decodes the result of ``encode``. Raises DamagedData.

    ``lookup(tag, name)`` must return the tensor with this name.
    """
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedData("the structure of a state is malformed") from error
    if not isinstance(top, dict) or top.get("version") != _VERSION or "state" not in top:
        raise DamagedData("the structure of a state is of an unknown version")
    return of_node(top["state"], lookup)


def of_node(node: Any, lookup: Lookup) -> Any:
    """As ``decode``, but takes the node instead of its text."""
    try:
        return _decode(lookup, node, None, 0)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error) as error:
        raise DamagedData("the structure of a state is malformed") from error


def _decode(lookup: Lookup, node: Any, path: str | None, depth: int) -> Any:
    if depth > MAX_DEPTH + 1:
        raise DamagedData("the structure of a state is nested too deeply")
    if isinstance(node, list):
        return [_decode(lookup, n, join(path, str(i)), depth + 1) for i, n in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if not node:
        return lookup("torch", path or "")
    if len(node) != 1:
        raise DamagedData("the structure of a state has a node with several tags")
    ((tag, body),) = node.items()
    if tag in {"torch", "numpy", "scalar"} and isinstance(body, str):
        return lookup(tag, body)
    if tag == "tuple":
        return tuple(_decode(lookup, body, path, depth))
    if tag not in {"dict", "ordered"}:
        return _simple(tag, body)
    if isinstance(body, dict):
        pairs = list(body.items())
    else:
        pairs = [(_decode(_no_tensor, k, "", depth), v) for k, v in body]
    value = {k: _decode(lookup, v, join(path, part_name(k)), depth + 1) for k, v in pairs}
    return OrderedDict(value) if tag == "ordered" else value


def _no_tensor(_tag: str, name: str) -> NoReturn:
    raise DamagedData(f"the structure of a state has the tensor {name} as a key")


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
