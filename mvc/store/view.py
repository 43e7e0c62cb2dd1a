"""A view: what the repository holds at one moment, index and journal tail together.

The index covers the journal up to some entry; the entries behind it are kept as
sorted keys in memory. Every question is one ordered look-up over both. ``refresh``
moves the view to the journal's present end. A damaged index is remade from the
journal, or done without where the folder cannot be written.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from mvc.errors import DamagedData, HistoryMissing, MvcError, StorageFull
from mvc.io.files import FileSystem, ReadFile
from mvc.limits import INDEX_BATCH
from mvc.store import environments, keys
from mvc.store.ahead import ReadAhead
from mvc.store.index import Index, Meta
from mvc.store.journal import (
    GENESIS,
    Position,
    Recorded,
    frames_behind,
    read_entry,
    scan,
    stands,
)
from mvc.store.packs import PackReader
from mvc.store.records import RecordHeader
from mvc.store.runs import RunReader
from mvc.store.witness import read_witness

__all__ = ["JOURNAL", "Placed", "View"]

JOURNAL = "journal"
INDEX = "index.lmdb"
PACKS = "packs"
_REBUILD_BATCH = 50_000
_FAR = 4 << 20  # bytes of the journal that nobody reads into memory at every opening
_END = 1 << 20
_BUILDING = "building"  # whose lock is held by the process that indexes for all
_WAIT_SECONDS = 300.0
_CACHED_ENTRIES = 4096
_FEW = 64
_T = TypeVar("_T")

Placed = tuple[int, int, RecordHeader]
"""A record: pack number, byte offset, header."""


class View:
    """Reads a repository's folder. Safe across threads; one per process."""

    def __init__(
        self, fs: FileSystem, folder: Path, *, writable: bool, replaced_before: bool = False
    ) -> None:
        self.fs = fs
        self.folder = folder
        self.writable = writable
        self.packs = PackReader(fs, folder / PACKS)
        self.rebuilt = False
        self.damage: DamagedData | None = None
        self._lock = threading.RLock()
        self._journal: ReadFile = fs.open_read(folder / JOURNAL)
        first = read_entry(self._journal, 0)
        self.identity = first.check
        self._entries: dict[int, Recorded] = {0: first}
        self._records: dict[int, list[Placed]] = {}
        self._tail: list[bytes] = []
        self._unread: list[int] = []  # entries of the tail whose records are not in it yet
        self.position = GENESIS
        self.tip: Recorded | None = None  # of the tail
        self.durable = 0  # bytes of the journal that are known to be flushed
        self.generation = 0  # how often the journal was found replaced
        self.settled = not replaced_before  # whether the journal's name is known to be durable
        self._superseded: Meta | None = None  # what the index holds of a replaced journal
        self._index: Index | None = None
        self._meta = Meta(self.identity, GENESIS, (), 0)
        self._runs: list[RunReader] = []
        try:
            reached = read_witness(fs, folder, self.identity)  # before the journal is read
            self._open_index()
            self._index_far_end()
            self.refresh()
            if reached is not None and reached.sequence > self.position.sequence:
                raise _missing(self.position, reached)
        except BaseException:
            self.close()
            raise

    # -- what is there ---------------------------------------------------------------

    def entry(self, offset: int) -> Recorded:
        """The journal entry at ``offset``."""
        found = self._entries.get(offset)
        if found is None:
            found = read_entry(self._journal, offset)
            if len(self._entries) > _CACHED_ENTRIES:
                self._entries.clear()
            self._entries[offset] = found
        return found

    def entries(self, start: Position = GENESIS) -> Iterator[Recorded]:
        """Every entry that the view knows, from ``start`` on, by default the first one."""
        end = self.position.offset
        return takewhile(lambda recorded: recorded.offset < end, self._scan(start))

    def _scan(self, start: Position) -> Iterator[Recorded]:
        return scan(ReadAhead(self._journal), start)

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

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The greatest key with low <= key < high."""

        def look() -> bytes | None:
            self._read_tail(low)
            found = [key for run in self._runs if (key := run.last(low, high)) is not None]
            at = bisect_left(self._tail, high) - 1
            if at >= 0 and self._tail[at] >= low:
                found.append(self._tail[at])
            return max(found, default=None)

        return self._guarded(look)

    def scan(self, low: bytes, high: bytes) -> list[bytes]:
        """Keys with low <= key < high, ascending."""

        def look() -> list[bytes]:
            self._read_tail(low)
            tail = self._tail[bisect_left(self._tail, low) : bisect_left(self._tail, high)]
            found = merge(tail, *(run.scan(low, high) for run in self._runs))
            return list(dict.fromkeys(found))

        return self._guarded(look)

    def under(self, prefix: bytes) -> list[bytes]:
        return self.scan(prefix, keys.after(prefix))

    def newest(self, prefix: bytes) -> Recorded | None:
        """The newest entry with a key under ``prefix`` (prefixes whose next part is the offset)."""

        def look() -> Recorded | None:
            key = self.last(prefix, keys.after(prefix))
            return None if key is None else self.entry(keys.offset_of(key))

        return self.steady(look)

    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with this number, if there is one."""
        return self.newest(keys.OPERATION + keys.number(sequence))

    def forgotten(self, commit: bytes) -> Recorded | None:
        """The entry that forgot a commit's state, if one did."""

        def look() -> Recorded | None:
            for key in reversed(self.under(keys.FORGOTTEN + commit[:8])):
                recorded = self.entry(keys.offset_of(key))
                if any(each.commit == commit for each in recorded.entry.forgotten):
                    return recorded
            return None

        return self.steady(look)

    def _guarded(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up; a damaged or outrun index is renewed once."""
        with self._lock:
            try:
                return look()
            except DamagedData:
                self._reload()
            return look()

    # -- keeping up ------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what other processes, or this one, have appended since.

        If the journal was replaced (``generation`` goes up), everything is looked up anew.
        """
        with self._lock:
            while True:
                if self._is_replaced():
                    self._reopen()
                self._catch_up()
                known = self._superseded
                if known is None or known.position.sequence <= self.position.sequence:
                    return
                if not self._is_replaced():
                    raise _missing(self.position, known.position)

    def steady(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up of several steps; again if the journal is replaced under it."""
        while True:
            with self._lock:
                generation = self.generation
                try:
                    found = look()
                except DamagedData:
                    self.refresh()
                    if self.generation == generation:
                        raise
                else:
                    if self.generation == generation:
                        return found

    def _is_replaced(self) -> bool:
        there = self.fs.stat(self.folder / JOURNAL)
        ours = self._journal.identity()
        return there is not None and (there.inode, there.device) != (ours.inode, ours.device)

    def _reopen(self) -> None:
        """Maintenance has put a new journal in the old one's place."""
        journal = self.fs.open_read(self.folder / JOURNAL)
        first = read_entry(journal, 0)
        self._journal = journal  # the old one is closed when the last reader lets go
        self.identity = first.check
        self.generation += 1
        self.settled = False
        self.durable = 0
        self._entries = {0: first}
        self._records = {}
        self.damage = None
        self.packs.forget()
        if self._index is None:
            self._without_index()
            return
        try:
            self._use(self._index.meta(self.identity))
        except DamagedData:
            self._without_index()
        self._index_far_end()

    def _catch_up(self) -> None:
        if self.tip is not None:
            if not stands(self._journal, self.tip):
                self._go_back(self.tip)
            elif self._journal.size() < self.position.offset:
                return  # the newest entry's second copy was cut off, or is being written
        fresh: list[bytes] = []
        for recorded in self._scan(self.position):
            self._remember(recorded)
            fresh.extend(keys.entry_keys(recorded))
            self._unread.append(recorded.offset)
            self.position = recorded.after
            self.tip = recorded
        self._tail_takes(fresh)

    def _tail_takes(self, fresh: list[bytes]) -> None:
        """Few keys go where they belong; for many, sorting runs that are in order is faster."""
        if len(fresh) < _FEW:
            for key in fresh:
                insort(self._tail, key)
        else:
            self._tail.extend(fresh)
            self._tail.sort()

    def _go_back(self, newest: Recorded) -> None:
        """What was read last was taken back by its writer, who failed: begin at the index."""
        if newest.after.offset <= self.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint="restore .mvc/journal from a copy",
            )
        self._entries.clear()
        self._records.clear()
        self.packs.forget()
        if self._index is None:
            self._without_index()
        else:
            self._use(self._meta)

    def _read_tail(self, low: bytes) -> None:
        """Adds the objects of the tail's entries, once somebody asks for objects."""
        if low[:1] not in {keys.BLOB, keys.EDGE} or not self._unread:
            return
        # Oldest first; where many wait, what is known of their objects needs no look-up.
        known: dict[bytes, int] | None = {} if len(self._unread) > 1 else None
        fresh: list[bytes] = []
        for offset in self._unread:
            fresh.extend(self._object_keys(offset, known))
        self._unread.clear()
        self._tail_takes(fresh)

    def _object_keys(self, offset: int, known: dict[bytes, int] | None) -> Iterator[bytes]:
        """Blob and edge keys of an entry; ``known`` has the objects not looked up yet."""
        headers = [header for _, _, header in self.records(offset)]
        yield from keys.blob_keys(offset, headers)
        bases = {base for header in headers for base in header.by_base}
        if known is not None:
            for header in headers:
                for id_ in header.by_id:
                    known.setdefault(id_[:8], offset)
        found = set()
        for base in bases:
            at = known.get(base) if known is not None else None
            if at is None:
                at = self._first_home(base)
                if at is not None and known is not None:
                    known[base] = at
            found.add(at)
        for at in found:
            if at is not None and at != offset:
                yield keys.edge_key(at, offset)

    def _first_home(self, base: bytes) -> int | None:
        low = keys.BLOB + base
        high = keys.after(low)
        places = [next(run.scan(low, high), None) for run in self._runs]
        at = bisect_left(self._tail, low)
        places.append(self._tail[at] if at < len(self._tail) and self._tail[at] < high else None)
        homes = [keys.offset_of(key) for key in places if key is not None]
        return min(homes, default=None)

    # -- the index -------------------------------------------------------------------

    def _open_index(self) -> None:
        path = self.folder / INDEX
        try:
            self._index = environments.lend(self.fs, path, writable=self.writable)
            self._use(self._index.meta(self.identity))
        except StorageFull:
            self._without_index()  # questions are answered on a full disk, too
        except DamagedData:
            self._without_index()
            if self.writable:
                self._remake()

    def _use(self, meta: Meta) -> None:
        """Stands on what ``meta`` says is indexed; the tail begins there."""
        assert self._index is not None
        self._superseded = None
        if not self._is_ours(meta.position):
            self._superseded = meta
            meta = Meta(self.identity, GENESIS, (), meta.next_run)
        self._runs = self._index.readers(meta)
        self._meta = meta
        self.position = meta.position
        self.tip = None
        self.durable = max(self.durable, meta.position.offset)
        self._tail.clear()
        self._unread.clear()

    def _is_ours(self, position: Position) -> bool:
        """Whether what was indexed up to there is the beginning of this journal."""
        end = position.offset
        if not end:
            return True
        if self._journal.size() < end:
            return False
        if self._journal.read(end - 16, 16) == position.chain:
            return True
        # Else damage in the last copy, or another journal.
        return position.chain in self._journal.read(max(0, end - (1 << 20)), min(end, 1 << 20))

    def _without_index(self) -> None:
        environments.forget(self.folder / INDEX)
        self._index = None
        self._superseded = None
        self._runs = []
        self._meta = Meta(self.identity, GENESIS, (), 0)
        self.position = GENESIS
        self.tip = None
        self._tail.clear()
        self._unread.clear()

    def _reload(self) -> None:
        """Another process may have merged runs under us; else the index is damaged."""
        try:
            if self._index is None:
                raise DamagedData("there is no index")
            meta = self._index.meta(self.identity)
            if meta == self._meta:
                raise DamagedData("the index is damaged")
            self._use(meta)
        except DamagedData:
            self._without_index()
            if self.writable:
                self._remake()
        self.refresh()

    def _remake(self) -> None:
        """A new index from journal and packs."""
        path = self.folder / INDEX
        for name in self.fs.list(path) if self.fs.stat(path) else []:
            if name == "data.mdb":
                self.fs.unlink(path / name, missing_ok=True)
        self.rebuilt = True
        try:
            self._index = environments.lend(self.fs, path, writable=True)
        except (DamagedData, StorageFull):
            return  # the look-ups work without, from memory
        self._index_far_end()
        self.refresh()

    def rebuild_index(self) -> None:
        """Throws the index away and makes a new one; the folder must be writable."""
        with self._lock:
            self._without_index()
            self._remake()
            self.index_tail(force=True)

    def index_tail(self, *, force: bool = False) -> None:
        """Moves the tail into the index once it is long enough to be worth it.

        The journal is made durable first: the index must never know of an entry that a
        power loss could still take.
        """
        with self._lock:
            if self._index is None or not self.writable or not self.position.sequence:
                return
            waiting = self.position.sequence - self._meta.position.sequence
            if not waiting or (waiting < INDEX_BATCH and not force):
                return
            end = self._durable_end()
            if end is None:
                return  # replaced by now; the next look at it begins anew
            try:
                self._index_entries(end)
                self.refresh()
            except DamagedData:
                self._reload()

    def _durable_end(self) -> int | None:
        """Flushes the journal and returns how far it surely reaches; None if it was replaced."""
        with self.fs.open_write(self.folder / JOURNAL) as file:
            if file.identity().inode != self._journal.identity().inode:
                return None
            end = file.size()
            file.sync()
            return end

    def _index_far_end(self) -> None:
        """Indexes a long tail at once, without reading it into memory first.

        Where the index was lost, or maintenance has replaced the journal, one process does
        it and all others wait for it. Whatever fails, the look-ups work from memory.
        """
        if self._index is None or not self.writable or not self._is_far_behind():
            return
        try:
            with self.fs.lock(self.folder / INDEX / _BUILDING, timeout=_WAIT_SECONDS):
                self._use(self._index.meta(self.identity))  # somebody may just have done it
                if self._is_far_behind() and self._reaches(self._superseded):
                    end = self._durable_end()
                    if end is not None:
                        self._index_entries(end)
        except MvcError:
            try:
                self._use(self._index.meta(self.identity))
            except DamagedData:
                self._without_index()

    def _is_far_behind(self) -> bool:
        return self._journal.size() - self.position.offset >= _FAR

    def _reaches(self, known: Meta | None) -> bool:
        """Whether the journal is as long as one that was indexed; else history is missing."""
        if known is None:
            return True
        size = self._journal.size()
        data = self._journal.read(max(0, size - _END), min(size, _END))
        newest = max((frame[1] for _, frame in frames_behind(data, 0)), default=-1)
        return newest + 1 >= known.position.sequence

    def _index_entries(self, end: int) -> None:
        """Indexes the whole entries in the journal's first ``end`` bytes, which are durable."""
        assert self._index is not None
        known: dict[bytes, int] = {}
        batch: list[bytes] = []
        count, last = 0, self._meta.position
        for recorded in self._scan(last):
            if recorded.after.offset > end:
                break
            self._remember(recorded)
            batch.extend(keys.entry_keys(recorded))
            batch.extend(self._object_keys(recorded.offset, known))
            count, last = count + 1, recorded.after
            if count % _REBUILD_BATCH == 0:
                if not self._extend(batch, last):
                    return
                batch = []
                known.clear()  # what it had is in the index
        if batch:
            self._extend(batch, last)

    def _extend(self, batch: Iterable[bytes], position: Position) -> bool:
        """Adds to the index; false if another process was there first."""
        assert self._index is not None
        made = self._index.extend(self._meta, batch, position, self._superseded)
        self._use(made)
        return made.position == position

    def close(self) -> None:
        if self._index is not None:
            environments.release(self.folder / INDEX, self._index)
            self._index = None
        self.packs.close()
        self._journal.close()


def _missing(there: Position, reached: Position) -> HistoryMissing:
    return HistoryMissing(
        f"the journal ends before operation {there.sequence} (byte {there.offset}), but "
        f"operations up to {reached.sequence - 1} were acknowledged",
        hint="restore .mvc/journal from a copy, or accept the loss with 'mvc fsck --rebuild-index'",
    )
