"""Reading the journal: single entries, entries in order, and whether the file was replaced.

Which bytes are an entry, and how a damaged one is passed over, is in ``frames``.
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
    read_entry,
    scan,
    stands,
)

JOURNAL = "journal"
CACHED_ENTRIES = 4096
_WINDOW = 1 << 20  # bytes


class EntryList(Sequence[Recorded]):
    """Entries of which only the places are in memory; each is read when it is asked for.

    The last one stays in memory: its writer may still take it back, and then another one takes
    its place in the file.
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

    ``identity`` is the checksum of the first entry, ``durable`` the number of the file's bytes
    that are known to be flushed. ``generation`` counts how often the journal was found replaced;
    ``settled`` says whether the journal's name is known to be durable. ``fixed``: the
    byte up to which the file is read; what others append is not, nor a journal that replaces this.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        *,
        ahead: tuple[int, bytes] | None = None,
    ) -> None:
        """``ahead``: the file is read up to this byte, and these bytes as if they came next."""
        self._fs = fs
        self._path = folder / JOURNAL
        self.fixed = None if ahead is None else ahead[0]
        self.generation = 0
        file = fs.open_read(self._path)
        self._use(file if ahead is None else ContinuedFile(file, *ahead))

    def _use(self, file: ReadFile) -> None:
        first = read_entry(file, 0)
        self._file = file  # an old one is closed when its last reader lets go of it
        self.identity = first.check
        self.settled = False
        self.durable = 0
        self._entries: dict[int, Recorded] = {0: first}

    def size(self) -> int:
        return self._file.size()

    def entry(self, offset: int) -> Recorded:
        """The entry at byte ``offset``; DamagedData if neither of its copies is sound."""
        found = self._entries.get(offset)
        if found is None:
            found = read_entry(self._file, offset)
            self.remember(found)
        return found

    def scan(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Every entry from ``start`` to the end of the file; as ``frames.scan``."""
        return scan(ReadAhead(self._file), start, lost)

    def remember(self, recorded: Recorded) -> None:
        """Caches an entry that a scan has read."""
        if len(self._entries) > 2 * CACHED_ENTRIES:
            self._entries.clear()
        self._entries[recorded.offset] = recorded

    def entry_list(self) -> EntryList:
        """An empty list for entries of the file that is open now, also after it was replaced."""
        return EntryList(self._file)

    def forget(self) -> None:
        self._entries.clear()

    def has(self, recorded: Recorded) -> bool:
        """Whether an entry still stands where it was read: a writer that fails removes its own."""
        return stands(self._file, recorded)

    def is_repaired(self, gap: Gap) -> bool:
        """Whether a repair has put back an entry where one was lost."""
        try:
            return read_entry(self._file, gap.start.offset).sequence < gap.after.sequence
        except DamagedData:
            return False

    def leads_to(self, position: Position) -> bool:
        """Whether ``position`` is one of this journal, by its chain; False for another journal."""
        end = position.offset
        if not end:
            return True
        if self._file.size() < end:
            return False
        if self._file.read(end - 16, 16) == position.chain:
            return True
        # Either the last copy is damaged, or this is another journal.
        return position.chain in self._file.read(max(0, end - _WINDOW), min(end, _WINDOW))

    def reaches(self, sequence: int) -> bool:
        """Whether entry ``sequence`` - 1 or a later one stands in the last 1 MiB."""
        size = self._file.size()
        data = self._file.read(max(0, size - _WINDOW), min(size, _WINDOW))
        newest = max((frame[1] for _, frame in frames_behind(data, 0)), default=-1)
        return newest + 1 >= sequence

    def mentions(self, text: bytes, start: int, end: int) -> bool:
        """Whether ``text`` occurs in bytes ``start`` to ``end``. Nothing is parsed."""
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
        """Flushes the file and returns its length in bytes; None if it was replaced."""
        with self._fs.open_write(self._path) as file:
            if file.identity().inode != self._file.identity().inode:
                return None
            end = file.size()
            file.sync()
            return end

    def is_replaced(self) -> bool:
        """Whether another file has the journal's name by now."""
        if self.fixed is not None:
            return False
        there = self._fs.stat(self._path)
        ours = self._file.identity()
        return there is not None and (there.inode, there.device) != (ours.inode, ours.device)

    def reopen(self) -> None:
        """Opens the journal that maintenance has put in the old one's place."""
        self._use(self._fs.open_read(self._path))
        self.generation += 1

    def close(self) -> None:
        self._file.close()
