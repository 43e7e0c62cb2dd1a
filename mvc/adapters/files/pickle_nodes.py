"""Reads a pickle as a tree of nodes. Nothing is imported or called, so no code in a file can run.

A global (a class or function) becomes a node with its module and name. A call becomes a node with
its function and arguments. CPython describes the opcodes of pickles in Lib/pickletools.py. All
opcodes of protocols 0 to 5 are supported, except out-of-band buffers, which files cannot contain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from msgspec import Struct, field

from mvc.errors import BadModelFile
from mvc.limits import MAX_PICKLE

_MAX_OPCODES = 5_000_000
"""Limits time to about 5 seconds, and memory to 0.7 GB. A tensor needs about 40 opcodes."""


class Global(Struct, eq=False):
    """The name of a class or function, which is never looked up."""

    module: str
    name: str


class PickledDict(Struct, eq=False):
    """A dictionary as pairs of key and value, because a key may be any node."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


class PickleCall(Struct, eq=False):
    """A call of a function or class, which would build an object.

    ``state``, ``items``, ``pairs``: data that later opcodes add to the object.
    """

    func: Any
    args: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


class Persistent(Struct, eq=False):
    """A reference to something outside the pickle. In torch files this is a storage."""

    id: Any


def read_pickle(data: bytes) -> Any:
    """The value of the first pickle in ``data``.

    Lists, tuples, texts, bytes, numbers, booleans and None are returned as such. Every other value
    becomes a node of this module. Raises BadModelFile.
    """
    return read_pickles(data, 1)[0][0]


def read_pickles(
    data: bytes, count: int, references: list[Persistent] | None = None
) -> tuple[list[Any], int]:
    """The values of the first ``count`` pickles in ``data``, and the end of the last pickle.

    All external references are appended to ``references``, in order.
    """
    if len(data) > MAX_PICKLE:
        raise BadModelFile(f"a pickle is longer than {MAX_PICKLE} bytes")
    values, end, steps = [], 0, iter(range(_MAX_OPCODES))
    try:
        for _ in range(count):
            machine = _Machine(data, end, steps)
            values.append(machine.run())
            end = machine.at
            if references is not None:
                references += machine.references
        return values, end
    except (IndexError, KeyError, ValueError, OverflowError, struct.error) as error:
        raise BadModelFile("a pickle is malformed") from error


class _Machine:
    """The machine that executes opcodes. It has a stack of values.

    A mark on the stack shows where a list of arguments begins. ``stack``: values above the topmost
    mark. ``at``: position of the next byte. ``steps``: one item for each opcode that may still be
    executed. Several machines may share ``steps``.
    """

    def __init__(self, data: bytes, at: int, steps: Iterator[int]) -> None:
        self._data, self._steps = data, steps
        self.at = at
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []  # for each mark, the values below it
        self.memo: dict[int, Any] = {}
        self.references: list[Persistent] = []

    def run(self) -> Any:
        data = self._data
        for _ in self._steps:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.stack.pop()
            if code in _CONSTANTS:
                self.stack.append(_CONSTANTS[code])
            elif code in _READERS:
                value = _READERS[code](self)  # a reader may replace ``self.stack``
                self.stack.append(value)
            else:
                _ACTIONS[code](self)
        raise BadModelFile(f"a pickle has more than {_MAX_OPCODES} steps")

    # -- arguments

    def read(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if length < 0 or self.at > len(self._data):
            raise BadModelFile("a pickle is truncated")
        return self._data[start : self.at]

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.read(width), "little", signed=signed)

    def counted(self, width: int, *, signed: bool = False) -> bytes:
        return self.read(self.number(width, signed=signed))

    def text(self, width: int) -> str:
        return self.counted(width).decode("utf-8", "surrogatepass")

    def line(self) -> bytes:
        end = self._data.index(b"\n", self.at)
        start, self.at = self.at, end + 1
        return self._data[start:end]

    def name(self) -> str:
        return self.line().decode("utf-8")

    def decimal(self) -> int | bool:
        line = self.line()
        # Protocols 0 and 1 write booleans as the integers 00 and 01.
        return line == b"01" if line in {b"00", b"01"} else int(line.removesuffix(b"L"))

    def quoted(self) -> str:
        line = self.line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'}:
            raise BadModelFile("a pickle is malformed")
        return line[1:-1].decode("latin-1")

    # -- the stack

    def mark(self) -> None:
        self._below.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        values, self.stack = self.stack, self._below.pop()
        return values

    def pop_any(self) -> None:
        """The opcode POP. If a mark is on top of the stack, POP removes the mark."""
        if self.stack:
            self.stack.pop()
        else:
            self.to_mark()

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.stack.pop() for _ in range(count)]))

    def refer(self, id_: Any) -> Persistent:
        self.references.append(Persistent(id_))
        return self.references[-1]

    def memoize(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    # -- containers and calls

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, PickleCall):
            target.items.extend(values)
        else:
            _malformed()

    def update(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, (PickledDict, PickleCall)):
            _malformed()
        target.pairs.extend(_pairs(flat))

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], PickleCall):
            self.stack[-1].state = state


