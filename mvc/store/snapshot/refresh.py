"""Keeping up: entries that others append, journals and indexes that others replace."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container
from pathlib import Path
from typing import TypeVar

from mvc.errors import DamagedData, HistoryMissing, MvcError, StorageFull
from mvc.io.files import FileSystem
from mvc.limits import INDEX_BATCH
from mvc.store.index import environments, keys
from mvc.store.index import folder as index_folder
from mvc.store.index.environments import Lent
from mvc.store.journal.frames import Gap, Position, Recorded, read_entry, stands
from mvc.store.journal.high_water_mark import read_witness
from mvc.store.snapshot.index_reader import Indexed
from mvc.store.snapshot.journal_reader import INDEX, JOURNAL

__all__ = ["Following"]

_T = TypeVar("_T")
_OWN_KEYS = 50_000
_TAKE = (
    "take what is missing from a copy: 'mvc fsck --repair --from BACKUP', or put the whole "
    ".mvc/journal of the copy in its place"
)


class Following(Indexed):
    """The third storey of a view: it moves to the journal's present end when asked.

    ``generation`` counts how often the journal was found replaced; ``settled`` says whether
    the journal's name is known to be durable.
    """

    def __init__(
        self, fs: FileSystem, folder: Path, *, writable: bool, replaced_before: bool = False
    ) -> None:
        super().__init__(fs, folder, writable=writable)
        self.rebuilt = False
        self.generation = 0
        self._own: list[bytes] = []  # keys of what this process has published, sorted
        self.settled = not replaced_before
        self._witnessed: Position | None = None
        try:
            # Read before the journal is: it may only know less than the journal.
            self._witnessed = read_witness(fs, folder, self.identity)
            self._open_index()
            self._index_far_end()
            self.refresh()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Takes in what other processes, or this one, have appended since.

        If the journal was replaced (``generation`` goes up), everything is looked up anew.
        """
        with self._lock:
            while True:
                if self._is_replaced():
                    self._reopen()
                self._look_after_index()
                self._catch_up()
                known = None if self._superseded is None else self._superseded.position
                beyond = [
                    position
                    for position in (known, self._witnessed)
                    if position is not None and position.sequence > self.position.sequence
                ]
                if not beyond:
                    return
                if not self._is_replaced():
                    for position in beyond:
                        self._lacks(position)
                    return

    def _lacks(self, reached: Position) -> None:
        """The journal was known to go on up to ``reached``.

        If the bytes are still there, the last entries are damaged, and it is a gap like any
        other. If the file ends before, it was cut off or comes from an older copy.
        """
        if self._journal.size() < reached.offset or reached.offset <= self.position.offset:
            raise _missing(self.position, reached)
        gap = Gap(self.position, reached)
        if not any(known.start == gap.start for known in self.gaps):
            self.gaps.append(gap)

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
        self._witnessed = None
        self.settled = False
        self.durable = 0
        self._entries = {0: first}
        self._records = {}
        self.damage = None
        self.packs.forget()
        self._own.clear()  # offsets are others in the new journal
        if self._lent is None:
            self._without_index()
            return
        try:
            self._use(self._lent.index.meta(self.identity))
        except DamagedData:
            self._renew(self._lent)
        self._index_far_end()

    def _catch_up(self) -> None:
        if any(self._is_healed(gap) for gap in self.gaps):
            self._start_over()
        if self.tip is not None:
            if not stands(self._journal, self.tip):
                self._go_back(self.tip)
            elif self._journal.size() < self.position.offset:
                return  # the newest entry's second copy was cut off, or is being written
        fresh: list[bytes] = []
        for recorded in self._scan(self.position, self.gaps.append):
            self._remember(recorded)
            fresh.extend(keys.entry_keys(recorded))
            self._unread.append(recorded.offset)
            self.position = recorded.after
            self.tip = recorded
        self._tail_takes(fresh)

    def _go_back(self, newest: Recorded) -> None:
        """What was read last was taken back by its writer, who failed: begin at the index."""
        if newest.after.offset <= self.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint=_TAKE,
            )
        self._start_over()

    def _is_healed(self, gap: Gap) -> bool:
        """Whether a repair has put back an entry where one was lost."""
        try:
            return read_entry(self._journal, gap.start.offset).sequence < gap.after.sequence
        except DamagedData:
            return False

    def _start_over(self) -> None:
        """Reads again what the index does not cover."""
        self._entries.clear()
        self._records.clear()
        self.packs.forget()
        if self._lent is None:
            self._without_index()
        else:
            self._use(self._meta)

    def _open_index(self) -> None:
        try:
            self._lent = environments.lend(self.fs, self.folder / INDEX, writable=self.writable)
            self._use(self._lent.index.meta(self.identity))
        except StorageFull:
            self._without_index()  # questions are answered on a full disk, too
        except DamagedData:
            self._renew(self._lent)

    def note_published(self, recorded: Recorded) -> None:
        """Remembers an entry that this process made durable: no look-up may miss it."""
        with self._lock:
            if len(self._own) > _OWN_KEYS:
                newest = sorted(self._own, key=keys.offset_of)[_OWN_KEYS // 2 :]
                self._own = sorted(newest)
            for key in keys.entry_keys(recorded):
                insort(self._own, key)

    def _check_own(self, low: bytes, high: bytes, found: Container[bytes]) -> None:
        """Raises DamagedData where a look-up lacks keys that this process has published."""
        begin, end = bisect_left(self._own, low), bisect_left(self._own, high)
        if any(self._own[i] not in found for i in range(begin, end)):
            raise DamagedData("the index lacks what this process has published")

    def _check_last(self, low: bytes, high: bytes, found: bytes | None) -> None:
        """The same for the greatest key of a range."""
        at = bisect_left(self._own, high) - 1
        if at >= 0 and self._own[at] >= low and (found is None or found < self._own[at]):
            raise DamagedData("the index lacks what this process has published")

    def _uses_newer(self) -> bool:
        """Whether another process has moved the index on: it may have merged runs under us."""
        if self._lent is None:
            return False
        try:
            meta = self._lent.index.meta(self.identity)
            if meta == self._meta:
                return False
            self._use(meta)
        except DamagedData:
            return False
        self.refresh()
        return True

    def renew_index(self) -> None:
        """Makes a new index in the place of one that is damaged."""
        with self._lock:
            self._renew(self._lent)
            self.refresh()

    def _renew(self, damaged: Lent | None) -> None:
        """A new index in the place of a damaged or an absent one; without one if that fails.

        Where another process has renewed it in the meantime, its index is used.
        """
        self._without_index()
        if not self.writable:
            return
        self.rebuilt |= index_folder.current(self.fs, self.folder / INDEX) is not None
        try:
            self.fs.make_dir(self.folder / INDEX, exist_ok=True)
            with self._building():
                if not self._use_renewed(damaged):
                    self._build()
        except MvcError:
            self._without_index()  # the look-ups work without, from memory

    def _use_renewed(self, damaged: Lent | None) -> bool:
        """Whether the index that counts by now is another one than ``damaged``, and sound."""
        try:
            self._lent = environments.lend(self.fs, self.folder / INDEX, writable=True)
            if damaged is not None and self._lent.is_same_file(damaged):
                raise DamagedData("the index is damaged")
            self._use(self._lent.index.meta(self.identity))
        except DamagedData:
            self._without_index()
            return False
        return True

    def _build(self) -> None:
        """A new environment, complete before it counts; the caller holds the building lock."""
        self._lent = environments.create(self.fs, self.folder / INDEX)
        self._use(self._lent.index.meta(self.identity))
        self._index_far()
        index_folder.switch(self.fs, self.folder / INDEX, self._lent.environment)

    def _look_after_index(self) -> None:
        """Goes over to the index that counts now, if another process has replaced ours."""
        if self._lent is not None and not self._lent.is_in_place():
            self._without_index()
            self._open_index()
            self._index_far_end()

    def rebuild_index(self) -> None:
        """Throws the index away and makes a new one; the folder must be writable."""
        with self._lock:
            self._without_index()
            self.rebuilt = True
            try:
                self.fs.make_dir(self.folder / INDEX, exist_ok=True)
                with self._building():
                    self._build()
            except MvcError:
                self._without_index()
                raise
            self.refresh()
            self.index_tail(force=True)

    def index_tail(self, *, force: bool = False) -> None:
        """Moves the tail into the index once it is long enough to be worth it.

        The journal is made durable first: the index must never know of an entry that a
        power loss could still take.
        """
        with self._lock:
            if self._lent is None or not self.writable or not self.position.sequence:
                return
            if self.gaps:
                return  # the index never covers what could not be read
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
                self._renew(self._lent)
                self.refresh()

    def close(self) -> None:
        if self._lent is not None:
            self._lent.release()
            self._lent = None
        self.packs.close()
        self._journal.close()


def _missing(there: Position, reached: Position) -> HistoryMissing:
    return HistoryMissing(
        f"the journal ends before operation {there.sequence} (byte {there.offset}), but "
        f"operations up to {reached.sequence - 1} were acknowledged",
        hint=f"{_TAKE}; 'mvc fsck --rebuild-index' accepts the loss",
    )
