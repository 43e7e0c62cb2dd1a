"""Reads packs: append-only files of records, in which a repository stores its data.

A record has a header and the encoded bytes of its *members*: objects (such as tensors) or pieces of
objects. An entry of the journal names the *regions* of packs that contain the entry's records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from mvc.errors import DamagedData, IoFailed
from mvc.io.files import FileSystem, ReadFile
from mvc.store.journal.entries import Entry, Region
from mvc.store.journal.reader import CACHED_ENTRIES, JournalReader
from mvc.store.packs.records import (
    BASE_BYTES,
    CHECK_SIZE,
    MAGIC,
    PREFIX_SIZE,
    Member,
    RecordHeader,
    decode_header,
    payload_check,
    read_prefix,
)

PACKS = "packs"

PACK_HEADER = b"mvcpack1"
_MAX_OPEN = 64
_FIRST_READ = 4096
_WINDOW = 1 << 20
_MOST = (1 << 32) - 1  # the largest number of a pack
_EFFORT = 8  # limit of the bytes of damaged headers that are hashed, per byte of the region

Placed = tuple[int, int, RecordHeader]
"""A record: pack number, byte offset, header."""


class EntryRecords(list[Placed]):
    """The records that one journal entry published, with tables of their members."""

    @cached_property
    def by_prefix(self) -> dict[bytes, list[tuple[Placed, Member]]]:
        """Maps the first bytes of an id to the members whose ids begin with them."""
        table: dict[bytes, list[tuple[Placed, Member]]] = {}
        for placed in self:
            for member in placed[2].members:
                table.setdefault(member.id[:BASE_BYTES], []).append((placed, member))
        return table

    @cached_property
    def by_base(self) -> dict[bytes, list[tuple[Placed, Member]]]:
        """Maps the first bytes of a base's id to the deltas from which the base can be computed."""
        table: dict[bytes, list[tuple[Placed, Member]]] = {}
        for pair in chain.from_iterable(self.by_prefix.values()):
            if pair[1].base and not pair[1].coding.forward_only:
                table.setdefault(pair[1].base, []).append(pair)
        return table


def pack_path(folder: Path, number: int) -> Path:
    """The file of a pack."""
    return folder / f"{number:08d}.pack"


def pack_numbers(fs: FileSystem, folder: Path) -> list[int]:
    """Numbers of the packs in the folder, ascending."""
    names = {name: name.partition(".")[0] for name in fs.list(folder)}
    numbers = {int(stem): n for n, stem in names.items() if stem.isascii() and stem.isdigit()}
    return sorted(
        number
        for number, name in numbers.items()
        if 0 < number <= _MOST and pack_path(folder, number).name == name
    )


