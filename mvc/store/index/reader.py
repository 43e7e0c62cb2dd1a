"""Look-ups in the index and its *tail*: the keys of entries that are not indexed yet.

The index covers the journal up to some entry; the keys of the entries after it are kept
sorted in memory. A look-up asks both. A damaged index is rebuilt from the journal; where the
folder cannot be written, the tail then begins at the first entry.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import overload

from msgspec import Struct

from mvc.errors import DamagedData, MvcError
from mvc.io.files import FileLock, FileSystem
from mvc.io.os_errors import was_missing
from mvc.store.index import keys
from mvc.store.index.index import BUILDING, Index, Meta
from mvc.store.index.runs import RunReader
from mvc.store.journal.frames import GENESIS, Gap, Position, Recorded
from mvc.store.journal.reader import JournalReader
from mvc.store.packs.reader import Placed, RecordReader

INDEX = "index"
_WAIT_SECONDS = 300.0
_TRIES = 5
_FEW = 64


class IndexThresholds(Struct, frozen=True):
    """When the tail is moved into the index.

    ``tail``: entries that may wait in memory; ``far``: bytes of the journal that are indexed
    at once, without holding them in memory; ``batch``: entries that are then written together.
    """

    tail: int
    far: int = 4 << 20
    batch: int = 50_000


class IndexReader:
    """The runs of the index, and the tail's keys in memory.

    ``position`` is the end of the last entry that index and tail know, ``tip`` that entry if it
    is in the tail. ``gaps`` are the lost entries after the indexed ones. ``rebuilt`` says
    whether a damaged index was replaced.
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
        self.superseded: Position | None = None  # where the index ends, of a replaced journal
        self._index = Index(fs, self._folder)
        self._meta = Meta(journal.identity, GENESIS, ())
        self._runs: list[RunReader] = []
        self._tail: list[bytes] = []
        self._unread: list[int] = []  # entries of the tail whose records are not in it yet

    @property
    def indexed(self) -> Position:
        """The end of the last entry that the index covers."""
        return self._meta.position

    # -- look-ups ----------------------------------------------------------------------

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The greatest key with low <= key < high; DamagedData if the index is damaged."""
        self._read_tail(low)
        found = [key for run in self._runs if (key := run.last(low, high)) is not None]
        at = bisect_left(self._tail, high) - 1
        if at >= 0 and self._tail[at] >= low:
            found.append(self._tail[at])
        return max(found, default=None)

    def first(self, low: bytes, high: bytes) -> bytes | None:
        """The least key with low <= key < high; DamagedData if the index is damaged."""
        self._read_tail(low)
        return self._least(low, high)

    def _least(self, low: bytes, high: bytes) -> bytes | None:
        found = [key for run in self._runs if (key := next(run.scan(low, high), None)) is not None]
        at = bisect_left(self._tail, low)
        if at < len(self._tail) and self._tail[at] < high:
            found.append(self._tail[at])
        return min(found, default=None)

    def scan(self, low: bytes, high: bytes) -> dict[bytes, None]:
        """Keys with low <= key < high, ascending; DamagedData if the index is damaged."""
        self._read_tail(low)
        tail = self._tail[bisect_left(self._tail, low) : bisect_left(self._tail, high)]
        found = [tail, *(list(run.scan(low, high)) for run in self._runs)]
        return dict.fromkeys(merge(*filter(None, found)))

    def _first_entry(self, base: bytes) -> int | None:
        """Offset of the first entry that holds an object whose id begins with ``base``."""
        low = keys.BLOB + base
        key = self._least(low, keys.after(low))
        return None if key is None else keys.offset_of(key)

    # -- the tail ----------------------------------------------------------------------

    def read_on(self) -> None:
        """Takes the entries after ``position`` into the tail; notes lost ones as gaps."""
        fresh: list[bytes] = []
        for recorded in self._journal.scan(self.position, self.gaps.append):
            self._journal.remember(recorded)
            fresh.extend(keys.entry_keys(recorded))
            self._unread.append(recorded.offset)
            self.position = recorded.after
            self.tip = recorded
        self._add_to_tail(fresh)

    def _add_to_tail(self, fresh: list[bytes]) -> None:
        """Inserts a few keys one by one; for many, sorting is faster."""
        if len(fresh) < _FEW:
            for key in fresh:
                insort(self._tail, key)
        else:
            self._tail.extend(fresh)
            self._tail.sort()

    def _read_tail(self, low: bytes) -> None:
        """Adds the objects of the tail's entries once a look-up asks for objects."""
        if low[:1] not in {keys.BLOB, keys.EDGE} or not self._unread:
            return
        # Oldest first. Where many wait, ``known`` saves the look-ups of their own objects.
        known: dict[bytes, int] | None = {} if len(self._unread) > 1 else None
        fresh: list[bytes] = []
        for offset in self._unread:
            fresh.extend(self._object_keys(offset, self._records.of_entry(offset), known))
        self._unread.clear()
        self._add_to_tail(fresh)

    def _object_keys(
        self, offset: int, records: Iterable[Placed], known: dict[bytes, int] | None
    ) -> Iterator[bytes]:
        """Blob and edge keys of an entry; ``known`` has the objects of entries not indexed yet."""
        members = [member for _, _, header in records for member in header.members]
        objects = {member.id[: keys.ID_BYTES] for member in members}
        yield from keys.blob_keys(objects, offset)
        bases = {m.base for m in members if m.base and not m.coding.forward_only}
        if known is not None:
            for each in objects:
                known.setdefault(each, offset)
        found = set()
        for base in bases:
            at = known.get(base) if known is not None else None
            if at is None:
                at = self._first_entry(base)
                if at is not None and known is not None:
                    known[base] = at
            found.add(at)
        for at in found:
            if at is not None and at != offset:
                yield keys.edge_key(at, offset)

    # -- opening and replacing the index -------------------------------------------------

    def open(self) -> None:
        """Uses what is indexed of the journal; a damaged index is replaced, a long tail indexed."""
        try:
            self._use_current()
        except DamagedData:
            self.renew()
        self._index_far_end()

    def restart(self) -> None:
        """Drops the tail; it begins again where the index ends."""
        self._begin_after(self._meta)

    def renew(self) -> None:
        """Replaces a damaged index; goes on without one if that fails.

        If another process has replaced it in the meantime, its index is used.
        """
        damaged = self._meta
        self._without_index()
        if not self._writable:
            return
        self.rebuilt = True
        with suppress(MvcError), self._building():  # look-ups work without it, from memory
            if not self._use_other(damaged):
                self._build()

    def rebuild(self) -> None:
        """Replaces the index, damaged or not; MvcError if the folder cannot be written.

        Begins again where somebody deletes the new one meanwhile.
        """
        self.rebuilt = True
        for left in reversed(range(_TRIES)):
            try:
                with self._building():
                    self._build()
                break
            except MvcError as error:
                self._without_index()
                if not left or not (was_missing(error) or isinstance(error, DamagedData)):
                    raise

    def _use_current(self) -> None:
        """Uses what is indexed now; looks again where others merge the runs meanwhile."""
        for left in reversed(range(_TRIES)):
            meta = self._index.meta(self._journal.identity)
            try:
                self._use(meta)
                break
            except DamagedData:
                if not left or self._index.meta(self._journal.identity) == meta:
                    raise

    def _use_other(self, damaged: Meta) -> bool:
        """Whether the current index is sound and another one than ``damaged``; then it is used."""
        try:
            self._use_current()
        except DamagedData:
            return False
        return bool(self._meta.runs) and self._meta != damaged

    def _use(self, meta: Meta) -> None:
        """Reads the runs that ``meta`` names; the tail begins after them."""
        self.superseded = None
        if not self._journal.leads_to(meta.position):
            self.superseded = meta.position
            meta = Meta(self._journal.identity, GENESIS, ())
        self._runs = self._index.readers(meta)
        self._journal.durable = max(self._journal.durable, meta.position.offset)
        self._begin_after(meta)

    def _without_index(self) -> None:
        """Look-ups use the journal alone."""
        self.superseded = None
        self._runs = []
        self._index.forget()
        self._begin_after(Meta(self._journal.identity, GENESIS, ()))

    def _begin_after(self, meta: Meta) -> None:
        """Empties the tail; gaps after the indexed entries are found again."""
        self._meta = meta
        self.position = meta.position
        self.gaps.clear()
        self.tip = None
        self._tail.clear()
        self._unread.clear()

    def close(self) -> None:
        self._runs = []
        self._index.forget()

    # -- writing the index ---------------------------------------------------------------

    def index_tail(self, *, force: bool = False) -> bool:
        """Moves the tail into the index, if it is long enough or with ``force``; whether it tried.

        The index must never cover an entry that a power loss could still remove, nor one after
        a gap. Where that fails the tail stays, and so it does without ``force`` while another
        process writes the index.
        """
        waiting = self.position.sequence - self._meta.position.sequence
        if not self._writable or self.gaps or not waiting:
            return False
        if waiting < self._thresholds.tail and not force:
            return False
        try:
            end, lock = self._journal.sync(), self._building(block=force)
            if lock is None:
                return False
            with lock:
                self._extend_current(end)
        except DamagedData:
            self.renew()
        except (MvcError, MemoryError):
            self._use_again()
        return True

    def _extend_current(self, end: int | None) -> None:
        """Takes up what others have indexed, and indexes what comes after it."""
        self._use_current()
        if end is not None and self._may_replace():
            self._index_entries(end)
            self._index.switch(self._meta)

    def _index_far_end(self) -> None:
        """Indexes a long tail at once, without reading it into memory first.

        Where the index was lost, or maintenance has replaced the journal, one process does
        this and all others wait for it. If it fails, look-ups work from memory.
        """
        if not self._writable or not self._is_far_behind():
            return
        try:
            with self._building():
                # Another process may have done it while this one waited for the lock.
                self._use_current()
                if self._is_far_behind():
                    self._extend_current(self._journal.sync())
        except MvcError:
            self._use_again()

    def _build(self) -> None:
        """A new index, complete before it is current."""
        self._without_index()
        end = self._journal.sync() if self._is_far_behind() else None
        if end is not None:
            self._index_entries(end)
        self._index.switch(self._meta)

    @overload
    def _building(self) -> FileLock: ...
    @overload
    def _building(self, *, block: bool) -> FileLock | None: ...
    def _building(self, *, block: bool = True) -> FileLock | None:
        """The lock of the one process that writes the index."""
        self._fs.make_dir(self._folder, exist_ok=True)
        return self._fs.lock(self._folder / BUILDING, timeout=_WAIT_SECONDS, block=block)

    def _may_replace(self) -> bool:
        """A journal shorter than the one that was indexed lacks history: not to be covered up."""
        return self.superseded is None or self._journal.reaches(self.superseded.sequence)

    def _use_again(self) -> None:
        """Goes back to what is indexed after a failure; without the index if it is damaged."""
        try:
            self._use_current()
        except MvcError:
            self._without_index()

    def _is_far_behind(self) -> bool:
        return self._journal.size() - self.position.offset >= self._thresholds.far

    def _index_entries(self, end: int) -> None:
        """Writes runs of the whole entries in the journal's first ``end`` bytes, which are durable.

        They count once ``Index.switch`` names them.
        """
        known: dict[bytes, int] = {}
        records = self._records.ahead()
        batch: list[bytes] = []
        count, last = 0, self._meta.position
        for recorded in self._journal.scan(last):
            torn = recorded.copies < 2 and recorded.after.offset >= end
            if torn or recorded.after.offset > end:
                break  # the next writer completes the second copy, which needs it as the tip
            batch.extend(keys.entry_keys(recorded))
            found = records.of(recorded.entry)
            batch.extend(self._object_keys(recorded.offset, found, known))
            count, last = count + 1, recorded.after
            if count % self._thresholds.batch == 0:
                self._extend(batch, last)
                batch = []
                known.clear()  # these are in the index now
        if batch:
            self._extend(batch, last)

    def _extend(self, batch: Iterable[bytes], position: Position) -> None:
        self._use(self._index.extend(self._meta, batch, position))
