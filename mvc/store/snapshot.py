"""A snapshot: what the repository holds at one moment, journal, index and packs together.

Every question is one ordered look-up in the index and its tail. ``refresh`` takes in what was
appended since, and follows journals and indexes that other processes have replaced.

A version that is stored in full is no snapshot, but a reset point
(``mvc.repo.commit.storage_policy``).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from itertools import chain, takewhile
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from mvc.errors import DamagedData, HistoryMissing
from mvc.ids import CommitId, StatementId
from mvc.io.files import FileSystem
from mvc.limits import INDEX_BATCH
from mvc.model.statement import Deployment, Statement, Tombstone, node_of
from mvc.names import NODES
from mvc.store.index import keys
from mvc.store.index.reader import INDEX, IndexReader, IndexThresholds
from mvc.store.journal.entries import RefValue, StateMark
from mvc.store.journal.frames import GENESIS, Gap, Position, Recorded
from mvc.store.journal.high_water_mark import read_high_water_mark
from mvc.store.journal.reader import JOURNAL, JournalReader
from mvc.store.packs.reader import PACKS, EntryRecords, PackReader, Placed, RecordReader

__all__ = ["INDEX", "JOURNAL", "PACKS", "IndexThresholds", "Placed", "Snapshot"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_S = TypeVar("_S", bound=Statement)
_OWN_KEYS = 50_000
_TRIES = 8
_TAKE = (
    "take what is missing from a copy: 'mvc fsck --repair --from BACKUP', or put the whole "
    ".mvc/journal of the copy in its place"
)
LOST = (
    "versions can still be written elsewhere by their ids ('mvc checkout ID -o DIR'); "
    "'mvc fsck --repair --from BACKUP' takes what is lost from a copy of the journal"
)


def _again_on_rewrite(
    look: Callable[Concatenate[Snapshot, _P], _T],
) -> Callable[Concatenate[Snapshot, _P], _T]:
    """For a look-up of several steps: it begins again if the journal is replaced under it."""

    @wraps(look)
    def again(self: Snapshot, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self.retry_on_rewrite(lambda: look(self, *args, **options))

    return again


class Snapshot:
    """Reads a repository's folder. Safe across threads; each open repository has one of its own.

    It has a journal reader, an index reader with its tail, and pack readers; of its own it has
    only what keeps these three in step.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        *,
        writable: bool,
        thresholds: IndexThresholds | None = None,
        ahead: tuple[int, bytes] | None = None,
    ) -> None:
        """Opens ``folder``, brings the index up to date and reads the journal to its end.

        ``ahead``: bytes of the journal that are read, and entries after them that only this
        snapshot sees. Raises DamagedData, HistoryMissing, IoFailed.
        """
        self.fs = fs
        self.folder = folder
        self.writable = writable
        self.packs = PackReader(fs, folder / PACKS)
        self.journal = JournalReader(fs, folder, ahead=ahead)
        self._records = RecordReader(self.packs, self.journal)
        self._index = IndexReader(
            fs,
            folder,
            self.journal,
            self._records,
            writable=writable,
            thresholds=thresholds or IndexThresholds(tail=INDEX_BATCH),
        )
        self._lock = threading.RLock()
        self._own: list[bytes] = []  # keys of what this process has published, sorted
        self._high_water_mark: Position | None = None
        try:
            # Read before the journal is: it must not know more than the journal.
            self._high_water_mark = read_high_water_mark(fs, folder, self.identity)
            self._index.open()
            self._index.index_far_end()
            self.refresh()
        except BaseException:
            self.close()
            raise

    # -- what is known -------------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """The checksum of the journal's first entry."""
        return self.journal.identity

    @property
    def generation(self) -> int:
        """How often the journal was found replaced."""
        return self.journal.generation

    @property
    def position(self) -> Position:
        """Up to where the journal is known; the next entry goes there."""
        return self._index.position

    @property
    def indexed(self) -> Position:
        """The end of the last entry that the index covers."""
        return self._index.indexed

    @property
    def tip(self) -> Recorded | None:
        """The newest entry, unless the index covers it."""
        return self._index.tip

    @property
    def gaps(self) -> list[Gap]:
        """Lost entries after the indexed ones, as far as they are known."""
        return self._index.gaps

    @property
    def rebuilt(self) -> bool:
        """Whether the index was damaged and is replaced."""
        return self._index.rebuilt

    @property
    def damage(self) -> DamagedData | None:
        """The last damaged record header that was met."""
        return self._records.damage

    def entry(self, offset: int) -> Recorded:
        """The journal entry at byte ``offset``; DamagedData if it is lost."""
        return self.journal.entry(offset)

    def records(self, offset: int) -> EntryRecords:
        """The sound records that the entry at byte ``offset`` made part of the repository."""
        return self._records.of_entry(offset)

    def entries(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Every entry from ``start`` to ``position``.

        Raises DamagedData where one is lost; with ``lost`` it reports the gap and goes on.
        """
        end = self.position.offset
        if start.offset >= end:
            return iter(())  # the last entry's second copy may be cut off: the file ends before
        return takewhile(lambda recorded: recorded.offset < end, self.journal.scan(start, lost))

    def check_gaps(self, offset: int, what: str) -> None:
        """DamagedData if entries after ``offset`` are lost, which may change ``what``."""
        behind = [gap for gap in self.gaps if gap.start.offset > offset]
        if behind:
            raise DamagedData(
                f"it is not known {what}: {behind[-1].told}, which may have changed it",
                hint=LOST,
            )

    def check_whole(self) -> None:
        """DamagedData if entries are lost: nothing may be published after them.

        Also if the entry that says what HEAD is cannot be read.
        """
        if self.gaps:
            raise DamagedData(
                f"nothing can be written: {self.gaps[0].told}, and what is written now "
                "may contradict it",
                hint=LOST,
            )
        head = self.newest(keys.REF + keys.text("HEAD"))
        for change in head.entry.refs if head is not None else ():
            if change.name == "HEAD" and isinstance(change.new, str):
                self.newest(keys.REF + keys.text(f"heads/{change.new}"))

    def mentions(self, text: bytes, start: int) -> bool:
        """Whether the journal from byte ``start`` up to where it is indexed has these bytes.

        Nothing is parsed: no means no, yes means that an entry there may say so.
        """
        with self._lock:
            return self.journal.mentions(text, start, self.indexed.offset)

    # -- look-ups by key -------------------------------------------------------------------

    def last(self, low: bytes, high: bytes) -> bytes | None:
        return self._guarded(lambda: self._checked_last(low, high, self._index.last(low, high)))

    def first(self, low: bytes, high: bytes) -> bytes | None:
        return self._guarded(lambda: self._checked_first(low, high, self._index.first(low, high)))

    def scan(self, low: bytes, high: bytes) -> list[bytes]:
        return self._guarded(lambda: self._checked(low, high, self._index.scan(low, high)))

    def under(self, prefix: bytes) -> list[bytes]:
        """Keys that begin with ``prefix``, ascending."""
        return self.scan(prefix, keys.after(prefix))

    def last_under(self, prefix: bytes) -> bytes | None:
        """The last key that begins with ``prefix``; None if there is none."""
        return self.last(prefix, keys.after(prefix))

    @_again_on_rewrite
    def newest(self, prefix: bytes) -> Recorded | None:
        """The newest entry with a key under ``prefix`` (prefixes whose next part is the offset).

        DamagedData where a lost entry may be a newer one.
        """
        key = self.last_under(prefix)
        if key is None:
            return None
        self.check_gaps(keys.offset_of(key), _shown(prefix))
        return self.entry(keys.offset_of(key))

    @_again_on_rewrite
    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with this number, if there is one; DamagedData if it is lost."""
        if (offset := self.offset_of(sequence)) is not None:
            return self.entry(offset)
        for gap in self.gaps:
            if sequence in gap.numbers:
                self.check_gaps(gap.start.offset - 1, f"what operation {sequence} did")
        return None

    def retry_on_rewrite(self, look: Callable[[], _T]) -> _T:
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

    def _guarded(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up; again after another process has moved the index, or it was replaced."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return look()
                except DamagedData:
                    if not self._index.use_newer():
                        break
                    self.refresh()
            self.renew_index()
            return look()

    # -- typed queries: callers outside the store need no keys ---------------------------------
    # Only ``newest``, ``by_sequence``, ``ref_at`` and ``refs_under`` look at lost entries.
    # Who asks anything else that one may change calls ``check_gaps``; but not of states that are
    # gone: versions that are stored come back by id, whatever is lost.

    def newest_ref_change(self, name: str) -> Recorded | None:
        """The newest entry that changed a ref; DamagedData where a lost one may be newer."""
        return self.newest(keys.REF + keys.text(name))

    def ref(self, name: str) -> RefValue:
        """The value of a ref; DamagedData where a lost entry may have changed it."""
        recorded = self.newest_ref_change(name)
        return None if recorded is None else recorded.entry.value_of(name)

    def ref_before(self, name: str, offset: int) -> RefValue:
        """The value of a ref before the entry at byte ``offset``."""
        low = keys.REF + keys.text(name)
        recorded = self._last_entry(low, low + keys.number(offset))
        return None if recorded is None else recorded.entry.value_of(name)

    def has_commit(self, id_: CommitId) -> bool:
        found = self.publishing(id_)
        return any(commit.id == id_ for each in found for commit in each.entry.commits)

    @_again_on_rewrite
    def ref_at(self, name: str, time_ns: int) -> RefValue:
        """The value of a ref at a moment (ns since 1970), by the log of refs.

        DamagedData where a lost entry may have changed it since.
        """
        low = keys.REFLOG + keys.text(name)
        key = self.last(low, low + keys.moment(time_ns) + b"\xff" * 8)
        at = -1 if key is None else keys.offset_of(key)
        self.check_gaps(at, f"where {name.removeprefix('heads/')} pointed to")
        return None if key is None else self.entry(at).entry.value_of(name)

    @_again_on_rewrite
    def first_ref_change(self, name: str) -> Recorded | None:
        """The earliest entry, by its time, that changed a ref."""
        low = keys.REFLOG + keys.text(name)
        key = self.first(low, keys.after(low))
        return None if key is None else self.entry(keys.offset_of(key))

    def has_ref(self, name: str) -> bool:
        """Whether an entry has ever changed this ref."""
        return self.last_under(keys.REFLOG + keys.text(name)) is not None

    def refs_under(self, prefix: str) -> Iterator[tuple[str, Recorded | None]]:
        """Refs whose names begin with ``prefix``, descending, with the entry of their last change.

        None in place of an entry that is lost, or may not be the last. One look-up per ref: a
        branch with 100,000 changes is not read through.
        """
        low = keys.REF + prefix.encode()
        high = keys.after(low)

        def look() -> tuple[str, Recorded | None] | None:
            key = self.last(low, high)
            if key is None:
                return None
            name = keys.name_of(key)
            try:
                self.check_gaps(keys.offset_of(key), f"where {name} points to")
                return name, self.entry(keys.offset_of(key))
            except DamagedData:
                return name, None

        while (found := self.retry_on_rewrite(look)) is not None:
            yield found
            high = keys.REF + keys.text(found[0])

    @_again_on_rewrite
    def publishing(self, first: bytes, last: bytes | None = None) -> list[Recorded]:
        """Entries that published commits with ids from ``first`` to ``last``, by their id.

        Only the first 8 bytes of ids count; without ``last`` those that begin like ``first``.
        """
        low = keys.COMMIT + first[: keys.ID_BYTES]
        high = keys.after(keys.COMMIT + (first if last is None else last)[: keys.ID_BYTES])
        return [self.entry(keys.offset_of(key)) for key in self.scan(low, high)]

    def committed_since(self, time_ns: int) -> list[int]:
        """Offsets of the entries with commits of this commit time, or of a later one."""
        return [
            keys.offset_of(key)
            for key in self.scan(keys.COMMITTED + keys.moment(time_ns), keys.after(keys.COMMITTED))
        ]

    def commits_between(self, start: int, end: int) -> list[bytes]:
        """First 8 bytes of the ids of commits published by entries from byte ``start`` to ``end``.

        As the index says, also for entries that are lost by now.
        """
        return [
            key[1 : 1 + keys.ID_BYTES]
            for key in self.under(keys.COMMIT)
            if start <= keys.offset_of(key) < end
        ]

    def offsets_between(self, start: int, end: int) -> list[int]:
        """Offsets from ``start`` to ``end`` at which entries stand, or stood, as the index says."""
        tables = (keys.REF, keys.COMMIT, keys.STATEMENT, keys.PACK)
        found = {keys.offset_of(key) for table in tables for key in self.under(table)}
        return sorted(offset for offset in found if start <= offset < end)

    def marked(self, mark: bytes) -> list[int]:
        """Offsets of the entries whose versions have content with this mark (8 bytes)."""
        return [keys.offset_of(key) for key in self.under(keys.MARK + mark)]

    def newest_first(self) -> Iterator[Recorded]:
        """Every entry, newest first; one look-up each, also where numbers are left out."""
        high = keys.after(keys.OPERATION)

        def look() -> Recorded | None:
            return self._last_entry(keys.OPERATION, high)

        while (found := self.retry_on_rewrite(look)) is not None:
            yield found
            high = keys.OPERATION + keys.number(found.sequence)

    @_again_on_rewrite
    def from_sequence(self, sequence: int) -> list[Recorded]:
        """The entries with this number and later ones, oldest first."""
        first = keys.OPERATION + keys.number(sequence)
        every = self.scan(first, keys.after(keys.OPERATION))
        return [self.entry(keys.offset_of(key)) for key in every]

    def is_lost(self, sequence: int | None) -> bool:
        """Whether the entry with this number is lost."""
        return any(sequence in gap.numbers for gap in self.gaps)

    def offset_of(self, sequence: int) -> int | None:
        """The byte at which the entry with this number stands, readable or not."""
        key = self.last_under(keys.OPERATION + keys.number(sequence))
        return None if key is None else keys.offset_of(key)

    def newest_undo(self, sequence: int) -> Recorded | None:
        """The newest entry that took back the operation with this number."""
        return self.newest(keys.UNDONE + keys.number(sequence))

    def targets(self, *, reports: bool = False) -> list[str]:
        """Every target on which a deployment was recorded, by name; one look-up each.

        With ``reports`` those on which nodes report what they serve, else those without these.
        """
        nodes = keys.DEPLOYED + NODES.encode()
        beyond = (keys.after(nodes), keys.after(keys.DEPLOYED)), (keys.DEPLOYED, nodes)
        names = []
        for low, high in ((nodes, keys.after(nodes)),) if reports else beyond:
            end = high
            while (key := self.last(low, end)) is not None:
                names.append(keys.name_of(key))
                end = keys.DEPLOYED + keys.text(names[-1])
        return names[::-1]

    @_again_on_rewrite
    def own_since(self, target: str, sequence: int) -> tuple[Recorded, bool] | None:
        """The newest operation of this repository on a target, if it has this number or a later
        one; and whether all those since then are in turn, and nothing else is between them.
        """
        low, mixed = keys.OWN + keys.text(target), keys.MIXED + keys.text(target)
        start = self.first(keys.OPERATION + keys.number(sequence), keys.after(keys.OPERATION))
        at = keys.after(low) if start is None else low + keys.number(keys.offset_of(start))
        first, last = self.first(at, keys.after(low)), self._last_entry(at, keys.after(low))
        if first is None or last is None:
            return None
        return last, self.last(mixed + first[len(low) :], keys.after(mixed)) is None

    def newest_on(self, target: str) -> Recorded | None:
        """The entry with the last deployment or retraction on a target; None if there is none."""
        return self.newest(keys.on(target))

    def next_deployment(self, target: str, time_ns: int) -> int | None:
        """When the first deployment on ``target`` after a moment takes effect, in ns since 1970."""
        low = keys.DEPLOYED + keys.text(target)
        later = self.first(keys.after(low + keys.moment(time_ns)), keys.after(low))
        return None if later is None else keys.moment_of(later)

    def before_on(self, target: str, offset: int) -> int | None:
        """Offset of the last entry before ``offset`` with a deployment or retraction on a target.

        None if there is none.
        """
        low = keys.on(target)
        key = self.last(low, low + keys.number(offset))
        return None if key is None else keys.offset_of(key)

    def offsets_on(self, target: str) -> list[int]:
        """Offsets of the entries with deployments or retractions on a target, ascending."""
        return [keys.offset_of(key) for key in self.under(keys.on(target))]

    def deployments_of(self, commit: bytes) -> list[int]:
        """Offsets of entries with deployments of commits whose ids begin like ``commit``."""
        return [keys.offset_of(key) for key in self.under(keys.about(Deployment.code, commit))]

    @_again_on_rewrite
    def deployed_at(self, target: str, time_ns: int) -> list[Deployment]:
        """The deployments on a target at exactly this time."""
        prefix = keys.DEPLOYED + keys.text(target) + keys.moment(time_ns)
        entries = (self.entry(keys.offset_of(key)).entry for key in self.under(prefix))
        found = (each for entry in entries for each in entry.deployments)
        return [each for each in found if (each.target, each.time_ns) == (target, time_ns)]

    @_again_on_rewrite
    def statement(self, id_: bytes) -> tuple[Recorded, Statement] | None:
        """The statement with this id, and its entry; None if it is not here."""
        for key in self.under(keys.STATEMENT + id_[: keys.ID_BYTES]):
            recorded = self.entry(keys.offset_of(key))
            if (found := recorded.entry.by_id.get(StatementId(id_))) is not None:
                return recorded, found
        return None

    @_again_on_rewrite
    def about(self, kind: type[_S], subject: bytes) -> list[tuple[Recorded, _S]]:
        """All statements of a kind about a subject, in their order; but no deployments by nodes.

        DamagedData if the index has passed over one, where kind and subject are a topic.
        """
        found: list[tuple[Recorded, _S]] = []
        last: int | None = None
        for key in self.under(keys.about(kind.code, subject)):
            recorded = self.entry(keys.offset_of(key))
            mine = [each for each in recorded.entry.of(kind) if each.subject == subject]
            if mine and not mine[0].target:
                self._check_follows(recorded.entry.before(mine[0]), last, kind)
                last = recorded.sequence
            found += ((recorded, each) for each in mine)
        return sorted(found, key=lambda pair: pair[1].order)

    @_again_on_rewrite
    def newest_of_topic(self, statement: Statement) -> Recorded | None:
        """The newest entry with a statement of the same topic; None if there is none."""
        for recorded in self._descending(keys.topic(statement)):
            if any(each.topic == statement.topic for each in recorded.entry.statements):
                return recorded
        return None

    @_again_on_rewrite
    def is_subject(self, kind: type[Statement], subject: bytes) -> bool:
        """Whether there is a statement of a kind about a subject; a look-up or two."""
        found = self._descending(keys.about(kind.code, subject))
        return any(
            each.subject == subject for each in chain.from_iterable(r.entry.of(kind) for r in found)
        )

    def _descending(self, prefix: bytes) -> Iterator[Recorded]:
        """The entries with keys under ``prefix``, the greatest key first; a look-up each."""
        end = keys.after(prefix)
        while (key := self.last(prefix, end)) is not None:
            yield self.entry(keys.offset_of(key))
            end = key

    def _check_follows(self, before: int | None, last: int | None, kind: type[Statement]) -> None:
        if before != last and not self.is_lost(before):
            raise DamagedData(
                f"the index and the journal differ on a {kind.name}",
                hint="run 'mvc fsck --rebuild-index', and if that does not help "
                "'mvc fsck --repair'",
            )

    def stating(self, kind: type[Statement]) -> list[Recorded]:
        """The entries with statements of a kind that has no target, oldest first."""
        return self._entries_under(keys.SUBJECT + bytes((kind.code,)))

    def has_any(self, kind: type[Statement]) -> bool:
        """Whether there is a statement of a kind; one look-up."""
        return self.last_under(keys.SUBJECT + bytes((kind.code,))) is not None

    @property
    def node(self) -> bytes:
        """Names this repository in statements. Its copies have the same one."""
        return node_of(self.entry(0).entry.note)

    def newest_hybrid(self, target: str, code: int = Deployment.code) -> int | None:
        """The greatest hybrid time on a target; None if it has no statement of the kind."""
        key = self.last_under(keys.ordered(code, target))
        return None if key is None else keys.moment_of(key)

    def at_hybrid(self, target: str, hybrid_ns: int) -> int:
        """How many deployments on a target have this hybrid time."""
        return len(self.under(keys.ordered(Deployment.code, target) + keys.moment(hybrid_ns)))

    def _last_entry(self, low: bytes, high: bytes) -> Recorded | None:
        """The entry that the greatest key of a range leads to."""
        key = self.last(low, high)
        return None if key is None else self.entry(keys.offset_of(key))

    @_again_on_rewrite
    def _entries_under(self, *prefixes: bytes) -> list[Recorded]:
        """The entries that keys under these prefixes lead to, oldest first."""
        found = {keys.offset_of(key) for each in prefixes for key in self.under(each)}
        return [self.entry(offset) for offset in sorted(found)]

    def forgetting(self) -> list[Recorded]:
        """Every entry that says what became of states: tombstones and marks, oldest first."""
        tombstones = keys.SUBJECT + bytes((Tombstone.code,))
        return self._entries_under(tombstones, keys.SUBJECT + keys.STATE)

    def state_marks(
        self, commit: bytes | None = None, *, weights: bool = False
    ) -> list[tuple[Recorded, StateMark]]:
        """What became of the state of a commit, or of its ``weights``, oldest first; of every
        commit if it is None.
        """
        prefix = keys.SUBJECT + (keys.WEIGHTS if weights else keys.STATE)
        found = self._entries_under(prefix + (b"" if commit is None else commit[: keys.ID_BYTES]))
        return [
            (recorded, each)
            for recorded in found
            for each in recorded.entry.states
            if bool(each.path) == weights and commit in (None, each.commit)
        ]

    # -- what this process has published ---------------------------------------------------

    def note_published(self, recorded: Recorded) -> None:
        """Remembers an entry that this process made durable: no look-up may miss it."""
        with self._lock:
            if len(self._own) > _OWN_KEYS:
                newest = sorted(self._own, key=keys.offset_of)[_OWN_KEYS // 2 :]
                self._own = sorted(newest)
            for key in keys.entry_keys(recorded):
                insort(self._own, key)

    def _checked(self, low: bytes, high: bytes, found: Collection[bytes]) -> list[bytes]:
        """What was found; DamagedData where it lacks keys that this process has published."""
        begin, end = bisect_left(self._own, low), bisect_left(self._own, high)
        if any(self._own[i] not in found for i in range(begin, end)):
            raise DamagedData("the index lacks what this process has published")
        return list(found)

    def _checked_last(self, low: bytes, high: bytes, found: bytes | None) -> bytes | None:
        """The same for the greatest key of a range."""
        self._checked(low if found is None else found, high, [] if found is None else [found])
        return found

    def _checked_first(self, low: bytes, high: bytes, found: bytes | None) -> bytes | None:
        """The same for the least key of a range."""
        self._checked(low, high if found is None else found, [])
        return found

    # -- keeping up ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what other processes, or this one, have appended since.

        If the journal was replaced, ``generation`` goes up and everything is read again.
        Raises HistoryMissing if the journal ends before an entry that was acknowledged.
        """
        with self._lock:
            while True:
                if self.journal.is_replaced():
                    self._reopen()
                self._index.follow_index()
                self._catch_up()
                if self.journal.fixed is not None:
                    return  # others may have indexed more
                superseded = self._index.superseded
                known = None if superseded is None else superseded.position
                beyond = [
                    position
                    for position in (known, self._high_water_mark)
                    if position is not None and position.sequence > self.position.sequence
                ]
                if not beyond:
                    return
                if not self.journal.is_replaced():
                    for position in beyond:
                        self._lacks(position)
                    return

    def _lacks(self, reached: Position) -> None:
        """Handles a journal that was known to go on up to ``reached``.

        If the bytes are still there, the last entries are damaged, and that is a gap like any
        other. If the file ends before, it was cut off or comes from an older copy.
        """
        if self.journal.size() < reached.offset or reached.offset <= self.position.offset:
            raise _missing(self.position, reached)
        gap = Gap(self.position, reached)
        if not any(known.start == gap.start for known in self.gaps):
            self.gaps.append(gap)

    def _reopen(self) -> None:
        """Goes over to the journal that maintenance has put in the old one's place."""
        self.journal.reopen()
        self._high_water_mark = None
        self._records.damage = None
        self._records.forget()
        self._own.clear()  # offsets are others in the new journal
        self._index.follow_journal()

    def _catch_up(self) -> None:
        if any(self.journal.is_repaired(gap) for gap in self.gaps):
            self._start_over()
        if self.tip is not None:
            if not self.journal.has(self.tip):
                self._go_back(self.tip)
            elif self.journal.size() < self.position.offset:
                return  # the newest entry's second copy was cut off, or is being written
        self._index.read_on()

    def _go_back(self, newest: Recorded) -> None:
        """Starts over after the newest entry was removed by its own writer, which failed."""
        if newest.after.offset <= self.journal.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint=_TAKE,
            )
        self._start_over()

    def _start_over(self) -> None:
        """Reads again what the index does not cover."""
        self.journal.forget()
        self._records.forget()
        self._index.restart()

    # -- maintaining the index -------------------------------------------------------------

    def renew_index(self) -> None:
        """Replaces an index that is damaged."""
        with self._lock:
            self._index.renew()
            self.refresh()

    def rebuild_index(self) -> None:
        """Replaces the index, damaged or not; MvcError if the folder cannot be written."""
        with self._lock:
            self._index.rebuild()
            self.refresh()
            self.index_tail(force=True)

    def index_tail(self, *, force: bool = False) -> None:
        """Moves the tail into the index if it is long enough; with ``force`` in any case.

        The journal is flushed before: the index must never cover an entry that a power loss
        could still remove.
        """
        with self._lock:
            end = self._index.flushed_end_to_index(force=force)
            if end is None:
                return
            try:
                self._index.index_entries(end)
                self.refresh()
            except DamagedData:
                self.renew_index()

    def close(self) -> None:
        self._index.close()
        self.packs.close()
        self.journal.close()


def _missing(there: Position, reached: Position) -> HistoryMissing:
    return HistoryMissing(
        f"the journal ends before operation {there.sequence} (byte {there.offset}), but "
        f"operations up to {reached.sequence - 1} were acknowledged",
        hint=f"{_TAKE}; 'mvc fsck --rebuild-index' accepts the loss",
    )


def _shown(prefix: bytes) -> str:
    """What a look-up under ``prefix`` is about, for a message."""
    if prefix[:1] == keys.REF:
        name = prefix[1:].partition(b"\0")[0].decode("utf-8", "replace")
        return f"where {name.removeprefix('heads/').removeprefix('tags/')} points to"
    on = keys.on("")[:-1]
    if prefix.startswith(on):
        name = prefix[len(on) :].partition(b"\0")[0].decode("utf-8", "replace")
        return f"what was recorded on {name}"
    return "what the journal says last"
