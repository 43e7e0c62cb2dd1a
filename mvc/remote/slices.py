"""Encodes and decodes slices. A transfer sends versions to another repository as slices.

A repository appends an entry to its journal for each operation, such as a commit. A slice has
the transferred fields of one or more entries, and the records (encoded contents of files) that
these entries need. A slice ends with the BLAKE3 hash of its bytes. A receiver reads a slice to its
end before it publishes anything from the slice. A stream is a sequence of slices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct, field

from mvc.errors import DamagedData
from mvc.ids import DIGEST_SIZE
from mvc.limits import MAX_DIMENSIONS, MAX_ENTRY, MAX_NAME_BYTES, MIB
from mvc.model.statement import Deployment, Statement
from mvc.model.tensor import TensorSpec
from mvc.remote.transport import Move, Place, Slice
from mvc.types import Bytes

SLICE = 64 * MIB
"""Maximum number of bytes of records in a slice. A slice with only one entry may have more."""
HEADS = MIB // 4
"""Number of bytes of encoded entries after which a slice ends."""
MAX_HEAD = MAX_ENTRY + 4 * MIB
_MOST = 10_000  # maximum number of entries in a slice
_MANY = 200_000  # maximum number of elements of each list in an entry
_MAX_RECORDS = 1 << 50
_MAGIC = b"mvS1"
_PREFIX = struct.Struct("<4sIIQ")
_PART = MIB

Id = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
_Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Lack = Literal["rule", "name", "dropped"]
"""Why a state is not sent.

``rule``: the state was forgotten by a rule, or was not requested. ``name``: the state was purged.
``dropped``: the weights were dropped, and the rest of the state is sent.
"""


class Absent(Struct, frozen=True, array_like=True):
    """A version that is sent without its state, or without the weights in the file ``path``."""

    commit: Id
    why: Lack
    path: Annotated[str, Meta(max_length=MAX_NAME_BYTES)] = ""


class SentShape(Struct, frozen=True, array_like=True):
    """Dtype and shape of a tensor that is sent, although no version in the slice has it.

    For example, another tensor is sent as a delta from this tensor.
    """

    id: Id
    dtype: str
    shape: Annotated[tuple[int, ...], Meta(max_length=MAX_DIMENSIONS)]

    @property
    def spec(self) -> TensorSpec:
        """Raises DamagedData for an invalid dtype or shape."""
        return TensorSpec(self.dtype, self.shape)


class NodeReport(Struct, frozen=True, array_like=True):
    """A node (a machine that serves a model) reports that it serves ``commit`` since ``time_ns``.

    ``now_ns``: the time of the report. Both times are by the clock of the node. ``target``:
    ``nodes/NAME/TARGET``. A server that collects reports sets ``author`` (the sender of the report)
    and ``arrived_ns`` (the time when the report arrived).
    """

    target: str
    commit: Id
    time_ns: _Time
    now_ns: _Time
    author: Annotated[str, Meta(max_length=MAX_NAME_BYTES)] = ""
    arrived_ns: _Time = 0


class Sent(Struct, frozen=True, omit_defaults=True):
    """The transferred fields of a journal entry. ``size``: number of bytes of the entry's records.

    ``commits``: the encoded versions that the entry publishes. ``restored``: the receiver has these
    versions without their states, and has requested the states. ``statements``: encoded statements,
    such as deployments. ``is_own``: whether the sender itself recorded the statements.
    """

    commits: Annotated[tuple[bytes, ...], Meta(max_length=_MANY)] = ()
    size: Annotated[int, Meta(ge=0)] = 0
    absent: Annotated[tuple[Absent, ...], Meta(max_length=_MANY)] = ()
    restored: Annotated[tuple[Id, ...], Meta(max_length=_MANY)] = field(default=(), name="again")
    shapes: Annotated[tuple[SentShape, ...], Meta(max_length=_MANY)] = ()
    statements: Annotated[tuple[bytes, ...], Meta(max_length=_MANY)] = ()
    is_own: bool = False
    reports: Annotated[tuple[NodeReport, ...], Meta(max_length=_MANY)] = ()

    @property
    def decoded(self) -> tuple[Statement, ...]:
        """The decoded statements. Raises DamagedData."""
        return tuple(Statement.decode(data, "a received statement") for data in self.statements)

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Raises DamagedData."""
        return tuple(row for row in self.decoded if isinstance(row, Deployment))

    @property
    def targets(self) -> frozenset[str]:
        """The targets of the statements and the reports. Raises DamagedData."""
        reported = frozenset(report.target for report in self.reports)
        return reported | {statement.target for statement in self.decoded if statement.target}


def sent_with(statements: Sequence[Statement], *, is_own: bool = False) -> Sent:
    """The transferred fields of an entry that has only statements."""
    return Sent(statements=tuple(row.encoded for row in statements), is_own=is_own)


class _Wire(Struct, array_like=True):
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()


