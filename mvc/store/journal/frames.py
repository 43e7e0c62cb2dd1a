"""The journal: append-only, hash-linked, every entry written twice (docs/format.md, "Journal").

An operation takes effect when its entry is durable. An entry is stored as two equal *frames*, its
copies. A frame has a header, the entry's bytes and a checksum. If one copy is damaged, the
undamaged copy is read. Bytes at the end of the file without a valid frame are an interrupted write.
An entry with two damaged copies is lost. Lost entries in a row are a *gap*. Undamaged entries after
a gap are read, but the caller must check whether the lost entries could change the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

from blake3 import blake3
from msgspec import Struct

from mvc.errors import DamagedData
from mvc.io.handles import ReadAhead, ReadFile, WriteFile
from mvc.limits import MAX_ENTRY
from mvc.store.journal.entries import Entry

_MAGIC = b"mvJ1"
_HEAD = struct.Struct("<4sIQ16s")
_CHECK = 16
OVERHEAD = _HEAD.size + _CHECK
"""Bytes of a frame in addition to its payload, the entry's bytes."""
_EFFORT = 8  # maximum of hashed bytes, per byte that is searched for frames


_JournalBytes: TypeAlias = ReadFile | ReadAhead | WriteFile


class Position(Struct, frozen=True):
    """A point between two entries. ``offset``: in bytes. ``sequence``: number of the next entry.

    ``chain``: checksum of the previous entry.
    """

    offset: int
    sequence: int
    chain: bytes


GENESIS = Position(0, 0, bytes(16))


class Recorded(Struct, frozen=True):
    """An entry and its position in the journal. ``copies``: how many of its frames are sound."""

    entry: Entry
    offset: int
    sequence: int
    after: Position
    copies: int
    check: bytes

    @property
    def half(self) -> int:
        """Bytes of one copy."""
        return (self.after.offset - self.offset) // 2


_Frame = tuple[bytes, int, bytes, bytes]
"""Content of a frame: payload, number of the entry, the previous entry's and its own checksum."""
_Linked = tuple[Recorded, bytes]
"""An entry, and the checksum of the previous entry, which its frame contains."""


class Gap(Struct, frozen=True):
    """Lost entries: from ``start`` up to the undamaged entry at ``after``.

    The numbers from ``start.sequence`` to ``after.sequence`` - 1 are lost, if they were used at
    all: after gc or repack, numbers may be missing. ``after.chain`` is the checksum of the entry
    before the undamaged one, whose frame contains this checksum.
    """

    start: Position
    after: Position

    @property
    def numbers(self) -> range:
        """Numbers of the lost entries."""
        return range(self.start.sequence, self.after.sequence)

    @property
    def told(self) -> str:
        """For messages: "entries 3 to 5 of the journal (byte 120) are lost"."""
        one = self.after.sequence - 1 <= self.start.sequence
        return f"{self} {'is' if one else 'are'} lost"

    def __str__(self) -> str:
        first, last = self.start.sequence, self.after.sequence - 1
        named = f"entry {first}" if first >= last else f"entries {first} to {last}"
        return f"{named} of the journal (byte {self.start.offset})"


def encode_entry(entry: Entry, at: Position) -> tuple[bytes, Position]:
    """Both copies of the entry's frame, and the position after these copies."""
    payload = entry.encoded
    head = _HEAD.pack(_MAGIC, len(payload), at.sequence, at.chain) + payload
    check = blake3(head).digest(_CHECK)
    frame = head + check
    return frame * 2, Position(at.offset + 2 * len(frame), at.sequence + 1, check)


def _frame_at(data: bytes, offset: int) -> _Frame | None:
    """The undamaged frame at ``offset`` of ``data``; None if there is none."""
    if len(data) - offset < OVERHEAD:
        return None
    magic, length, sequence, chain = _HEAD.unpack_from(data, offset)
    end = offset + _HEAD.size + length
    if magic != _MAGIC or length > MAX_ENTRY or end + _CHECK > len(data):
        return None
    check = data[end : end + _CHECK]
    if blake3(data[offset:end]).digest(_CHECK) != check:
        return None
    return data[offset + _HEAD.size : end], sequence, chain, check


def frame_of(data: bytes) -> _Frame | None:
    """The undamaged frame that ``data`` consists of; None if ``data`` is anything else."""
    frame = _frame_at(data, 0)
    return frame if frame is not None and OVERHEAD + len(frame[0]) == len(data) else None


def single_frames(data: bytes, source: str) -> Iterator[_Frame]:
    """(frame, sequence, chain, check) of consecutive frames. Each entry has only one frame here.

    Raises DamagedData if ``data`` has other bytes between frames. The message calls the data
    ``source``.
    """
    at = 0
    while at < len(data):
        frame = _frame_at(data, at)
        if frame is None:
            raise DamagedData(f"{source} is damaged: no valid operation at byte {at}")
        payload, sequence, chain, check = frame
        end = at + OVERHEAD + len(payload)
        yield data[at:end], sequence, chain, check
        at = end


