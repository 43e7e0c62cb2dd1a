"""Finds journal entries by keys, such as the name of a ref, in the index and in the *tail*.

The index is on disk. It has the keys of the journal's entries up to some entry, in a few sorted
lists, the *runs* (``runs``). The tail is a sorted list in memory, with the keys of all later
entries. A damaged index is rebuilt from the journal. If there is no index, and the folder cannot be
written, the tail has the keys of all entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path

from msgspec import Struct

from mvc.errors import DamagedData, MvcError, StorageFull
from mvc.io.files import FileLock, FileSystem
from mvc.io.os_errors import was_missing
from mvc.store.index import folder as index_folder
from mvc.store.index import keys
from mvc.store.index.folder import Lent
from mvc.store.index.index import Meta
from mvc.store.index.runs import RunReader
from mvc.store.journal.frames import GENESIS, Gap, Position, Recorded
from mvc.store.journal.reader import JournalReader
from mvc.store.packs.reader import Placed, RecordReader

INDEX = "index.lmdb"
_WAIT_SECONDS = 300.0
_TRIES = 5
_FEW = 64


class IndexThresholds(Struct, frozen=True):
    """When the tail is added to the index.

    ``tail``: the number of entries in the tail at which they are indexed. ``far``: if so many bytes
    of the journal are not indexed, their keys are added to the index without using the tail, in
    batches of ``batch`` entries.
    """

    tail: int
    far: int = 4 << 20
    batch: int = 50_000


class IndexReader:
    """Searches in the runs of the index and in the tail.

    ``position``: end of the newest entry in index and tail. ``tip``: this entry, if it is in the
    tail. ``gaps``: lost entries after the end of the index. ``rebuilt``: whether a damaged index
    was replaced.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        journal: JournalReader,
        records: RecordReader,
        *,
        writable: bool,
        thresholds: IndexThresholds,
    ) -> None:
        self._fs = fs
        self._folder = folder / INDEX
        self._journal = journal
        self._records = records
        self._writable = writable
        self._thresholds = thresholds
        self.position = GENESIS
        self.tip: Recorded | None = None
        self.gaps: list[Gap] = []
        self.rebuilt = False
        self.superseded: Meta | None = None  # what the index has, if its journal was replaced
        self.lent: Lent | None = None  # the open index, if there is one
        self._meta = Meta(journal.identity, GENESIS, ())
        self._runs: list[RunReader] = []
        self._tail: list[bytes] = []
        self._unread: list[int] = []  # entries whose objects have no keys in the tail yet

    @property
    def indexed(self) -> Position:
        """The end of the last entry that the index covers."""
        return self._meta.position

    # -- searches ----------------------------------------------------------------------

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The greatest key with low <= key < high. Raises DamagedData if the index is damaged."""
        self._read_tail(low)
        candidates = [key for run in self._runs if (key := run.last(low, high)) is not None]
        at = bisect_left(self._tail, high) - 1
        if at >= 0 and self._tail[at] >= low:
            candidates.append(self._tail[at])
        return max(candidates, default=None)

    def first(self, low: bytes, high: bytes) -> bytes | None:
        """The least key with low <= key < high. Raises DamagedData if the index is damaged."""
        self._read_tail(low)
        return self._least(low, high)

    def _least(self, low: bytes, high: bytes) -> bytes | None:
        candidates = [
            key for run in self._runs if (key := next(run.scan(low, high), None)) is not None
        ]
        at = bisect_left(self._tail, low)
        if at < len(self._tail) and self._tail[at] < high:
            candidates.append(self._tail[at])
        return min(candidates, default=None)

    def scan(self, low: bytes, high: bytes) -> dict[bytes, None]:
        """Keys with low <= key < high, ascending. Raises DamagedData if the index is damaged."""
        self._read_tail(low)
        tail = self._tail[bisect_left(self._tail, low) : bisect_left(self._tail, high)]
        ranges = [
            part for part in (tail, *(list(run.scan(low, high)) for run in self._runs)) if part
        ]
        return dict.fromkeys(merge(*ranges) if len(ranges) > 1 else ranges[0] if ranges else ())

    def _first_entry(self, base: bytes) -> int | None:
        """Offset of the first entry with an object whose id begins with ``base``."""
        low = keys.BLOB + base
        key = self._least(low, keys.after(low))
        return None if key is None else keys.offset_of(key)

    # -- the tail ----------------------------------------------------------------------

    def read_on(self) -> None:
        """Adds the keys of entries after ``position`` to the tail, and lost entries to ``gaps``."""
        fresh: list[bytes] = []
        for recorded in self._journal.scan(self.position, self.gaps.append):
            self._journal.remember(recorded)
            fresh.extend(keys.entry_keys(recorded))
            self._unread.append(recorded.offset)
            self.position = recorded.after
            self.tip = recorded
        self._add_to_tail(fresh)

    def _add_to_tail(self, fresh: list[bytes]) -> None:
        """Inserts a few keys one by one. Many keys are appended and sorted, which is faster."""
        if len(fresh) < _FEW:
            for key in fresh:
                insort(self._tail, key)
        else:
            self._tail.extend(fresh)
            self._tail.sort()

    def _read_tail(self, low: bytes) -> None:
        """Before a search for objects, adds the keys of objects to the tail.

        These keys are added late, because they must be read from the packs.
        """
        if low[:1] not in {keys.BLOB, keys.EDGE} or not self._unread:
            return
        # ``known``: the objects of earlier entries in this loop.
        known: dict[bytes, int] | None = {} if len(self._unread) > 1 else None
        fresh = [
            key
            for offset in self._unread
            for key in self._object_keys(offset, self._records.of_entry(offset), known)
        ]
        self._unread.clear()
        self._add_to_tail(fresh)

    def _object_keys(
        self, offset: int, records: Iterable[Placed], known: dict[bytes, int] | None
    ) -> Iterator[bytes]:
        """The keys of an entry's objects and deltas.

        ``known``: maps the first bytes of objects' ids to the first entry with the object. New
        objects are added.
        """
        members = [member for _, _, header in records for member in header.members]
        objects = {member.id[: keys.ID_BYTES] for member in members}
        yield from keys.blob_keys(objects, offset)
        bases = {m.base for m in members if m.base and not m.coding.forward_only}
        if known is not None:
            for prefix in objects:
                known.setdefault(prefix, offset)
        homes = set()
        for base in bases:
            at = known.get(base) if known is not None else None
            if at is None:
                at = self._first_entry(base)
                if at is not None and known is not None:
                    known[base] = at
            homes.add(at)
        for at in homes:
            if at is not None and at != offset:
                yield keys.edge_key(at, offset)

    # -- opening and replacing the index -------------------------------------------------

    def open(self) -> None:
        """Opens the current index or creates one. If this fails, searches use only the tail."""
        try:
            self.lent = index_folder.lend(self._fs, self._folder, writable=self._writable)
            self._use(self.lent.index.meta(self._journal.identity))
        except StorageFull:
            self._without_index()  # searches must work even on a full disk
        except DamagedData:
            self.renew()

    def restart(self) -> None:
        """Empties the tail. ``read_on`` fills it again from the end of the index."""
        if self.lent is None:
            self._without_index()
        else:
            self._use(self._meta)

    def follow_journal(self) -> None:
        """Call it after a new journal has replaced the old journal: updates index and tail."""
        if self.lent is None:
            self._without_index()
            return
        try:
            self._use(self.lent.index.meta(self._journal.identity))
        except DamagedData:
            self.renew()
        self.index_far_end()

    def follow_index(self) -> None:
        """Switches to the current index if another process has replaced it."""
        if self.lent is not None and not self.lent.is_in_place():
            self._without_index()
            self.open()
            self.index_far_end()

    def use_newer(self) -> bool:
        """Switches to a newer state of the same index. Returns False if there is no newer state.

        Another process may have merged and deleted the runs that this process was going to read.
        """
        with suppress(DamagedData):
            meta = None if self.lent is None else self.lent.index.meta(self._journal.identity)
            if meta not in (None, self._meta):
                self._use(meta)
                return True
        return False

    def renew(self) -> None:
        """Replaces a damaged or missing index. If this fails, searches use only the tail.

        If another process has replaced the index meanwhile, the index of that process is used.
        """
        damaged = self.lent
        self._without_index()
        if not self._writable:
            return
        self.rebuilt |= index_folder.current(self._fs, self._folder) is not None
        try:
            self._fs.make_dir(self._folder, exist_ok=True)
            with self._building():
                if not self._use_renewed(damaged):
                    self._build()
        except MvcError:
            self._without_index()  # searches then use only the tail

    def rebuild(self) -> None:
        """Replaces the index, damaged or not. Raises MvcError if the folder cannot be written.

        Tries again if another process has deleted the new index meanwhile.
        """
        self.rebuilt = True
        for left in reversed(range(_TRIES)):
            self._without_index()
            try:
                self._fs.make_dir(self._folder, exist_ok=True)
                with self._building():
                    self._build()
                break
            except MvcError as error:
                self._without_index()
                if not left or not (was_missing(error) or isinstance(error, DamagedData)):
                    raise

    def _use_renewed(self, damaged: Lent | None) -> bool:
        """Opens the current index, unless it is damaged. Returns whether it was opened.

        ``damaged``: an index that is known to be damaged.
        """
        try:
            self.lent = index_folder.lend(self._fs, self._folder, writable=True)
            if damaged is not None and self.lent.is_same_file(damaged):
                raise DamagedData("the index is damaged")
            self._use(self.lent.index.meta(self._journal.identity))
        except DamagedData:
            self._without_index()
            return False
        return True

    def _build(self) -> None:
        """Builds a new index, then makes it the current one. Call it under ``_building``'s lock."""
        self.lent = index_folder.create(self._fs, self._folder)
        self._use(self.lent.index.meta(self._journal.identity))
        self._index_far()
        index_folder.switch(self._fs, self._folder, self.lent.environment)

    def _use(self, meta: Meta) -> None:
        """Uses the runs of the index state ``meta``.

        The tail begins after the last indexed entry.
        """
        assert self.lent is not None
        self.superseded = None
        if not self._journal.leads_to(meta.position):
            self.superseded = meta
            meta = Meta(self._journal.identity, GENESIS, ())
        self._runs = self.lent.index.readers(meta)
        self._journal.durable = max(self._journal.durable, meta.position.offset)
        self._begin_after(meta)

    def _without_index(self) -> None:
        """Closes the index in this reader. Searches use only the tail, from the first entry on."""
        if self.lent is not None:
            self.lent.release()
        self.lent = None
        self.superseded = None
        self._runs = []
        self._begin_after(Meta(self._journal.identity, GENESIS, ()))

    def _begin_after(self, meta: Meta) -> None:
        """Empties the tail and ``gaps``.

        ``read_on`` fills them again, from the end of the index on.
        """
        self._meta = meta
        self.position = meta.position
        self.gaps.clear()
        self.tip = None
        self._tail.clear()
        self._unread.clear()

    def close(self) -> None:
        self._without_index()

    # -- writing the index ---------------------------------------------------------------

    def flushed_end_to_index(self, *, force: bool = False) -> int | None:
        """Flushes the journal. Returns up to which byte to index it; None if nothing is to be done.

        An entry must be durable before it is indexed. Entries after a gap (lost entries) are not
        indexed.
        """
        if self.lent is None or not self._writable or not self.position.sequence or self.gaps:
            return None
        waiting = self.position.sequence - self._meta.position.sequence
        if not waiting or (waiting < self._thresholds.tail and not force):
            return None
        return self._journal.sync()

    def index_far_end(self) -> None:
        """If many bytes of the journal are not indexed, indexes them without using the tail.

        Only one process does this, and other processes wait. If it fails, searches use the tail.
        """
        if self.lent is None or not self._writable or not self._is_far_behind():
            return
        try:
            with self._building():
                # Another process may have indexed while this one waited for the lock.
                self._use(self.lent.index.meta(self._journal.identity))
                self._index_far()
        except MvcError:
            self._fall_back()

    def _building(self) -> FileLock:
        """The lock under which a process builds the index, so that no two processes build it."""
        return self._fs.lock(self._folder / index_folder.BUILDING, timeout=_WAIT_SECONDS)

    def _index_far(self) -> None:
        known = self.superseded
        # If the journal has fewer entries than were indexed, entries are lost. Do not index the
        # journal: a new index would hide the loss.
        if self._is_far_behind() and (
            known is None or self._journal.reaches(known.position.sequence)
        ):
            end = self._journal.sync()
            if end is not None:
                self.index_entries(end)

    def _fall_back(self) -> None:
        """After a failure, uses the present state of the index. Closes a damaged index."""
        try:
            if self.lent is not None:
                self._use(self.lent.index.meta(self._journal.identity))
        except DamagedData:
            self._without_index()

    def _is_far_behind(self) -> bool:
        return self._journal.size() - self.position.offset >= self._thresholds.far

    def index_entries(self, end: int) -> None:
        """Indexes the complete entries in the journal's first ``end`` bytes, which are durable."""
        known: dict[bytes, int] = {}
        records = self._records.ahead()
        batch: list[bytes] = []
        count, last = 0, self._meta.position
        for recorded in self._journal.scan(last):
            torn = recorded.copies < 2 and recorded.after.offset >= end
            if torn or recorded.after.offset > end:
                break  # the next writer can complete this entry only if it is not indexed
            batch.extend(keys.entry_keys(recorded))
            records_ = records.of(recorded.entry)
            batch.extend(self._object_keys(recorded.offset, records_, known))
            count, last = count + 1, recorded.after
            if count % self._thresholds.batch == 0:
                if not self._extend(batch, last):
                    return
                batch = []
                known.clear()  # its objects are in the index now
        if batch:
            self._extend(batch, last)

    def _extend(self, batch: Iterable[bytes], position: Position) -> bool:
        """Adds keys to the index.

        Returns False if another process has extended the index meanwhile.
        """
        assert self.lent is not None
        meta = self.lent.index.extend(self._meta, batch, position, self.superseded)
        self._use(meta)
        return meta.position == position
