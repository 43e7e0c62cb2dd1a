"""What coordinator and workers say to each other, with its exact size in bytes.

A message is a header (kind, worker, round, sub-round), then its numbers, then its data. The
runner sends exactly the bytes of ``to_bytes``; ``size`` counts them without making them.
``worker`` is who sends it (up) or who is to have it (down).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import astuple

from mvc.errors import BadMessage

_HEADER = struct.Struct("<BHII")
_LENGTH = struct.Struct("<I")


class Message(Struct, frozen=True):
    """The header that every message has."""

    kind: ClassVar[int] = 0
    up: ClassVar[bool] = False
    numbers: ClassVar[struct.Struct] = struct.Struct("<")
    has_data: ClassVar[bool] = False

    worker: int
    round: int
    subround: int

    @property
    def size(self) -> int:
        """Bytes of this message: the length of ``to_bytes()``."""
        return _HEADER.size + self.numbers.size + len(getattr(self, "data", b""))

    def to_bytes(self) -> bytes:
        values = list(astuple(self))
        data = values.pop() if self.has_data else b""
        header = _HEADER.pack(self.kind, *values[:3])
        return b"".join((header, self.numbers.pack(*values[3:]), data))


class Join(Message, frozen=True):
    """Up: a worker is there. ``length``: numbers in its vector; ``layout``: 16 bytes, the digest
    of names, shapes and types. The coordinator answers with Begin.
    """

    kind, up, numbers = 1, True, struct.Struct("<Q16s")
    length: int
    layout: bytes


class Increment(Message, frozen=True):
    """Up: the counter of a worker has risen by ``amount`` in this sub-round."""

    kind, up, numbers = 2, True, struct.Struct("<I")
    amount: int


class Value(Message, frozen=True):
    """Up: the value of the safe function, the answer to Collect."""

    kind, up, numbers = 3, True, struct.Struct("<d")
    value: float


class LocalState(Message, frozen=True):
    """Up: the squared norm of the drift, and its length along the last change, as float32."""

    kind, up, numbers = 4, True, struct.Struct("<df")
    square: float
    along: float


class Drift(Message, frozen=True):
    """Up: the encoded drift. ``alarm`` is 1 if nobody asked for it. The worker then waits."""

    kind, up, numbers, has_data = 5, True, struct.Struct("<B"), True
    alarm: int
    data: bytes


class Done(Message, frozen=True):
    """Up: the worker will not train any more; it still answers. ``pending``: 1 if it has trained
    since the round began.
    """

    kind, up, numbers = 6, True, struct.Struct("<B")
    pending: int


class Begin(Message, frozen=True):
    """Down: a round begins. With ``full`` the data are the model, else its encoded change."""

    kind, numbers, has_data = 16, struct.Struct("<Bd"), True
    full: int
    quantum: float
    data: bytes


class Quantum(Message, frozen=True):
    """Down: a sub-round begins."""

    kind, numbers = 17, struct.Struct("<d")
    quantum: float


class Collect(Message, frozen=True):
    """Down: say the value of your safe function."""

    kind = 18


class Fetch(Message, frozen=True):
    """Down: send your drift, and wait."""

    kind = 19


class Balance(Message, frozen=True):
    """Down: your model is now the reference plus the encoded change; the round goes on."""

    kind, has_data = 20, True
    data: bytes


class Continue(Message, frozen=True):
    """Down: train on, nothing is to be synchronised."""

    kind = 21


class Stop(Message, frozen=True):
    """Down: training has ended, and the last model is made."""

    kind = 22


class Radius(Message, frozen=True):
    """Down: the radius that the training has found, before the round that begins with it."""

    kind, numbers = 24, struct.Struct("<d")
    radius: float


_KINDS: dict[int, type[Message]] = {
    each.kind: each
    for each in (
        *(Join, Increment, Value, LocalState, Drift, Done),
        *(Begin, Quantum, Collect, Fetch, Balance, Continue, Stop, Radius),
    )
}


def from_bytes(raw: bytes) -> Message:
    """The message of these bytes. Raises BadMessage; data are not decoded here."""
    if len(raw) < _HEADER.size:
        raise BadMessage(f"a message has {len(raw)} bytes: its header alone has {_HEADER.size}")
    kind, *header = _HEADER.unpack_from(raw)
    made = _KINDS.get(kind)
    if made is None:
        raise BadMessage(f"a message is of kind {kind}, which this version does not know")
    least = _HEADER.size + made.numbers.size
    if len(raw) < least or (len(raw) > least and not made.has_data):
        raise BadMessage(f"a message {made.__name__} has {len(raw)} bytes instead of {least}")
    values: list[Any] = [*header, *made.numbers.unpack_from(raw, _HEADER.size)]
    if made.has_data:
        values.append(bytes(raw[least:]))
    return made(*values)


def pack(messages: Iterable[Message]) -> bytes:
    """Several messages as one, each after its length."""
    raw = [message.to_bytes() for message in messages]
    return b"".join(part for data in raw for part in (_LENGTH.pack(len(data)), data))


def unpack(data: bytes) -> list[Message]:
    """The messages that ``pack`` made one. Raises BadMessage."""
    found, at = [], 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0)
        if not start <= at <= len(data):
            raise BadMessage("a message is longer than what was sent")
        found.append(from_bytes(data[start:at]))
    return found