_entries: msgspec.msgpack.Decoder[tuple[Sent, ...]] = msgspec.msgpack.Decoder(
    Annotated[tuple[Sent, ...], Meta(max_length=_MOST)]
)


def decode_id(kind: type, value: object) -> object:
    """A hook for msgspec's decoder, which converts bytes to an id of the type ``kind``."""
    if not isinstance(value, bytes):
        raise TypeError("an id is bytes")
    return kind(value)


_wire = msgspec.msgpack.Decoder(_Wire, dec_hook=decode_id)
encode = msgspec.msgpack.Encoder(enc_hook=bytes).encode


def encode_entries(entries: Sequence[Sent]) -> bytes:
    """The entries, encoded as the head of a slice."""
    return encode(entries)


def decode_entries(head: bytes) -> tuple[Sent, ...]:
    """The entries in the head of a slice. Raises DamagedData."""
    try:
        return _entries.decode(head)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: no UTF-8
        raise DamagedData("the entries of a slice cannot be decoded") from error


def write(outgoing: Slice) -> Iterator[Bytes]:
    """The encoded slice, in parts."""
    tail = encode(_Wire(outgoing.moves, outgoing.place, outgoing.features))
    hasher = blake3()
    start = _PREFIX.pack(_MAGIC, len(outgoing.head), len(tail), outgoing.size)
    for part in _counted((start, outgoing.head, tail), outgoing):
        hasher.update(part)
        yield part
    yield hasher.digest()


def _counted(first: Iterable[Bytes], outgoing: Slice) -> Iterator[Bytes]:
    yield from first
    left = outgoing.size
    for part in outgoing.records:
        left -= len(part)
        yield part
    if left:
        raise DamagedData("the records of a slice do not have the declared size")


def whole_size(start: bytes) -> int | None:
    """The number of bytes of the slice that begins with ``start``. None if ``start`` is too short.

    Raises DamagedData if ``start`` is not the beginning of a slice.
    """
    if len(start) < _PREFIX.size:
        return None
    head_size, tail_size, size = _sizes(start[: _PREFIX.size])
    return _PREFIX.size + head_size + tail_size + size + DIGEST_SIZE


def _sizes(start: bytes) -> tuple[int, int, int]:
    magic, head_size, tail_size, size = _PREFIX.unpack(start)
    if magic != _MAGIC or head_size > MAX_HEAD or tail_size > MAX_HEAD or size > _MAX_RECORDS:
        raise DamagedData("the received data does not begin with a slice")
    return head_size, tail_size, size


def read(source: Callable[[int], Bytes]) -> Slice | None:
    """The next slice of a stream. None at the end of the stream. Raises DamagedData.

    ``source(n)`` returns at most n bytes of the stream, and no bytes at the end. The caller must
    read all records of a slice before it calls ``read`` again. After the last record, the iterator
    ``records`` raises DamagedData if the hash of the slice is wrong.
    """
    start = exactly(source, _PREFIX.size, _cut, ends=True)
    if not start:
        return None
    head_size, tail_size, size = _sizes(start)
    head, tail = exactly(source, head_size, _cut), exactly(source, tail_size, _cut)
    try:
        ending = _wire.decode(tail)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedData("the end of a slice cannot be decoded") from error
    hasher = blake3(start)
    hasher.update(head)
    hasher.update(tail)
    records = _records(source, size, hasher)
    return Slice(head, size, records, ending.moves, place=ending.place, features=ending.features)


def _records(source: Callable[[int], Bytes], size: int, hasher: blake3) -> Iterator[Bytes]:
    left = size
    while left:
        part = source(min(left, _PART))
        if not len(part):
            raise _cut()
        hasher.update(part)
        left -= len(part)
        yield part
    if exactly(source, DIGEST_SIZE, _cut) != hasher.digest():
        raise DamagedData("a slice does not match its checksum", hint="send it again")


def exactly(
    source: Callable[[int], Bytes], size: int, cut: Callable[[], Exception], *, ends: bool = False
) -> bytes:
    """Reads exactly ``size`` bytes of a stream.

    If the stream has fewer bytes left, raises the error that ``cut`` returns. With ``ends``, a
    stream without any bytes left is no error, and the result is empty.
    """
    parts, left = list[Bytes](), size
    while left:
        part = source(min(left, _PART))
        if not len(part):
            if ends and left == size:
                return b""
            raise cut()
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class PartReader:
    """Reads a sequence of parts as bytes of any size."""

    def __init__(self, parts: Iterator[Bytes]) -> None:
        self._parts = parts
        self._part = memoryview(b"")

    def read(self, size: int) -> memoryview:
        """The next bytes, at most ``size``. Empty after the last part."""
        while not len(self._part) and (part := next(self._parts, None)) is not None:
            self._part = memoryview(part).cast("B")
        data, self._part = self._part[:size], self._part[size:]
        return data


def _cut() -> DamagedData:
    return DamagedData(
        "a slice is truncated", hint="repeat the command: complete slices are not sent again"
    )
