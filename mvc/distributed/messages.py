"""Messages between the coordinator and the workers of a distributed training.

A message is a header (kind, worker, round, sub-round), then numbers, then data. A message goes *up*
(from a worker to the coordinator) or *down* (from the coordinator to a worker). The field
``worker`` is the number of this worker.

A training has rounds, and a round has sub-rounds. When a round begins, all workers have the same
global model, the *reference*. The *drift* of a worker is its model minus the reference. A *safe
function* (``mvc.distributed.safe``) has a negative value while the drift is small, compared with a
distance, the *radius*. In the protocol FGM, a worker counts in each sub-round by how many *quanta*
the value of its safe function has risen. The coordinator sends the size of a quantum.
examples/reproduce/distributed/README.md explains the protocols.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import astuple

from mvc.errors import BadMessage

_LENGTH = struct.Struct("<I")


class Message(Struct, frozen=True):
    """The header of every message."""

    worker: int
    round: int
    subround: int

    @property
    def size(self) -> int:
        """The length of ``to_bytes()``."""
        return _KINDS[type(self)][1].size + len(getattr(self, "data", b""))

    def to_bytes(self) -> bytes:
        kind, numbers = _KINDS[type(self)]
        values = list(astuple(self))
        data: bytes = values.pop() if kind in _WITH_DATA else b""
        return numbers.pack(kind, *values) + data


class Join(Message, frozen=True):
    """Up: a worker joins. ``length``: the number of elements of its vector.

    ``layout``: a digest (16 bytes) of names, shapes and types. The coordinator answers with Begin.
    """

    length: int
    layout: bytes


class Increment(Message, frozen=True):
    """Up: the value of the worker's safe function has risen by ``amount`` quanta."""

    amount: int


class Value(Message, frozen=True):
    """Up: the answer to Collect, the value of the worker's safe function."""

    value: float


class LocalState(Message, frozen=True):
    """Up: ``square`` is the squared norm of the drift.

    ``along``, rounded to float32: the length of the drift in the direction of the newest change of
    the global model.
    """

    square: float
    along: float


class Drift(Message, frozen=True):
    """Up: the encoded drift. ``alarm``: 1 if the coordinator had not requested the drift.

    After sending this message, the worker waits.
    """

    alarm: int
    data: bytes


class Done(Message, frozen=True):
    """Up: the worker stops training, but still answers messages.

    ``pending``: 1 if the worker has trained since the round began.
    """

    pending: int


class Begin(Message, frozen=True):
    """Down: a round begins. ``quantum``: as in Quantum.

    ``data``: the global model if ``full`` is 1, otherwise the encoded change of the global model.
    """

    full: int
    quantum: float
    data: bytes


class Quantum(Message, frozen=True):
    """Down: a sub-round begins. ``quantum``: the size of one quantum in this sub-round."""

    quantum: float


class Collect(Message, frozen=True):
    """Down: asks the worker for the value of its safe function."""


class Fetch(Message, frozen=True):
    """Down: asks the worker for its drift. The worker then waits."""


class Balance(Message, frozen=True):
    """Down: a sub-round begins. The worker continues from the reference plus the encoded change."""

    data: bytes


class Continue(Message, frozen=True):
    """Down: a sub-round begins. The worker continues to train its own model."""


class Stop(Message, frozen=True):
    """Down: training has ended, because the last global model is complete."""


class Radius(Message, frozen=True):
    """Down: the radius that the coordinator has measured. Sent before the first round that uses
    this radius.
    """

    radius: float


_WITH_DATA = {5, 16, 20}
_NUMBERS: dict[int, tuple[Callable[..., Message], str]] = {
    1: (Join, "Q16s"),
    2: (Increment, "I"),
    3: (Value, "d"),
    4: (LocalState, "df"),
    5: (Drift, "B"),
    6: (Done, "B"),
    16: (Begin, "Bd"),
    17: (Quantum, "d"),
    18: (Collect, ""),
    19: (Fetch, ""),
    20: (Balance, ""),
    21: (Continue, ""),
    22: (Stop, ""),
    24: (Radius, "d"),
}
_KINDS = {
    message_type: (kind, struct.Struct(f"<BHII{numbers}"))
    for kind, (message_type, numbers) in _NUMBERS.items()
}


def from_bytes(raw: bytes) -> Message:
    """Reads a message, without decoding its data. Raises BadMessage."""
    try:
        message_type, _ = _NUMBERS[raw[0]]
        numbers = _KINDS[message_type][1]
        if raw[0] in _WITH_DATA:
            return message_type(*numbers.unpack_from(raw)[1:], raw[numbers.size :])
        return message_type(*numbers.unpack(raw)[1:])
    except (IndexError, KeyError, struct.error):
        raise BadMessage(f"{len(raw)} bytes are not a known message") from None


def pack(messages: Iterable[Message]) -> bytes:
    """Concatenated messages, each preceded by its length."""
    raw = [message.to_bytes() for message in messages]
    return b"".join(part for data in raw for part in (_LENGTH.pack(len(data)), data))


def unpack(data: bytes) -> list[Message]:
    """The inverse of ``pack``. Raises BadMessage."""
    messages, at = [], 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            raise BadMessage("a message is longer than the bytes sent")
        messages.append(from_bytes(data[start:at]))
    return messages
