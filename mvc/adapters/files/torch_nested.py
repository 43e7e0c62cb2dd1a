"""What a stored torch file holds, nested as a Python state, from its skeleton alone."""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Any

from mvc.adapters.files.pickle_nodes import PickleCall, PickledDict
from mvc.adapters.files.torch_files import read_root
from mvc.adapters.files.torch_tensors import (
    WRAPPED,
    are_pairs,
    find_tensors,
    name_in,
    name_in_torch,
    naturals,
    torch_function,
)
from mvc.adapters.parsed import PlacedFile, Source, gaps
from mvc.errors import BadModelFile
from mvc.structure import MAX_DEPTH

_VALUES = {type(None), bool, int, float, str, bytes}
_MAPPINGS = {"OrderedDict", "defaultdict", "Counter"}


class _NotPlain(Exception):
    """A pickle holds something that a state cannot hold."""


UNKNOWN = object()
"""Stands for what a pickle holds beside plain data."""


def nested(file: PlacedFile, skeleton: bytes, tensor: Callable[[str], Any]) -> tuple[Any, bool]:
    """What a torch file holds, nested, and whether it is a dictionary of nothing but plain data.

    ``tensor`` gives a tensor by its key. Plain is what a Python state may hold: dictionaries,
    lists, tuples, numbers, texts, bytes, booleans, None and dense tensors. Parameters become
    tensors; a ``Counter`` or ``defaultdict`` becomes a dictionary. The rest is UNKNOWN.
    """
    source, name = _Skeleton(file, skeleton), "the file"
    try:
        root = read_root(source, name)
        found = {id(t.node): t.key for t in reversed(find_tensors(root))}
    except BadModelFile:
        return UNKNOWN, False
    if not {t.key for t in file.tensors}.issuperset(found.values()):
        return UNKNOWN, False  # it was not taken for tensors, such as one of another byte order
    builder = _Builder(found, tensor)
    value = builder.value(root, 0)
    return value, builder.plain and isinstance(value, dict)


class _Skeleton(Source):
    """A file with zeros where its contents lie."""

    def __init__(self, entry: PlacedFile, skeleton: bytes) -> None:
        runs = list(gaps([(c.offset, c.spec.nbytes) for c in entry.contents], entry.size))
        self._starts = [start for start, _ in runs]
        self._places = [0, *accumulate(length for _, length in runs)]
        self._skeleton = skeleton
        self._size = entry.size

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._size)
        out = bytearray(max(end - offset, 0))
        for i in range(max(bisect(self._starts, offset) - 1, 0), bisect(self._starts, end)):
            start, place, last = self._starts[i], self._places[i], self._places[i + 1]
            skip = max(offset - start, 0)
            part = self._skeleton[place + skip : min(last, place + end - start)]
            out[start + skip - offset : start + skip - offset + len(part)] = part
        return bytes(out)


class _Builder:
    """Makes plain values of nodes; what a pickle names twice is one object here, too.

    ``plain``: no value was UNKNOWN.
    """

    def __init__(self, keys: dict[int, str], tensor: Callable[[str], Any]) -> None:
        self.plain = True
        self._keys = keys
        self._tensor = tensor
        self._made: dict[int, Any] = {}

    def value(self, node: Any, depth: int) -> Any:
        """UNKNOWN also for what is nested too deeply or contains itself."""
        if type(node) in _VALUES:
            return node
        if depth > MAX_DEPTH:
            self.plain = False
            return UNKNOWN
        if id(node) not in self._made:
            self._made[id(node)] = UNKNOWN
            with suppress(BadModelFile, UnicodeEncodeError, _NotPlain):
                self._made[id(node)] = self._make(node, depth + 1)
        self.plain = self.plain and self._made[id(node)] is not UNKNOWN
        return self._made[id(node)]

    def _make(self, node: Any, depth: int) -> Any:
        quantised = type(node) is PickleCall and torch_function(node) == "_rebuild_qtensor"
        if id(node) in self._keys and not quantised:
            return self._tensor(self._keys[id(node)])
        if isinstance(node, list | tuple):
            return type(node)([self.value(each, depth) for each in node])
        if isinstance(node, PickledDict):
            return self._dict(node.pairs, depth)
        if type(node) is not PickleCall or not isinstance(node.args, tuple) or node.items:
            raise _NotPlain
        return self._call(node, depth)

    def _call(self, node: PickleCall, depth: int) -> Any:
        args = node.args
        if torch_function(node) in WRAPPED and args:
            return self.value(args[0], depth)
        kind = name_in(node.func, "collections")
        if kind in _MAPPINGS:
            made = self._dict([*_given_pairs(kind, args), *node.pairs], depth)
            return OrderedDict(made) if kind == "OrderedDict" else made
        if node.pairs or not all(type(arg) in _VALUES | {tuple, list} for arg in args):
            raise _NotPlain
        if name_in_torch(node.func) == "Size":
            return naturals(node)
        name = name_in(node.func, "builtins", "__builtin__", "_codecs")
        match name, args:
            case "complex", (float(real), float(imaginary)):
                return complex(real, imaginary)
            case "bytes", ():
                return b""
            case "encode", (str(text), "latin1"):
                return text.encode("latin-1")  # as protocols 0 to 2 write them
        raise _NotPlain

    def _dict(self, pairs: Iterable[Any], depth: int) -> dict[Any, Any]:
        return {_as_key(key): self.value(value, depth) for key, value in pairs}


def _as_key(node: Any) -> Any:
    """A plain value or a tuple of such. Deeper ones could take for ever to hash."""
    if not all(type(each) in _VALUES for each in (node if type(node) is tuple else (node,))):
        raise _NotPlain
    return node


def _given_pairs(kind: str, args: tuple[Any, ...]) -> Iterable[Any]:
    """What a dictionary of ``collections`` was made from."""
    if kind == "defaultdict" or not args:
        return ()
    given = args[0].pairs if isinstance(args[0], PickledDict) else args[0]
    if not are_pairs(given):
        raise _NotPlain
    return given
