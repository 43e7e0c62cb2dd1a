"""Encodes and reads the entries of the journal (docs/format.md, "Journal").

The journal is a file to which each operation, such as a commit, appends one entry. The operation
takes effect when this entry is durable. An entry is stored as two equal *frames*, its copies. A
frame has a header, the bytes of the entry and a checksum. The header has the checksum of the
previous entry. If one copy is damaged, the other copy is read. If both copies are damaged, the
entry is lost. Consecutive lost entries are a *gap*. Bytes without a valid frame at the end of the
file are an interrupted write, and are ignored.
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
"""Number of bytes in a frame without the bytes of the entry (the payload)."""
_EFFORT = 8  # a search for frames in n bytes hashes at most 8 n bytes


_JournalBytes: TypeAlias = ReadFile | ReadAhead | WriteFile


class Position(Struct, frozen=True):
    """A position between two entries of the journal. ``offset``: in bytes.

    ``sequence``: number of the entry after this position. ``chain``: checksum of the entry before.
    """

    offset: int
    sequence: int
    chain: bytes


GENESIS = Position(0, 0, bytes(16))


class Recorded(Struct, frozen=True):
    """An entry in the journal. ``offset``: its position. ``sequence``: its number.

    ``after``: the position after the entry. ``copies``: how many of its two copies are undamaged.
    ``check``: its checksum.
    """

    entry: Entry
    offset: int
    sequence: int
    after: Position
    copies: int
    check: bytes

    @property
    def half(self) -> int:
        """Number of bytes of one copy."""
        return (self.after.offset - self.offset) // 2


_Frame = tuple[bytes, int, bytes, bytes]
"""The entry's bytes, the entry's number, the checksum of the previous entry, its own checksum."""
_Linked = tuple[Recorded, bytes]
"""An entry, and the checksum of the previous entry according to the header of the frame."""


class Gap(Struct, frozen=True):
    """Consecutive lost entries. ``start``: the position of the first lost entry.

    ``after``: the position of the next undamaged entry. ``after.chain`` is read from the header of
    this undamaged entry.
    """

    start: Position
    after: Position

    @property
    def numbers(self) -> range:
        """Numbers of the lost entries. Some may be unused, because gc and repack remove entries."""
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
    """The bytes of an entry at the position ``at`` (two frames), and the position after them."""
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
    """``data`` as a frame; None if ``data`` is not exactly one undamaged frame."""
    frame = _frame_at(data, 0)
    return frame if frame is not None and OVERHEAD + len(frame[0]) == len(data) else None


def single_frames(data: bytes, source: str) -> Iterator[_Frame]:
    """Yields (bytes of the frame, sequence, chain, check) for each frame in ``data``.

    In ``data``, each entry has one frame, not two. Raises DamagedData at bytes that are no valid
    frame. ``source``: the name of the data, for the message.
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
    """Searches ``data`` for undamaged frames, from ``offset`` on. Yields offset and frame.

    Raises DamagedData if too many bytes look like frames, because the search would take too long.
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
    """Yields each offset where a frame may begin, and the length according to its header.

    A frame that would end after ``data`` is left out.
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
            # If the found frame is followed by an equal frame, the two frames are the copies of
            # the next entry, and both copies of the entry at ``offset`` are damaged.
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
            copies = 0  # ``data`` ends before the second copy; the caller reads more bytes
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
    """Yields every entry from ``start`` up to the end of the journal, or to an interrupted write.

    At a gap, raises DamagedData. With ``lost``, calls ``lost`` with the gap instead, and continues
    after the gap. If the header of an entry has another checksum than the previous entry, there is
    a gap between the two entries. Raises DamagedData, too, if the numbers do not ascend. Numbers
    may be missing without a gap, because gc and repack remove entries. After a gap, the caller must
    check whether the lost entries could change its answer.
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
    """The position of the next undamaged entry after the damaged entry at ``at``, if any.

    The headers of the damaged entry usually show where it ends. Otherwise, the following bytes are
    searched for a frame. A frame counts only if its number is higher than the number of the damaged
    entry, because the damaged entry may contain bytes that look like a frame.
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
    """The end of the damaged entry at ``begin``; None if its two headers do not show the end."""
    half = _claimed(data, begin) if data.startswith(_MAGIC, begin) else -1
    second = data.find(_MAGIC, begin + 1)
    while second >= 0:
        if second - begin in (half, _claimed(data, second)) and _frame_at(data, second) is None:
            return 2 * second - begin
        second = data.find(_MAGIC, second + 1)
    return None


def _claimed(data: bytes, at: int) -> int:
    """Length of the frame at ``at`` according to its header, which may be damaged."""
    return OVERHEAD + int.from_bytes(data[at + 4 : at + 8], "little")


def _begin_of(data: bytes, start: int, at: int, frame: _Frame) -> int:
    """The offset of the entry whose undamaged copy ``frame`` is at ``at``.

    ``start``: the offset of the damaged entry before this entry. The undamaged copy may be the
    first or the second copy of its entry. For both cases, the bytes around the copy are compared
    with the bytes that would be expected. The case with more equal bytes is chosen.
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
    # The frame belongs to the entry at ``at`` if it begins at ``at``, or if its header has the
    # checksum ``at.chain``. Otherwise, it is a copy of the next entry.
    if linked is not None and (
        linked[1] == at.chain or _frame_at(source.read(at.offset, linked[0].half), 0)
    ):
        return linked
    data = source.read(at.offset, size - at.offset)
    lone = _frame_at(data, 0)
    if lone is not None:  # the write was interrupted after the first copy
        return _recorded(lone, at.offset, OVERHEAD + len(lone[0]), 1)
    for _, frame in frames_behind(data, 1):
        if frame[1] >= at.sequence:
            raise DamagedData(
                f"the journal's entry {at.sequence} (byte {at.offset}) is damaged in both copies",
                hint="run 'mvc fsck' to list the affected versions",
            )
    return None


def is_unchanged(source: _JournalBytes, recorded: Recorded) -> bool:
    """Whether the journal still has this entry. The writer of an entry removes it if it fails."""
    ends = (recorded.offset + recorded.half, recorded.after.offset)
    return any(source.read(end - _CHECK, _CHECK) == recorded.check for end in ends)


def complete(file: WriteFile, recorded: Recorded) -> None:
    """If one copy of an entry is damaged or missing, writes it again from the other copy."""
    places = (recorded.offset, recorded.offset + recorded.half)
    first, second = (file.read(at, recorded.half) for at in places)
    if first == second:
        return
    if _frame_at(first, 0) is not None:
        file.write_at(places[1], first)
    elif _frame_at(second, 0) is not None:
        file.write_at(places[0], second)
