"""Reads the journal: a single entry, or all entries in order. Detects a replaced journal file.

The journal has one entry for each operation. The module ``frames`` decodes entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mvc.errors import DamagedData
from mvc.io.files import FileSystem, ReadFile
from mvc.io.handles import ContinuedFile, ReadAhead
from mvc.store.journal.frames import (
    GENESIS,
    Gap,
    Position,
    Recorded,
    frames_behind,
    is_unchanged,
    read_entry,
    scan,
)

JOURNAL = "journal"
CACHED_ENTRIES = 4096
_WINDOW = 1 << 20  # bytes


class EntryList(Sequence[Recorded]):
    """Entries that are read when they are accessed. Only their offsets are in memory.

    The last entry is in memory, too, because it may disappear from the file: if its writer fails,
    the writer removes the entry, and another entry may be written at the same offset.
    """

    def __init__(self, file: ReadFile) -> None:
        self._file = file
        self._offsets = array("Q")
        self._last: Recorded | None = None

    def add(self, recorded: Recorded) -> None:
        self._offsets.append(recorded.offset)
        self._last = recorded

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        offset = self._offsets[i]
        is_last = self._last is not None and offset == self._last.offset
        return self._last if is_last else read_entry(self._file, offset)

    def __iter__(self) -> Iterator[Recorded]:
        source = ReadAhead(self._file)
        size = source.size()
        for offset in self._offsets[:-1]:
            yield read_entry(source, offset, size)
        if self._last is not None:
            yield self._last


class JournalReader:
    """An open journal and the entries that were read from it.

    ``identity``: the checksum of the first entry. ``durable``: how many bytes are known to be
    flushed. ``settled``: whether the file's name is known to be flushed. ``generation``: how
    often a new journal file was opened. ``fixed``: the offset of ``ahead``, or None. If ``fixed``
    is set, new journal files are ignored.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        *,
        ahead: tuple[int, bytes] | None = None,
    ) -> None:
        """``ahead``: an offset, and bytes that are read from this offset on instead of the file."""
        self._fs = fs
        self._path = folder / JOURNAL
        self.fixed = None if ahead is None else ahead[0]
        self.generation = 0
        file = fs.open_read(self._path)
        self._use(file if ahead is None else ContinuedFile(file, *ahead))

    def _use(self, file: ReadFile) -> None:
        first = read_entry(file, 0)
        self._file = file  # the old file is closed with its last reference
        self.identity = first.check
        self.settled = False
        self.durable = 0
        self._entries: dict[int, Recorded] = {0: first}

    def size(self) -> int:
        return self._file.size()

    def entry(self, offset: int) -> Recorded:
        """The entry at byte ``offset``. Raises DamagedData if both of its copies are damaged."""
        recorded = self._entries.get(offset)
        if recorded is None:
            recorded = read_entry(self._file, offset)
            self.remember(recorded)
        return recorded

    def scan(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Yields the entries from ``start`` to the end. ``lost``: see ``frames.scan``."""
        return scan(ReadAhead(self._file), start, lost)

    def remember(self, recorded: Recorded) -> None:
        """Caches an entry that a scan has read."""
        if len(self._entries) > 2 * CACHED_ENTRIES:
            self._entries.clear()
        self._entries[recorded.offset] = recorded

    def entry_list(self) -> EntryList:
        """An empty list for entries. The list reads the file that is open now."""
        return EntryList(self._file)

    def forget(self) -> None:
        self._entries.clear()

    def has(self, recorded: Recorded) -> bool:
        """Whether the file still has an entry. A writer that fails removes its entry."""
        return is_unchanged(self._file, recorded)

    def is_repaired(self, gap: Gap) -> bool:
        """Whether a repair has restored the first entry of the gap."""
        try:
            return read_entry(self._file, gap.start.offset).sequence < gap.after.sequence
        except DamagedData:
            return False

    def leads_to(self, position: Position) -> bool:
        """Whether this journal has an entry with the end and the checksum of ``position``."""
        end = position.offset
        if not end:
            return True
        if self._file.size() < end:
            return False
        if self._file.read(end - 16, 16) == position.chain:
            return True
        # Either the second copy of the entry is damaged, or this is another journal.
        return position.chain in self._file.read(max(0, end - _WINDOW), min(end, _WINDOW))

    def reaches(self, sequence: int) -> bool:
        """Whether the last 1 MiB has an entry with a number of at least ``sequence`` - 1."""
        size = self._file.size()
        data = self._file.read(max(0, size - _WINDOW), min(size, _WINDOW))
        newest = max((frame[1] for _, frame in frames_behind(data, 0)), default=-1)
        return newest + 1 >= sequence

    def mentions(self, text: bytes, start: int, end: int) -> bool:
        """Whether ``text`` occurs in the bytes from ``start`` to ``end``."""
        at = start
        while at < end:
            data = self._file.read(at, min(_WINDOW, end - at))
            if text in data:
                return True
            if len(data) <= len(text):
                return False
            at += len(data) - len(text) + 1
        return False

    def sync(self) -> int | None:
        """Flushes the file and returns its length in bytes. None if the file was replaced."""
        with self._fs.open_write(self._path) as file:
            if file.identity().inode != self._file.identity().inode:
                return None
            end = file.size()
            file.sync()
            return end

    def is_replaced(self) -> bool:
        """Whether another file has the journal's name now."""
        if self.fixed is not None:
            return False
        identity = self._fs.stat(self._path)
        ours = self._file.identity()
        return identity is not None and (identity.inode, identity.device) != (
            ours.inode,
            ours.device,
        )

    def reopen(self) -> None:
        """Opens the new journal that has replaced the open one."""
        self._use(self._fs.open_read(self._path))
        self.generation += 1

    def close(self) -> None:
        self._file.close()