def frames_behind(data: bytes, offset: int) -> Iterator[tuple[int, _Frame]]:
    """Undamaged frames in ``data`` from ``offset`` on, each with its offset.

    Raises DamagedData if so many bytes claim to be frames that checking them takes too long.
    """
    left = _EFFORT * len(data)
    for at, claimed in _claims(data, offset):
        left -= claimed
        if left < 0:
            raise DamagedData(
                "the journal ends in thousands of byte sequences that only resemble entries",
                hint="restore .mvc/journal from a copy",
            )
        if frame := _frame_at(data, at):
            yield at, frame


def _claims(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Offsets where a frame may begin, each with the length that the frame's header claims.

    A frame that claims to be longer than the rest of ``data`` is left out.
    """
    at = data.find(_MAGIC, offset)
    while at >= 0:
        if len(data) - at >= OVERHEAD:
            claimed = OVERHEAD + _HEAD.unpack_from(data, at)[1]
            if claimed <= len(data) - at:
                yield at, claimed
        at = data.find(_MAGIC, at + 1)


def read_entry(source: _JournalBytes, offset: int, size: int | None = None) -> Recorded:
    """The entry at a known offset. Raises DamagedData if both copies are damaged."""
    size = source.size() if size is None else size
    linked = _read_window(source, offset, size)
    if linked is None:
        raise DamagedData(
            f"the journal's entry at byte {offset} is damaged in both copies",
            hint="run 'mvc fsck' to list the affected versions",
        )
    return linked[0]


def _read_window(source: _JournalBytes, offset: int, size: int) -> _Linked | None:
    """The entry at ``offset``, read from an undamaged copy; None if both copies are damaged."""
    window = 4096
    while True:
        data = source.read(offset, max(0, min(window, size - offset)))
        if linked := _parse(data, offset):
            half, after = linked[0].half, linked[0].after.offset
            # Only one copy was found, perhaps the second. If an equal frame follows, these two
            # frames are the copies of the next entry. Then this entry is damaged in both copies.
            if linked[0].copies == 1 and source.read(after - half, half) == source.read(
                after, half
            ):
                return None
            return linked
        if offset + window >= size or window > 4 * MAX_ENTRY:
            return None
        window *= 8


def _parse(data: bytes, offset: int) -> _Linked | None:
    frame = _frame_at(data, 0)
    if frame is not None:
        length = OVERHEAD + len(frame[0])
        copies = 2 if data[length : 2 * length] == data[:length] else 1
        if copies == 1 and len(data) < 2 * length:
            copies = 0  # the window is too short to decide; the caller extends it
        if copies:
            return _recorded(frame, offset, length, copies)
    for at, claimed in _claims(data, 1):
        if at == claimed and (second := _frame_at(data, at)):
            return _recorded(second, offset, at, 1)
    return None


def _recorded(frame: _Frame, offset: int, length: int, copies: int) -> _Linked:
    payload, sequence, chain, check = frame
    entry = Entry.decode(payload, f"journal entry {sequence}")
    after = Position(offset + 2 * length, sequence + 1, check)
    return Recorded(entry, offset, sequence, after, copies=copies, check=check), chain


def scan(
    source: _JournalBytes, start: Position, lost: Callable[[Gap], None] | None = None
) -> Iterator[Recorded]:
    """Every entry from ``start`` on, up to the end or an interrupted write.

    Raises DamagedData at a lost entry before an undamaged one, and at an entry that does not have
    the checksum of the previous entry. With ``lost``, calls ``lost`` with this gap instead and
    continues. In any case, raises DamagedData if numbers do not ascend. Numbers may be missing: gc
    and repack leave out entries that nothing needs.
    """
    at, size = start, source.size()
    if size < start.offset:
        raise DamagedData(
            f"the journal has {size} bytes, but {start.offset} were recorded",
            hint="acknowledged operations are missing: restore the journal from a copy",
        )
    while at.offset < size:
        try:
            linked = _tail(source, at, size)
        except DamagedData:
            after = None if lost is None else _next_entry(source, at, size)
            if lost is None or after is None:
                raise
            lost(Gap(at, after))
            at = after
            continue
        if linked is None:
            return
        recorded, chain = linked
        if recorded.sequence < at.sequence or chain != at.chain:
            if lost is None or recorded.sequence <= at.sequence:
                raise DamagedData(
                    f"the journal's chain breaks at entry {at.sequence} (byte {at.offset})",
                    hint="run 'mvc fsck' to list the affected versions",
                )
            lost(Gap(at, Position(recorded.offset, recorded.sequence, chain)))
        yield recorded
        at = recorded.after


def _next_entry(source: _JournalBytes, at: Position, size: int) -> Position | None:
    """The position of the next undamaged entry after the damaged one at ``at``, if there is one.

    The remains of the damaged copies usually show where these copies end. Otherwise, a frame is
    searched in the following bytes. A text in the damaged entry may look like a frame. So a frame
    counts only if its number is higher than that of the damaged entry.
    """
    data = source.read(at.offset, size - at.offset)
    start = begin = 0

    def position(place: int, frame: _Frame) -> Position:
        return Position(at.offset + _begin_of(data, start, place, frame), frame[1], frame[2])

    while (end := _end_of(data, begin)) is not None and end < len(data):
        start, begin = begin, end
        linked = _read_window(source, at.offset + begin, size)
        for place in (begin, begin + linked[0].half) if linked else (begin,):
            frame = _frame_at(data, place)
            if frame is not None and frame[1] > at.sequence:
                return position(place, frame)
    start = begin
    for place, frame in frames_behind(data, max(begin, 1)):
        if frame[1] > at.sequence:
            return position(place, frame)
    return None


def _end_of(data: bytes, begin: int) -> int | None:
    """The end of the damaged entry at ``begin``, if the remains of its two headers show it."""
    half = _claimed(data, begin) if data.startswith(_MAGIC, begin) else -1
    second = data.find(_MAGIC, begin + 1)
    while second >= 0:
        if second - begin in (half, _claimed(data, second)) and _frame_at(data, second) is None:
            return 2 * second - begin
        second = data.find(_MAGIC, second + 1)
    return None


def _claimed(data: bytes, at: int) -> int:
    """Length of the frame at ``at`` by its header, which may be damaged."""
    return OVERHEAD + int.from_bytes(data[at + 4 : at + 8], "little")


def _begin_of(data: bytes, start: int, at: int, frame: _Frame) -> int:
    """Where the entry begins that has an undamaged copy at ``at``.

    A damaged entry at ``start`` precedes this entry. The undamaged copy may be the first or the
    second one. For each case, the remains of the damaged copy, of the previous entry's checksums
    and of the next entry's header are compared with the expected bytes. The case with more equal
    bytes is the result.
    """
    payload, sequence, chain, check = frame
    length = OVERHEAD + len(payload)
    head = data[at : at + _HEAD.size]
    next_head = _MAGIC + bytes(4) + (sequence + 1).to_bytes(8, "little") + check

    def likeness(begin: int) -> int:
        twin, end = begin if begin < at else at + length, begin + 2 * length
        expected = (
            (begin - _CHECK, chain),
            ((start + begin) // 2 - _CHECK, chain),
            (twin, head),
            (twin + length - _CHECK, check),
            (end, next_head),
        )
        alike = (
            a == b
            for place, part in expected
            for a, b in zip(data[max(0, place) : place + len(part)], part, strict=False)
        )
        is_followed = end == len(data) or _end_of(data, end) is not None
        return sum(alike) + 8 * is_followed

    return max((at, at - length), key=likeness) if at >= length else at


def _tail(source: _JournalBytes, at: Position, size: int) -> _Linked | None:
    linked = _read_window(source, at.offset, size)
    # If only a second copy was found, and its frame does not have the checksum ``at.chain``, it is
    # the first copy of the next entry.
    if linked is not None and (
        linked[1] == at.chain or _frame_at(source.read(at.offset, linked[0].half), 0)
    ):
        return linked
    data = source.read(at.offset, size - at.offset)
    lone = _frame_at(data, 0)
    if lone is not None:  # an interruption has cut off the second copy
        return _recorded(lone, at.offset, OVERHEAD + len(lone[0]), 1)
    for _, frame in frames_behind(data, 1):
        if frame[1] >= at.sequence:
            raise DamagedData(
                f"the journal's entry {at.sequence} (byte {at.offset}) is damaged in both copies",
                hint="run 'mvc fsck' to list the affected versions",
            )
    return None


def is_unchanged(source: _JournalBytes, recorded: Recorded) -> bool:
    """Whether the journal still has this entry. After a failure, its writer removes the entry."""
    ends = (recorded.offset + recorded.half, recorded.after.offset)
    return any(source.read(end - _CHECK, _CHECK) == recorded.check for end in ends)


def complete(file: WriteFile, recorded: Recorded) -> None:
    """Restores the torn or missing copy of an entry from the other copy."""
    places = (recorded.offset, recorded.offset + recorded.half)
    first, second = (file.read(at, recorded.half) for at in places)
    if first == second:
        return
    if _frame_at(first, 0) is not None:
        file.write_at(places[1], first)
    elif _frame_at(second, 0) is not None:
        file.write_at(places[0], second)