def _malformed() -> NoReturn:
    raise BadModelFile("a pickle is malformed")


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    if len(flat) % 2:
        _malformed()
    return list(zip(flat[::2], flat[1::2], strict=True))


def _global(module: Any, name: Any) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        _malformed()
    return Global(module, name)


_STOP = ord(".")
_CONSTANTS: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}

_READERS: dict[int, Callable[[_Machine], Any]] = {
    ord("I"): _Machine.decimal,
    ord("L"): _Machine.decimal,
    ord("J"): lambda m: m.number(4, signed=True),
    ord("K"): lambda m: m.number(1),
    ord("M"): lambda m: m.number(2),
    0x8A: lambda m: int.from_bytes(m.counted(1), "little", signed=True),
    0x8B: lambda m: int.from_bytes(m.counted(4, signed=True), "little", signed=True),
    ord("F"): lambda m: float(m.line()),
    ord("G"): lambda m: struct.unpack(">d", m.read(8))[0],
    ord("S"): _Machine.quoted,
    ord("T"): lambda m: m.counted(4, signed=True).decode("latin-1"),
    ord("U"): lambda m: m.counted(1).decode("latin-1"),
    ord("V"): lambda m: m.line().decode("raw-unicode-escape"),
    ord("X"): lambda m: m.text(4),
    0x8C: lambda m: m.text(1),
    0x8D: lambda m: m.text(8),
    ord("B"): lambda m: m.counted(4),
    ord("C"): lambda m: m.counted(1),
    0x8E: lambda m: m.counted(8),
    0x96: lambda m: PickleCall(Global("builtins", "bytearray"), (m.counted(8),)),
    ord("]"): lambda _: [],
    ord("}"): lambda _: PickledDict(),
    0x8F: lambda _: PickleCall(Global("builtins", "set"), ()),
    ord("l"): _Machine.to_mark,
    ord("t"): lambda m: tuple(m.to_mark()),
    0x91: lambda m: PickleCall(Global("builtins", "frozenset"), (), items=m.to_mark()),
    ord("d"): lambda m: PickledDict(_pairs(m.to_mark())),
    0x85: lambda m: m.last(1),
    0x86: lambda m: m.last(2),
    0x87: lambda m: m.last(3),
    ord("2"): lambda m: m.stack[-1],
    ord("g"): lambda m: m.memo[int(m.line())],
    ord("h"): lambda m: m.memo[m.number(1)],
    ord("j"): lambda m: m.memo[m.number(4)],
    ord("c"): lambda m: Global(m.name(), m.name()),
    0x93: lambda m: _global(*m.last(2)),
    0x82: lambda m: Global("copyreg", f"extension {m.number(1)}"),
    0x83: lambda m: Global("copyreg", f"extension {m.number(2)}"),
    0x84: lambda m: Global("copyreg", f"extension {m.number(4)}"),
    ord("P"): lambda m: m.refer(m.name()),
    ord("Q"): lambda m: m.refer(m.stack.pop()),
    ord("i"): lambda m: PickleCall(Global(m.name(), m.name()), tuple(m.to_mark())),
    ord("R"): lambda m: PickleCall(*m.last(2)),
    0x81: lambda m: PickleCall(*m.last(2)),
    0x92: lambda m: PickleCall(m.stack.pop(-3), m.last(2)),
    ord("o"): lambda m: PickleCall(m.stack.pop(0), tuple(m.to_mark())),  # first value: the class
}
"""Opcodes that push one value."""

_ACTIONS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.read(1),
    0x95: lambda m: m.read(8),
    ord("("): _Machine.mark,
    ord("0"): _Machine.pop_any,
    ord("1"): _Machine.to_mark,
    ord("a"): lambda m: m.extend([m.stack.pop()]),
    ord("e"): lambda m: m.extend(m.to_mark()),
    0x90: lambda m: m.extend(m.to_mark()),
    ord("s"): lambda m: m.update(list(m.last(2))),
    ord("u"): lambda m: m.update(m.to_mark()),
    ord("p"): lambda m: m.memoize(int(m.line())),
    ord("q"): lambda m: m.memoize(m.number(1)),
    ord("r"): lambda m: m.memoize(m.number(4)),
    0x94: lambda m: m.memoize(len(m.memo)),
    ord("b"): _Machine.build,
}
"""All other opcodes."""
