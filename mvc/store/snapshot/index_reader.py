"""Index and tail: where to look, for entries that are indexed and for those that are not yet."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from pathlib import Path

from mvc.errors import DamagedData, MvcError
from mvc.io.files import FileLock, FileSystem
from mvc.store.index import folder as index_folder
from mvc.store.index import keys
from mvc.store.index.environments import Lent
from mvc.store.index.index import Meta
from mvc.store.index.runs import RunReader
from mvc.store.journal.frames import GENESIS, Position, frames_behind
from mvc.store.snapshot.journal_reader import INDEX, JOURNAL, Known

__all__ = ["Indexed"]

_REBUILD_BATCH = 50_000
_FAR = 4 << 20  # bytes of the journal that nobody reads into memory at every opening
_END = 1 << 20
_WAIT_SECONDS = 300.0
_FEW = 64


class Indexed(Known):
    """The second storey of a view: runs of the index, and the tail's keys in memory."""

    def __init__(self, fs: FileSystem, folder: Path, *, writable: bool) -> None:
        super().__init__(fs, folder, writable=writable)
        self._tail: list[bytes] = []
        self._unread: list[int] = []  # entries of the tail whose records are not in it yet
        self.durable = 0  # bytes of the journal that are known to be flushed
        self._superseded: Meta | None = None  # what the index holds of a replaced journal
        self._lent: Lent | None = None  # the index, where there is one
        self._meta = Meta(self.identity, GENESIS, ())
        self._runs: list[RunReader] = []

    def _tail_takes(self, fresh: list[bytes]) -> None:
        """Few keys go where they belong; for many, sorting runs that are in order is faster."""
        if len(fresh) < _FEW:
            for key in fresh:
                insort(self._tail, key)
        else:
            self._tail.extend(fresh)
            self._tail.sort()

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

    def _use(self, meta: Meta) -> None:
        """Stands on what ``meta`` says is indexed; the tail begins there."""
        assert self._lent is not None
        self._superseded = None
        if not self._is_ours(meta.position):
            self._superseded = meta
            meta = Meta(self.identity, GENESIS, ())
        self._runs = self._lent.index.readers(meta)
        self._meta = meta
        self.position = meta.position
        self.gaps.clear()  # those behind this position are found again
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
        """Answers from the journal alone; other views of the process keep their index."""
        if self._lent is not None:
            self._lent.release()
        self._lent = None
        self._superseded = None
        self._runs = []
        self._meta = Meta(self.identity, GENESIS, ())
        self.position = GENESIS
        self.gaps.clear()
        self.tip = None
        self._tail.clear()
        self._unread.clear()

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
        if self._lent is None or not self.writable or not self._is_far_behind():
            return
        try:
            with self._building():
                self._use(self._lent.index.meta(self.identity))  # somebody may just have done it
                self._index_far()
        except MvcError:
            self._use_again()

    def _building(self) -> FileLock:
        """The lock of the one process that indexes for all."""
        path = self.folder / INDEX / index_folder.BUILDING
        return self.fs.lock(path, timeout=_WAIT_SECONDS)

    def _index_far(self) -> None:
        if self._is_far_behind() and self._reaches(self._superseded):
            end = self._durable_end()
            if end is not None:
                self._index_entries(end)

    def _use_again(self) -> None:
        """Stands on what the index says after something failed; without it if it is damaged."""
        try:
            if self._lent is not None:
                self._use(self._lent.index.meta(self.identity))
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
        known: dict[bytes, int] = {}
        batch: list[bytes] = []
        count, last = 0, self._meta.position
        for recorded in self._scan(last):
            torn = recorded.copies < 2 and recorded.after.offset >= end
            if torn or recorded.after.offset > end:
                break  # the next writer completes the second copy, which needs it as the tip
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
        assert self._lent is not None
        made = self._lent.index.extend(self._meta, batch, position, self._superseded)
        self._use(made)
        return made.position == position