class PackReader:
    """Random access to records. Safe across threads; open files are cached."""

    _cached = 4096  # maximum number of cached headers

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs = fs
        self._folder = folder
        self._open: dict[int, ReadFile] = {}
        self.headers: dict[tuple[int, int], RecordHeader] = {}

    def _file(self, pack: int) -> ReadFile:
        handle = self._open.get(pack)
        if handle is None:
            if len(self._open) >= _MAX_OPEN:
                self._open = {}  # each file is closed with its last reference
            path = self._path(pack)
            try:
                handle = self._fs.open_read(path)
            except IoFailed:
                if self._fs.stat(path) is None:
                    raise DamagedData(f"{path.name} is missing from the repository") from None
                raise
            self._open[pack] = handle
        return handle

    def _path(self, pack: int) -> Path:
        return pack_path(self._folder, pack)

    def header(self, pack: int, offset: int) -> RecordHeader:
        """The verified header of the record at ``offset``."""
        cached = self.headers.get((pack, offset))
        if cached is None:
            where = f"pack {pack} at byte {offset}"
            file = self._file(pack)
            head = file.read_header(offset, _FIRST_READ)
            header_size, body_size = read_prefix(head, 1 << 63, where)
            need = PREFIX_SIZE + header_size + CHECK_SIZE
            if need + body_size > len(head):
                read_prefix(head, file.size() - offset, where)
            if len(head) < need:
                head += file.read_header(offset + len(head), need - len(head))
            cached = decode_header(head[:need], where)
            if len(self.headers) > self._cached:
                self.headers.clear()
            self.headers[(pack, offset)] = cached
        return cached

    def ahead(self) -> PackReader:
        """A reader for one pass over many records, in the order of their offsets."""
        return _ReaderAhead(self)

    def records(self, region: Region) -> Iterator[tuple[int, RecordHeader]]:
        """(offset, header) of every record of a region."""
        at, end = region.start, region.end
        while at < end:
            header = self.header(region.pack, at)
            yield at, header
            at += header.size
        if at != end:
            raise DamagedData(f"pack {region.pack}: a record crosses byte {end}")

    def sound_records(
        self, region: Region, report: Callable[[DamagedData], None]
    ) -> Iterator[tuple[int, RecordHeader]]:
        """As ``records``, but skips records with a damaged header, and reports their errors.

        Ends early if damaged headers cost too much time (``_EFFORT``).
        """
        at, end = region.start, region.end
        left = _EFFORT * region.length
        while at < end and left >= 0:
            try:
                header = self.header(region.pack, at)
                if at + header.size > end:
                    raise DamagedData(f"pack {region.pack}: a record crosses byte {end}")
            except DamagedData as error:
                report(error)
                left -= self._claimed(region.pack, at)
                at = self._next_magic(region.pack, at + 1, end)
            else:
                yield at, header
                at += header.size

    def _claimed(self, pack: int, at: int) -> int:
        """The length of a damaged header according to the first bytes of its record."""
        with suppress(DamagedData):
            file = self._file(pack)
            return read_prefix(file.read_header(at, PREFIX_SIZE), file.size() - at, "")[0]
        return 0

    def _next_magic(self, pack: int, at: int, end: int) -> int:
        """Where the next record may begin, or ``end``."""
        with suppress(DamagedData):  # the pack is missing
            file = self._file(pack)
            while at < end:
                length = min(_WINDOW, end - at)
                if not file.is_hole(at, length):  # the holes of a sparse file may be huge
                    data = file.read(at, length)
                    position = data.find(MAGIC)
                    if position >= 0:
                        return at + position
                    length = len(data)
                at += max(length - len(MAGIC) + 1, len(MAGIC))
        return end

    def raw(self, pack: int, offset: int, header: RecordHeader) -> tuple[bytes, memoryview]:
        """The head and the body of a record, after all checksums are verified."""
        data = self._file(pack).read(offset, header.size)
        head, body = data[: header.body_at], memoryview(data)[header.body_at :]
        if decode_header(head, f"pack {pack} at byte {offset}") != header:
            raise DamagedData(f"pack {pack} changed while it was read")
        for member in header.members[:1] if header.group else header.members:
            payload = body[member.at : member.at + member.stored]
            if len(payload) != member.stored or payload_check([payload]) != member.check:
                raise DamagedData(
                    f"object {member.id.hex()[:10]} in pack {pack} (byte {offset}) does not "
                    "match its checksum",
                    hint="run 'mvc fsck' in the sending repository, which is damaged",
                )
        return head, body

    def payload(
        self,
        pack: int,
        offset: int,
        header: RecordHeader,
        member: Member,
        room: memoryview | None = None,
        *,
        check: bool = True,
    ) -> memoryview:
        """A member's payload (its encoded bytes). ``room``: the buffer to read into, if any.

        Without ``check``, the payload's checksum is not verified. Then the caller must verify the
        decoded bytes.
        """
        at = offset + header.body_at + member.at
        file = self._file(pack)
        if room is None:
            data = memoryview(file.read(at, member.stored))
        else:
            data = room[: file.read_into(at, room[: member.stored])]
        if len(data) != member.stored or (check and payload_check([data]) != member.check):
            raise DamagedData(
                f"object {member.id.hex()[:10]} in pack {pack} (byte {at}) does not match its "
                "checksum",
                hint="run 'mvc fsck' to list the affected versions",
            )
        return data

    def part(self, pack: int, at: int, room: memoryview) -> memoryview:
        """Reads the bytes of a pack from ``at`` on into ``room``. Returns the filled part."""
        return room[: self._file(pack).read_into(at, room)]

    def forget(self) -> None:
        """Clears the caches, because a pack may be deleted, and its number may be used again."""
        self.headers.clear()
        self._open = {}  # each file is closed with its last reference

    def close(self) -> None:
        handles, self._open = self._open, {}
        for handle in handles.values():
            handle.close()


class _ReaderAhead(PackReader):
    """Reads ahead in the packs of another reader, one pack at a time."""

    _cached = 16

    def __init__(self, packs: PackReader) -> None:
        super().__init__(packs._fs, packs._folder)
        self._packs = packs
        self._current: tuple[int, Any] = -1, None

    def _file(self, pack: int) -> Any:
        if pack != self._current[0]:
            self._current = pack, self._packs._file(pack).ahead()
        return self._current[1]


class RecordReader:
    """Reads the records that each journal entry published.

    ``damage``: the error for the last damaged header that was read.
    """

    def __init__(
        self,
        packs: PackReader,
        journal: JournalReader,
        report: Callable[[DamagedData], None] | None = None,
    ) -> None:
        """With ``report``, calls ``report`` with each error, and does not set ``damage``."""
        self.damage: DamagedData | None = None
        self._report = report or self._note
        self._packs = packs
        self._journal = journal
        self._cache: dict[int, EntryRecords] = {}

    def of_entry(self, offset: int) -> EntryRecords:
        """The undamaged records of the entry at byte ``offset``. Damaged records are skipped."""
        records = self._cache.get(offset)
        if records is None:
            records = self.of(self._journal.entry(offset).entry)
            if len(self._cache) > CACHED_ENTRIES:
                self._cache.clear()
            self._cache[offset] = records
        return records

    def of(self, entry: Entry) -> EntryRecords:
        """As ``of_entry``, without the cache."""
        return EntryRecords(
            (region.pack, at, header)
            for region in entry.regions
            for at, header in self._packs.sound_records(region, self._report)
        )

    def ahead(self) -> RecordReader:
        """A reader for one pass over many entries in order, with the same ``report``."""
        return RecordReader(self._packs.ahead(), self._journal, self._report)

    def forget(self) -> None:
        self._cache.clear()
        self._packs.forget()

    def _note(self, damage: DamagedData) -> None:
        self.damage = damage
