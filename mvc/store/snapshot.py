"""A snapshot: the repository up to one entry of the journal, read from journal, index and packs.

The journal has one entry for each operation. The index finds entries by keys, such as the id of a
commit (``mvc.store.index.keys``). Packs contain the encoded objects. A query searches in the index
and in the *tail*, the keys of entries that are not indexed yet. ``refresh`` reads entries that were
appended since the last refresh. If another process has replaced the journal or the index,
``refresh`` opens the new file.

Do not confuse snapshots with reset points, which are versions that are stored in full
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
_RESTORE = (
    "restore the missing entries from a backup: 'mvc fsck --repair --from BACKUP', or replace "
    ".mvc/journal by that of the backup"
)
LOST = (
    "restore the lost entries: 'mvc fsck --repair --from BACKUP'; until then, versions can be "
    "written to another folder by id: 'mvc checkout ID -o DIR'"
)


def _retried_on_rewrite(
    query: Callable[Concatenate[Snapshot, _P], _T],
) -> Callable[Concatenate[Snapshot, _P], _T]:
    """Decorates a query of several steps, to repeat it if the journal is replaced meanwhile."""

    @wraps(query)
    def retried(self: Snapshot, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self.retry_on_rewrite(lambda: query(self, *args, **options))

    return retried


class Snapshot:
    """Reads a repository's folder. Safe across threads; each open repository has its own snapshot.

    It has readers of journal, index and packs, and ensures that these read the same state.
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

        ``ahead``: an offset and bytes. The journal is read up to the offset. From there on, these
        bytes are read instead, as entries that only this snapshot has. Raises DamagedData,
        HistoryMissing, IoFailed.
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
        self._own: list[bytes] = []  # sorted keys of entries that this process has published
        self._high_water_mark: Position | None = None
        try:
            # The mark is read before the journal, because it must not be newer than the journal.
            self._high_water_mark = read_high_water_mark(fs, folder, self.identity)
            self._index.open()
            self._index.index_far_end()
            self.refresh()
        except BaseException:
            self.close()
            raise

    # -- journal and index ---------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """Checksum of the journal's first entry."""
        return self.journal.identity

    @property
    def generation(self) -> int:
        """How often this snapshot has found that gc or repack has replaced the journal."""
        return self.journal.generation

    @property
    def position(self) -> Position:
        """End of the part of the journal that was read. The next entry is appended there."""
        return self._index.position

    @property
    def indexed(self) -> Position:
        """End of the last entry that the index covers."""
        return self._index.indexed

    @property
    def tip(self) -> Recorded | None:
        """The newest entry. None if the index covers this entry."""
        return self._index.tip

    @property
    def gaps(self) -> list[Gap]:
        """Gaps (lost entries, both of whose copies are damaged) that the index does not cover."""
        return self._index.gaps

    @property
    def rebuilt(self) -> bool:
        """Whether the index was damaged and has been replaced."""
        return self._index.rebuilt

    @property
    def damage(self) -> DamagedData | None:
        """The error of the damaged record header that was read most recently."""
        return self._records.damage

    def entry(self, offset: int) -> Recorded:
        """The journal entry at byte ``offset``. Raises DamagedData if the entry is lost."""
        return self.journal.entry(offset)

    def records(self, offset: int) -> EntryRecords:
        """The undamaged records of encoded objects that the entry at byte ``offset`` published."""
        return self._records.of_entry(offset)

    def entries(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Every entry from ``start`` to ``position``.

        Raises DamagedData at a gap of lost entries. With ``lost``, calls ``lost`` with the gap
        instead, and continues after the gap.
        """
        end = self.position.offset
        if start.offset >= end:
            return iter(())  # the file may be shorter, without the last entry's second copy
        return takewhile(lambda recorded: recorded.offset < end, self.journal.scan(start, lost))

    def check_gaps(self, offset: int, question: str) -> None:
        """Raises DamagedData if entries after byte ``offset`` are lost, which may change an answer.

        ``question``: for the message, the fact that is unknown then.
        """
        later = [gap for gap in self.gaps if gap.start.offset > offset]
        if later:
            raise DamagedData(
                f"it is unknown {question}: {later[-1].told}, which may have changed this",
                hint=LOST,
            )

    def check_whole(self) -> None:
        """Raises DamagedData if entries are lost, because a new entry might contradict these.

        Raises DamagedData, too, if the newest entry that changed HEAD, or the branch that HEAD
        names, cannot be read.
        """
        if self.gaps:
            raise DamagedData(
                f"nothing can be written: {self.gaps[0].told}, and a new operation might "
                "contradict lost entries",
                hint=LOST,
            )
        head = self.newest(keys.REF + keys.text("HEAD"))
        for change in head.entry.refs if head is not None else ():
            if change.name == "HEAD" and isinstance(change.new, str):
                self.newest(keys.REF + keys.text(f"heads/{change.new}"))

    def mentions(self, text: bytes, start: int) -> bool:
        """Whether these bytes occur in the indexed part of the journal, from byte ``start`` on.

        The journal is not parsed. So False is certain, but True means only that an entry may
        contain these bytes.
        """
        with self._lock:
            return self.journal.mentions(text, start, self.indexed.offset)

    # -- queries by key --------------------------------------------------------------------

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
        """The greatest key that begins with ``prefix``."""
        return self.last(prefix, keys.after(prefix))

    @_retried_on_rewrite
    def newest(self, prefix: bytes) -> Recorded | None:
        """The newest entry with a key under ``prefix``.

        Raises DamagedData if a lost entry may be newer. ``prefix`` must be a whole key without the
        entry's offset at its end.
        """
        key = self.last_under(prefix)
        if key is None:
            return None
        self.check_gaps(keys.offset_of(key), _shown(prefix))
        return self.entry(keys.offset_of(key))

    @_retried_on_rewrite
    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with this number; None if no entry ever had the number.

        Raises DamagedData if the entry is lost.
        """
        if (offset := self.offset_of(sequence)) is not None:
            return self.entry(offset)
        for gap in self.gaps:
            if sequence in gap.numbers:
                self.check_gaps(gap.start.offset - 1, f"what operation {sequence} did")
        return None

    def retry_on_rewrite(self, query: Callable[[], _T]) -> _T:
        """Runs a query of several steps, and repeats it if the journal is replaced meanwhile."""
        while True:
            with self._lock:
                generation = self.generation
                try:
                    result = query()
                except DamagedData:
                    self.refresh()
                    if self.generation == generation:
                        raise
                else:
                    if self.generation == generation:
                        return result

    def _guarded(self, query: Callable[[], _T]) -> _T:
        """Runs a query; repeats it if another process has changed or replaced the index."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return query()
                except DamagedData:
                    if not self._index.use_newer():
                        break
                    self.refresh()
            self.renew_index()
            return query()

    # -- typed queries: callers outside the store need no keys ---------------------------------
    # Only ``newest``, ``by_sequence``, ``ref_at`` and ``refs_under`` check for lost entries. Before
    # any other query, call ``check_gaps`` if a lost entry could change the answer. Queries about
    # forgotten states need no check, because a lost entry never prevents reading a stored version
    # by id.

    def newest_ref_change(self, name: str) -> Recorded | None:
        """The newest entry that changed a ref. Raises DamagedData if a lost entry may be newer."""
        return self.newest(keys.REF + keys.text(name))

    def ref(self, name: str) -> RefValue:
        """The value of a ref. Raises DamagedData if a lost entry may have changed the ref."""
        recorded = self.newest_ref_change(name)
        return None if recorded is None else recorded.entry.value_of(name)

    def ref_before(self, name: str, offset: int) -> RefValue:
        """The value of a ref before the entry at byte ``offset``."""
        low = keys.REF + keys.text(name)
        recorded = self._last_entry(low, low + keys.number(offset))
        return None if recorded is None else recorded.entry.value_of(name)

    def has_commit(self, id_: CommitId) -> bool:
        entries = self.publishing(id_)
        return any(commit.id == id_ for recorded in entries for commit in recorded.entry.commits)

    @_retried_on_rewrite
    def ref_at(self, name: str, time_ns: int) -> RefValue:
        """The value of a ref at a time (ns since 1970), according to the times of the entries.

        Raises DamagedData if a lost entry may have changed the ref.
        """
        low = keys.REFLOG + keys.text(name)
        key = self.last(low, low + keys.moment(time_ns) + b"\xff" * 8)
        at = -1 if key is None else keys.offset_of(key)
        self.check_gaps(at, f"where {name.removeprefix('heads/')} pointed to")
        return None if key is None else self.entry(at).entry.value_of(name)

    @_retried_on_rewrite
    def first_ref_change(self, name: str) -> Recorded | None:
        """Of the entries that changed a ref, the one with the earliest time."""
        low = keys.REFLOG + keys.text(name)
        key = self.first(low, keys.after(low))
        return None if key is None else self.entry(keys.offset_of(key))

    def has_ref(self, name: str) -> bool:
        """Whether any entry has ever set or deleted this ref."""
        return self.last_under(keys.REFLOG + keys.text(name)) is not None

    def refs_under(self, prefix: str) -> Iterator[tuple[str, Recorded | None]]:
        """Refs with names under ``prefix``, descending, each with the newest entry that changed it.

        If this entry is lost, or if a lost entry may be newer, None is returned for the entry. Each
        ref needs only one search.
        """
        low = keys.REF + prefix.encode()
        high = keys.after(low)

        def next_ref() -> tuple[str, Recorded | None] | None:
            key = self.last(low, high)
            if key is None:
                return None
            name = keys.name_of(key)
            try:
                self.check_gaps(keys.offset_of(key), f"where {name} points to")
                return name, self.entry(keys.offset_of(key))
            except DamagedData:
                return name, None

        while (ref := self.retry_on_rewrite(next_ref)) is not None:
            yield ref
            high = keys.REF + keys.text(ref[0])

    @_retried_on_rewrite
    def publishing(self, first: bytes, last: bytes | None = None) -> list[Recorded]:
        """Entries that published commits with ids from ``first`` to ``last``, in order of the ids.

        Only the first 8 bytes of ids are compared. Without ``last``, these bytes of an id must be
        equal to those of ``first``.
        """
        low = keys.COMMIT + first[: keys.ID_BYTES]
        high = keys.after(keys.COMMIT + (first if last is None else last)[: keys.ID_BYTES])
        return [self.entry(keys.offset_of(key)) for key in self.scan(low, high)]

    def committed_since(self, time_ns: int) -> list[int]:
        """Offsets of entries that have commits with the time ``time_ns`` or a later time."""
        return [
            keys.offset_of(key)
            for key in self.scan(keys.COMMITTED + keys.moment(time_ns), keys.after(keys.COMMITTED))
        ]

    def commits_between(self, start: int, end: int) -> list[bytes]:
        """First 8 bytes of the ids of commits in entries from journal byte ``start`` to ``end``.

        The result includes commits of lost entries, because the index still has their ids.
        """
        return [
            key[1 : 1 + keys.ID_BYTES]
            for key in self.under(keys.COMMIT)
            if start <= keys.offset_of(key) < end
        ]

    def offsets_between(self, start: int, end: int) -> list[int]:
        """Offsets from ``start`` to ``end`` of all entries in the index, even of lost entries."""
        tables = (keys.REF, keys.COMMIT, keys.STATEMENT, keys.PACK)
        offsets = {keys.offset_of(key) for table in tables for key in self.under(table)}
        return sorted(offset for offset in offsets if start <= offset < end)

    def marked(self, mark: bytes) -> list[int]:
        """Offsets of entries with a version whose content hash begins with ``mark`` (8 bytes)."""
        return [keys.offset_of(key) for key in self.under(keys.MARK + mark)]

    def newest_first(self) -> Iterator[Recorded]:
        """Yields every entry, the newest first. Each entry needs one search."""
        high = keys.after(keys.OPERATION)

        def next_entry() -> Recorded | None:
            return self._last_entry(keys.OPERATION, high)

        while (recorded := self.retry_on_rewrite(next_entry)) is not None:
            yield recorded
            high = keys.OPERATION + keys.number(recorded.sequence)

    @_retried_on_rewrite
    def from_sequence(self, sequence: int) -> list[Recorded]:
        """Entries with this number or a later one, oldest first."""
        first = keys.OPERATION + keys.number(sequence)
        every = self.scan(first, keys.after(keys.OPERATION))
        return [self.entry(keys.offset_of(key)) for key in every]

    def is_lost(self, sequence: int | None) -> bool:
        return any(sequence in gap.numbers for gap in self.gaps)

    def offset_of(self, sequence: int) -> int | None:
        """Byte offset of the entry with this number. The entry need not be readable."""
        key = self.last_under(keys.OPERATION + keys.number(sequence))
        return None if key is None else keys.offset_of(key)

    def newest_undo(self, sequence: int) -> Recorded | None:
        """The newest entry that undid the operation with the number ``sequence``."""
        return self.newest(keys.UNDONE + keys.number(sequence))

    def targets(self, *, reports: bool = False) -> list[str]:
        """Names of targets with deployments, ascending. Each target needs one search.

        With ``reports``, only the targets ``nodes/...``, on which other repositories (nodes) report
        which versions they use. Otherwise, all targets except these.
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

    @_retried_on_rewrite
    def own_since(self, target: str, sequence: int) -> tuple[Recorded, bool] | None:
        """The newest operation on a target that was recorded in this repository, if there is one.

        Only operations from number ``sequence`` on count. The second value says whether, from the
        first of these operations on, all operations on the target were recorded in this repository
        and in turn (``keys._is_in_turn``).
        """
        low, mixed = keys.OWN + keys.text(target), keys.MIXED + keys.text(target)
        start = self.first(keys.OPERATION + keys.number(sequence), keys.after(keys.OPERATION))
        at = keys.after(low) if start is None else low + keys.number(keys.offset_of(start))
        first, last = self.first(at, keys.after(low)), self._last_entry(at, keys.after(low))
        if first is None or last is None:
            return None
        return last, self.last(mixed + first[len(low) :], keys.after(mixed)) is None

    def newest_on(self, target: str) -> Recorded | None:
        """The newest entry with a deployment or retraction on a target."""
        return self.newest(keys.on(target))

    def next_deployment(self, target: str, time_ns: int) -> int | None:
        """The time (ns since 1970) of the first deployment on a target after ``time_ns``."""
        low = keys.DEPLOYED + keys.text(target)
        later = self.first(keys.after(low + keys.moment(time_ns)), keys.after(low))
        return None if later is None else keys.moment_of(later)

    def before_on(self, target: str, offset: int) -> int | None:
        """Offset of the newest entry on a target (a deployment or retraction) before ``offset``."""
        low = keys.on(target)
        key = self.last(low, low + keys.number(offset))
        return None if key is None else keys.offset_of(key)

    def offsets_on(self, target: str) -> list[int]:
        """Offsets of entries with deployments or retractions on a target, ascending."""
        return [keys.offset_of(key) for key in self.under(keys.on(target))]

    def deployments_of(self, commit: bytes) -> list[int]:
        """Offsets of entries with deployments of commits whose ids begin with these 8 bytes."""
        return [keys.offset_of(key) for key in self.under(keys.about(Deployment.code, commit))]

    @_retried_on_rewrite
    def deployed_at(self, target: str, time_ns: int) -> list[Deployment]:
        """The deployments on a target at exactly this time."""
        prefix = keys.DEPLOYED + keys.text(target) + keys.moment(time_ns)
        entries = (self.entry(keys.offset_of(key)).entry for key in self.under(prefix))
        deployments = (deployment for entry in entries for deployment in entry.deployments)
        return [
            deployment
            for deployment in deployments
            if (deployment.target, deployment.time_ns) == (target, time_ns)
        ]

    @_retried_on_rewrite
    def statement(self, id_: bytes) -> tuple[Recorded, Statement] | None:
        """The statement with this id, and the entry that contains it; None if there is none.

        A statement is an assertion about a commit, such as a deployment (``mvc.model.statement``).
        """
        for key in self.under(keys.STATEMENT + id_[: keys.ID_BYTES]):
            recorded = self.entry(keys.offset_of(key))
            if (statement := recorded.entry.by_id.get(StatementId(id_))) is not None:
                return recorded, statement
        return None

    @_retried_on_rewrite
    def about(self, kind: type[_S], subject: bytes) -> list[tuple[Recorded, _S]]:
        """All statements of a kind about a subject, in their order, except the reports of nodes.

        If statements of this kind have no target, raises DamagedData if the index lacks a
        statement.
        """
        pairs: list[tuple[Recorded, _S]] = []
        last: int | None = None
        for key in self.under(keys.about(kind.code, subject)):
            recorded = self.entry(keys.offset_of(key))
            mine = [
                statement for statement in recorded.entry.of(kind) if statement.subject == subject
            ]
            if mine and not mine[0].target:
                self._check_follows(recorded.entry.before(mine[0]), last, kind)
                last = recorded.sequence
            pairs += ((recorded, statement) for statement in mine)
        return sorted(pairs, key=lambda pair: pair[1].order)

    @_retried_on_rewrite
    def newest_of_topic(self, statement: Statement) -> Recorded | None:
        """The newest entry with a statement of the same topic.

        The topic of a statement is its target. Without a target, it is the kind and the subject.
        """
        for recorded in self._descending(keys.topic(statement)):
            if any(earlier.topic == statement.topic for earlier in recorded.entry.statements):
                return recorded
        return None

    @_retried_on_rewrite
    def is_subject(self, kind: type[Statement], subject: bytes) -> bool:
        """Whether a statement of this kind about ``subject`` exists. Needs one or two searches."""
        entries = self._descending(keys.about(kind.code, subject))
        return any(
            s.subject == subject for s in chain.from_iterable(r.entry.of(kind) for r in entries)
        )

    def _descending(self, prefix: bytes) -> Iterator[Recorded]:
        """Yields the entries with keys under ``prefix``, in descending order of keys.

        Each entry needs one search.
        """
        end = keys.after(prefix)
        while (key := self.last(prefix, end)) is not None:
            yield self.entry(keys.offset_of(key))
            end = key

    def _check_follows(self, before: int | None, last: int | None, kind: type[Statement]) -> None:
        if before != last and not self.is_lost(before):
            raise DamagedData(
                f"the index and the journal differ on a {kind.name}",
                hint="run 'mvc fsck --rebuild-index'; if the error remains, run "
                "'mvc fsck --repair'",
            )

    def stating(self, kind: type[Statement]) -> list[Recorded]:
        """Entries with statements of a kind without targets, oldest first."""
        return self._entries_under(keys.SUBJECT + bytes((kind.code,)))

    def has_any(self, kind: type[Statement]) -> bool:
        """Whether any statement of this kind exists. Needs one search."""
        return self.last_under(keys.SUBJECT + bytes((kind.code,))) is not None

    @property
    def node(self) -> bytes:
        """The id of this repository in statements. Copies of the repository have the same id."""
        return node_of(self.entry(0).entry.note)

    def newest_hybrid(self, target: str, code: int = Deployment.code) -> int | None:
        """The greatest hybrid time of the statements of a kind on a target.

        The hybrid time is the clock's time, or a later time if the clock was set back.
        """
        key = self.last_under(keys.ordered(code, target))
        return None if key is None else keys.moment_of(key)

    def at_hybrid(self, target: str, hybrid_ns: int) -> int:
        """How many deployments on a target have this hybrid time."""
        return len(self.under(keys.ordered(Deployment.code, target) + keys.moment(hybrid_ns)))

    def _last_entry(self, low: bytes, high: bytes) -> Recorded | None:
        """The entry of the greatest key from ``low`` up to ``high``."""
        key = self.last(low, high)
        return None if key is None else self.entry(keys.offset_of(key))

    @_retried_on_rewrite
    def _entries_under(self, *prefixes: bytes) -> list[Recorded]:
        """The entries of all keys under these prefixes, oldest first."""
        offsets = {keys.offset_of(key) for prefix in prefixes for key in self.under(prefix)}
        return [self.entry(offset) for offset in sorted(offsets)]

    def forgetting(self) -> list[Recorded]:
        """Every entry with tombstones or marks of states, oldest first.

        A tombstone says that a version's state (its tensors and other bytes) was deleted in all
        repositories. A mark says whether the state is stored in this repository.
        """
        tombstones = keys.SUBJECT + bytes((Tombstone.code,))
        return self._entries_under(tombstones, keys.SUBJECT + keys.STATE)

    def state_marks(
        self, commit: bytes | None = None, *, weights: bool = False
    ) -> list[tuple[Recorded, StateMark]]:
        """The marks that say whether the state of ``commit`` is stored, the oldest first.

        With ``weights``, the marks of the weights of single files. Without ``commit``, the marks of
        all commits.
        """
        prefix = keys.SUBJECT + (keys.WEIGHTS if weights else keys.STATE)
        entries = self._entries_under(prefix + (b"" if commit is None else commit[: keys.ID_BYTES]))
        return [
            (recorded, mark)
            for recorded in entries
            for mark in recorded.entry.states
            if bool(mark.path) == weights and commit in (None, mark.commit)
        ]

    # -- entries that this process has published -------------------------------------------

    def note_published(self, recorded: Recorded) -> None:
        """Remembers an entry that this process made durable.

        Queries check that they find this entry.
        """
        with self._lock:
            if len(self._own) > _OWN_KEYS:
                newest = sorted(self._own, key=keys.offset_of)[_OWN_KEYS // 2 :]
                self._own = sorted(newest)
            for key in keys.entry_keys(recorded):
                insort(self._own, key)

    def _checked(self, low: bytes, high: bytes, result: Collection[bytes]) -> list[bytes]:
        """Returns ``result``. Raises DamagedData if it lacks a key that this process published."""
        begin, end = bisect_left(self._own, low), bisect_left(self._own, high)
        if any(self._own[i] not in result for i in range(begin, end)):
            raise DamagedData("the index lacks an entry that this process has published")
        return list(result)

    def _checked_last(self, low: bytes, high: bytes, key: bytes | None) -> bytes | None:
        """As ``_checked``, if ``key`` is the greatest key that the index found in a range."""
        self._checked(low if key is None else key, high, [] if key is None else [key])
        return key

    def _checked_first(self, low: bytes, high: bytes, key: bytes | None) -> bytes | None:
        """As ``_checked``, if ``key`` is the least key that the index found in a range."""
        self._checked(low, high if key is None else key, [])
        return key

    # -- refreshing ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads entries that any process has appended since the last refresh.

        If the journal was replaced, ``generation`` grows and everything is read from the start.
        Raises HistoryMissing if the journal ends before an acknowledged entry.
        """
        with self._lock:
            while True:
                if self.journal.is_replaced():
                    self._reopen()
                self._index.follow_index()
                self._catch_up()
                if self.journal.fixed is not None:
                    return  # the index may cover more than this part of the journal
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
        """Handles a journal that was once longer: its entries went up to ``reached``.

        If the file still has the bytes, its last entries are damaged: a gap is added. If the file
        is shorter, it was truncated or restored from an older copy: HistoryMissing is raised.
        """
        if self.journal.size() < reached.offset or reached.offset <= self.position.offset:
            raise _missing(self.position, reached)
        gap = Gap(self.position, reached)
        if not any(known.start == gap.start for known in self.gaps):
            self.gaps.append(gap)

    def _reopen(self) -> None:
        """Switches to the new journal by which gc or repack has replaced the old one."""
        self.journal.reopen()
        self._high_water_mark = None
        self._records.damage = None
        self._records.forget()
        self._own.clear()  # the new journal has other offsets
        self._index.follow_journal()

    def _catch_up(self) -> None:
        if any(self.journal.is_repaired(gap) for gap in self.gaps):
            self._start_over()
        if self.tip is not None:
            if not self.journal.has(self.tip):
                self._go_back(self.tip)
            elif self.journal.size() < self.position.offset:
                return  # the newest entry's second copy is missing, or is being written
        self._index.read_on()

    def _go_back(self, newest: Recorded) -> None:
        """Reads again after the writer of the newest entry has failed and removed the entry."""
        if newest.after.offset <= self.journal.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint=_RESTORE,
            )
        self._start_over()

    def _start_over(self) -> None:
        """Forgets the entries that the index does not cover, so that they are read again."""
        self.journal.forget()
        self._records.forget()
        self._index.restart()

    # -- maintaining the index -------------------------------------------------------------

    def renew_index(self) -> None:
        """Replaces a damaged index."""
        with self._lock:
            self._index.renew()
            self.refresh()

    def rebuild_index(self) -> None:
        """Replaces the index, damaged or not. Raises MvcError if the folder cannot be written."""
        with self._lock:
            self._index.rebuild()
            self.refresh()
            self.index_tail(force=True)

    def index_tail(self, *, force: bool = False) -> None:
        """Adds the tail to the index if the tail is long enough. With ``force``, always adds it.

        The journal is flushed first, because the index must not cover an entry that a power loss
        could remove.
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


def _missing(end: Position, reached: Position) -> HistoryMissing:
    return HistoryMissing(
        f"the journal ends before operation {end.sequence} (byte {end.offset}), but "
        f"operations up to {reached.sequence - 1} were acknowledged",
        hint=f"{_RESTORE}; 'mvc fsck --rebuild-index' accepts the loss",
    )


def _shown(prefix: bytes) -> str:
    """For a message: what a query for keys under ``prefix`` was to find out."""
    if prefix[:1] == keys.REF:
        name = prefix[1:].partition(b"\0")[0].decode("utf-8", "replace")
        return f"where {name.removeprefix('heads/').removeprefix('tags/')} points to"
    on = keys.on("")[:-1]
    if prefix.startswith(on):
        name = prefix[len(on) :].partition(b"\0")[0].decode("utf-8", "replace")
        return f"which operation on {name} is the newest"
    return "which entry is the newest"
