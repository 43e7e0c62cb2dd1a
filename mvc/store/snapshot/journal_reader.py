"""What journal and packs say, entry by entry; the first storey of a view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from mvc.errors import DamagedData
from mvc.io.buffered import ReadAhead
from mvc.io.files import FileSystem, ReadFile
from mvc.store.journal.frames import GENESIS, Gap, Position, Recorded, read_entry, scan
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import RecordHeader

__all__ = ["INDEX", "JOURNAL", "LOST", "PACKS", "Known", "Placed"]

JOURNAL = "journal"
INDEX = "index.lmdb"
PACKS = "packs"
_CACHED_ENTRIES = 4096
LOST = (
    "versions can still be written elsewhere by their ids ('mvc checkout ID -o DIR'); "
    "'mvc fsck --repair --from BACKUP' takes what is lost from a copy of the journal"
)

Placed = tuple[int, int, RecordHeader]
"""A record: pack number, byte offset, header."""


class Known:
    """An open journal, with the entries and record headers that were read."""

    def __init__(self, fs: FileSystem, folder: Path, *, writable: bool) -> None:
        self.fs = fs
        self.folder = folder
        self.writable = writable
        self.packs = PackReader(fs, folder / PACKS)
        self.damage: DamagedData | None = None
        self._lock = threading.RLock()
        self._journal: ReadFile = fs.open_read(folder / JOURNAL)
        first = read_entry(self._journal, 0)
        self.identity = first.check
        self._entries: dict[int, Recorded] = {0: first}
        self._records: dict[int, list[Placed]] = {}
        self.position = GENESIS  # up to where the journal is known
        self.tip: Recorded | None = None  # the last entry that no index has
        self.gaps: list[Gap] = []  # entries behind the index that are lost, as far as known

    def entry(self, offset: int) -> Recorded:
        """The journal entry at ``offset``."""
        found = self._entries.get(offset)
        if found is None:
            found = read_entry(self._journal, offset)
            if len(self._entries) > _CACHED_ENTRIES:
                self._entries.clear()
            self._entries[offset] = found
        return found

    def entries(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Every entry that the view knows, from ``start`` on, by default the first one.

        Raises DamagedData where one is lost; with ``lost`` it tells of it and goes on.
        """
        end = self.position.offset
        if start.offset >= end:
            return iter(())  # the last entry's second copy may be cut off: the file ends before
        return takewhile(lambda recorded: recorded.offset < end, self._scan(start, lost))

    def _scan(
        self, start: Position, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        return scan(ReadAhead(self._journal), start, lost)

    def check_gaps(self, offset: int, what: str) -> None:
        """DamagedData if entries behind ``offset`` are lost, which may change ``what``."""
        behind = [gap for gap in self.gaps if gap.start.offset > offset]
        if behind:
            raise DamagedData(
                f"it is not known {what}: {behind[-1]} is lost, which may have changed it",
                hint=LOST,
            )

    def check_whole(self) -> None:
        """DamagedData if entries are known to be lost: nothing is to be built on the rest."""
        if self.gaps:
            raise DamagedData(
                f"nothing can be written: {self.gaps[0]} is lost, and what is written now "
                "may contradict it",
                hint=LOST,
            )

    def _remember(self, recorded: Recorded) -> None:
        if len(self._entries) > 2 * _CACHED_ENTRIES:
            self._entries.clear()
        self._entries[recorded.offset] = recorded

    def records(self, offset: int) -> list[Placed]:
        """The sound records that an entry made part of the repository.

        A damaged one hides no other; ``damage`` is the last that was met.
        """
        found = self._records.get(offset)
        if found is None:
            found = [
                (region.pack, at, header)
                for region in self.entry(offset).entry.regions
                for at, header in self.packs.sound_records(region, self._note)
            ]
            if len(self._records) > _CACHED_ENTRIES:
                self._records.clear()
            self._records[offset] = found
        return found

    def _note(self, damage: DamagedData) -> None:
        self.damage = damage
