"""A snapshot answers all queries about the history of a repository.

It reads three kinds of files. The journal has one entry for each operation, such as a commit. Packs
contain the encoded objects. The index maps keys, such as the id of a commit, to entries of the
journal (``mvc.store.index.keys``). The newest entries, the *tail*, are not in the index yet. So a
query searches in the index and in the tail. ``refresh`` reads entries that were appended to the
journal since the last refresh. If another process has replaced the journal or the index,
``refresh`` opens the new file.
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
    """Decorates a query, so that it is repeated if the journal is replaced while the query runs."""

    @wraps(query)
    def retried(self: Snapshot, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self.retry_on_rewrite(lambda: query(self, *args, **options))

    return retried


class Snapshot:
    """Reads the journal, the index and the packs of one open repository. Safe across threads."""

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

        ``ahead``: an offset and bytes, which are read instead of the journal's bytes from this
        offset on. Raises DamagedData, HistoryMissing, IoFailed.
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
            # The high-water mark must not be newer than the journal, so it is read first.
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
        """A number that grows when this snapshot finds that gc or repack replaced the journal."""
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
        """The newest entry. None if the index contains this entry already."""
        return self._index.tip

    @property
    def gaps(self) -> list[Gap]:
        """Ranges of lost entries in the part of the journal that is not indexed.

        The journal has two copies of each entry. An entry is lost if both copies are damaged.
        """
        return self._index.gaps

    @property
    def rebuilt(self) -> bool:
        """Whether the index was damaged and has been replaced."""
        return self._index.rebuilt

    @property
    def damage(self) -> DamagedData | None:
        """The error for the newest read of a damaged record header. None without such a read."""
        return self._records.damage

    def entry(self, offset: int) -> Recorded:
        """The journal entry at byte ``offset``. Raises DamagedData if the entry is lost."""
        return self.journal.entry(offset)

    def records(self, offset: int) -> EntryRecords:
        """The undamaged records (encoded objects) of the entry at byte ``offset``."""
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
        """Raises DamagedData if entries after byte ``offset`` are lost.

        ``question``: the fact that is unknown without these entries, for the message.
        """
        later = [gap for gap in self.gaps if gap.start.offset > offset]
        if later:
            raise DamagedData(
                f"mvc cannot determine {question}: {later[-1].told}",
                hint=LOST,
            )

    def check_whole(self) -> None:
        """Raises DamagedData if entries are lost, because a new entry might contradict lost ones.

        Raises DamagedData, too, if the newest entry for HEAD or for the current branch is damaged.
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
        """Whether the bytes ``text`` occur in the indexed part of the journal, from ``start`` on.

        The journal is searched without parsing. So the bytes may be part of any data in an entry.
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
        """The newest entry whose key begins with ``prefix``.

        ``prefix``: a whole key except the entry's offset, with which the key ends. Raises
        DamagedData if a lost entry may be newer.
        """
        key = self.last_under(prefix)
        if key is None:
            return None
        self.check_gaps(keys.offset_of(key), _shown(prefix))
        return self.entry(keys.offset_of(key))

    @_retried_on_rewrite
    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with the number ``sequence``. None if no entry ever had this number.

        Raises DamagedData if the entry is lost.
        """
        if (offset := self.offset_of(sequence)) is not None:
            return self.entry(offset)
        for gap in self.gaps:
            if sequence in gap.numbers:
                self.check_gaps(gap.start.offset - 1, f"what operation {sequence} did")
        return None

    def retry_on_rewrite(self, query: Callable[[], _T]) -> _T:
        """Runs a query, and repeats the query if the journal is replaced while it runs."""
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
        """Runs a query. Repeats the query if another process has changed the index.

        Renews a damaged index.
        """
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
    # These queries check for lost entries: ``newest`` and the queries that call ``newest``,
    # ``by_sequence``, ``ref_at`` and ``refs_under``. Before any other query, call ``check_gaps`` if
    # a lost entry could change the answer. Queries about forgotten states need no check, because a
    # lost entry never prevents reading a stored version by id.

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
        """The entry with the earliest time among all entries that changed a ref."""
        low = keys.REFLOG + keys.text(name)
        key = self.first(low, keys.after(low))
        return None if key is None else self.entry(keys.offset_of(key))

    def has_ref(self, name: str) -> bool:
        """Whether any entry has ever set or deleted this ref."""
        return self.last_under(keys.REFLOG + keys.text(name)) is not None

    def refs_under(self, prefix: str) -> Iterator[tuple[str, Recorded | None]]:
        """Yields each ref whose name begins with ``prefix``, and the newest entry of this ref.

        The names descend. If the entry is lost, or if a lost entry may be newer, yields None
        instead of the entry.
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
        """Entries that recorded commits with ids from ``first`` to ``last``, in order of the ids.

        ``last``: by default ``first``. Only the first 8 bytes of ids are compared.
        """
        low = keys.COMMIT + first[: keys.ID_BYTES]
        high = keys.after(keys.COMMIT + (first if last is None else last)[: keys.ID_BYTES])
        return [self.entry(keys.offset_of(key)) for key in self.scan(low, high)]

    def committed_since(self, time_ns: int) -> list[int]:
        """Offsets of entries with commits that were made at ``time_ns`` or later."""
        return [
            keys.offset_of(key)
            for key in self.scan(keys.COMMITTED + keys.moment(time_ns), keys.after(keys.COMMITTED))
        ]

    def commits_between(self, start: int, end: int) -> list[bytes]:
        """The first 8 bytes of the id of each commit in the entries from ``start`` to ``end``.

        ``start``, ``end``: byte offsets in the journal. The result includes commits of lost
        entries, if the index has their ids.
        """
        return [
            key[1 : 1 + keys.ID_BYTES]
            for key in self.under(keys.COMMIT)
            if start <= keys.offset_of(key) < end
        ]

    def offsets_between(self, start: int, end: int) -> list[int]:
        """Offsets from ``start`` to ``end`` of entries with known keys, even of lost entries."""
        tables = (keys.REF, keys.COMMIT, keys.STATEMENT, keys.PACK)
        offsets = {keys.offset_of(key) for table in tables for key in self.under(table)}
        return sorted(offset for offset in offsets if start <= offset < end)

    def marked(self, mark: bytes) -> list[int]:
        """Offsets of entries with a version whose content hash begins with ``mark`` (8 bytes)."""
        return [keys.offset_of(key) for key in self.under(keys.MARK + mark)]

    def newest_first(self) -> Iterator[Recorded]:
        """Yields every entry, the newest first."""
        high = keys.after(keys.OPERATION)

        def next_entry() -> Recorded | None:
            return self._last_entry(keys.OPERATION, high)

        while (recorded := self.retry_on_rewrite(next_entry)) is not None:
            yield recorded
            high = keys.OPERATION + keys.number(recorded.sequence)

    @_retried_on_rewrite
    def from_sequence(self, sequence: int) -> list[Recorded]:
        """The entry with the number ``sequence``, and all newer entries, oldest first."""
        first = keys.OPERATION + keys.number(sequence)
        every = self.scan(first, keys.after(keys.OPERATION))
        return [self.entry(keys.offset_of(key)) for key in every]

    def is_lost(self, sequence: int | None) -> bool:
        return any(sequence in gap.numbers for gap in self.gaps)

    def offset_of(self, sequence: int) -> int | None:
        """Byte offset of the entry with the number ``sequence``, even if the entry is damaged."""
        key = self.last_under(keys.OPERATION + keys.number(sequence))
        return None if key is None else keys.offset_of(key)

    def newest_undo(self, sequence: int) -> Recorded | None:
        """The newest entry that undid the operation with the number ``sequence``."""
        return self.newest(keys.UNDONE + keys.number(sequence))

    def targets(self, *, reports: bool = False) -> list[str]:
        """Names of targets with deployments, ascending, without the targets ``nodes/...``.

        With ``reports``, only the targets ``nodes/...``. There, each node (a repository on a
        serving machine) reports which version it uses.
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
        """The newest own operation on a target, and whether the target has only own operations.

        An own operation was recorded in this repository, not received. Own operations before number
        ``sequence`` are ignored. The second value is True if every operation on the target, from
        the first own operation on, is own and in turn (``keys._is_in_turn``).
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
        """The time (ns since 1970) of the earliest deployment on a target after ``time_ns``."""
        low = keys.DEPLOYED + keys.text(target)
        later = self.first(keys.after(low + keys.moment(time_ns)), keys.after(low))
        return None if later is None else keys.moment_of(later)

    def before_on(self, target: str, offset: int) -> int | None:
        """Offset of the newest entry on a target (deployment or retraction) before ``offset``."""
        low = keys.on(target)
        key = self.last(low, low + keys.number(offset))
        return None if key is None else keys.offset_of(key)

    def offsets_on(self, target: str) -> list[int]:
        """Offsets of entries with deployments or retractions on a target, ascending."""
        return [keys.offset_of(key) for key in self.under(keys.on(target))]

    def deployments_of(self, commit: bytes) -> list[int]:
        """Offsets of entries that deploy a commit whose id begins like ``commit`` (8 bytes)."""
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
        """The statement with the id ``id_``, and the entry that contains it; None if there is none.

        A statement is an assertion about a commit, such as a deployment (``mvc.model.statement``).
        """
        for key in self.under(keys.STATEMENT + id_[: keys.ID_BYTES]):
            recorded = self.entry(keys.offset_of(key))
            if (statement := recorded.entry.by_id.get(StatementId(id_))) is not None:
                return recorded, statement
        return None

    @_retried_on_rewrite
    def about(self, kind: type[_S], subject: bytes) -> list[tuple[Recorded, _S]]:
        """All statements of a kind about a subject, except reports of nodes, by hybrid time.

        For a kind without targets, raises DamagedData if the index lacks a statement.
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
        """The newest entry with a statement of the same topic as ``statement``.

        The topic of a statement is its target. If a statement has no target, its topic is its kind
        and subject.
        """
        for recorded in self._descending(keys.topic(statement)):
            if any(earlier.topic == statement.topic for earlier in recorded.entry.statements):
                return recorded
        return None

    @_retried_on_rewrite
    def is_subject(self, kind: type[Statement], subject: bytes) -> bool:
        """Whether a statement of this kind about ``subject`` exists."""
        entries = self._descending(keys.about(kind.code, subject))
        return any(
            s.subject == subject for s in chain.from_iterable(r.entry.of(kind) for r in entries)
        )

    def _descending(self, prefix: bytes) -> Iterator[Recorded]:
        """Yields the entries whose keys begin with ``prefix``, in descending order of keys."""
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
        """Entries with statements of ``kind``, oldest first. Only for kinds without targets."""
        return self._entries_under(keys.SUBJECT + bytes((kind.code,)))

    def has_any(self, kind: type[Statement]) -> bool:
        """Whether any statement of ``kind`` exists. Only for kinds without targets."""
        return self.last_under(keys.SUBJECT + bytes((kind.code,))) is not None

    @property
    def node(self) -> bytes:
        """The id of this repository in statements. Copies of the repository have the same id."""
        return node_of(self.entry(0).entry.note)

    def newest_hybrid(self, target: str, code: int = Deployment.code) -> int | None:
        """The greatest hybrid time of a target's statements. ``code``: the kind of statements.

        The hybrid time is the clock's time, or a later time if the clock was set back.
        """
        key = self.last_under(keys.ordered(code, target))
        return None if key is None else keys.moment_of(key)

    def at_hybrid(self, target: str, hybrid_ns: int) -> int:
        """How many deployments on a target have this hybrid time."""
        return len(self.under(keys.ordered(Deployment.code, target) + keys.moment(hybrid_ns)))

    def _last_entry(self, low: bytes, high: bytes) -> Recorded | None:
        """The entry of the greatest key between ``low`` and ``high``."""
        key = self.last(low, high)
        return None if key is None else self.entry(keys.offset_of(key))

    @_retried_on_rewrite
    def _entries_under(self, *prefixes: bytes) -> list[Recorded]:
        """The entries of all keys that begin with one of ``prefixes``, oldest first."""
        offsets = {keys.offset_of(key) for prefix in prefixes for key in self.under(prefix)}
        return [self.entry(offset) for offset in sorted(offsets)]

    def forgetting(self) -> list[Recorded]:
        """Every entry with tombstones or marks of states, oldest first.

        A tombstone says that a version's state (its tensors and other bytes) was deleted in all
        repositories. A mark says whether a version's state is stored in this repository.
        """
        tombstones = keys.SUBJECT + bytes((Tombstone.code,))
        return self._entries_under(tombstones, keys.SUBJECT + keys.STATE)

    def state_marks(
        self, commit: bytes | None = None, *, weights: bool = False
    ) -> list[tuple[Recorded, StateMark]]:
        """The marks that say whether the state of ``commit`` is stored, the oldest first.

        With ``weights``: instead, the marks that say whether the weights of a file are stored.
        Without ``commit``: the marks of all commits.
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
        """Remembers an entry that this process made durable. Queries check that they find it."""
        with self._lock:
            if len(self._own) > _OWN_KEYS:
                newest = sorted(self._own, key=keys.offset_of)[_OWN_KEYS // 2 :]
                self._own = sorted(newest)
            for key in keys.entry_keys(recorded):
                insort(self._own, key)

    def _checked(self, low: bytes, high: bytes, result: Collection[bytes]) -> list[bytes]:
        """Returns ``result``, the keys that the index found between ``low`` and ``high``.

        Raises DamagedData if ``result`` lacks the key of an entry that this process has published.
        """
        begin, end = bisect_left(self._own, low), bisect_left(self._own, high)
        if any(self._own[i] not in result for i in range(begin, end)):
            raise DamagedData("the index lacks an entry that this process has published")
        return list(result)

    def _checked_last(self, low: bytes, high: bytes, key: bytes | None) -> bytes | None:
        """As ``_checked``, for a query that returns only the greatest key of the range."""
        self._checked(low if key is None else key, high, [] if key is None else [key])
        return key

    def _checked_first(self, low: bytes, high: bytes, key: bytes | None) -> bytes | None:
        """As ``_checked``, for a query that returns only the least key of the range."""
        self._checked(low, high if key is None else key, [])
        return key

    # -- refreshing ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads entries that any process has appended since the last refresh.

        If the journal was replaced, ``generation`` grows, and the new journal is read from the
        start. Raises HistoryMissing if the journal lacks an entry that was durable.
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
        """Handles a journal that lacks entries before ``reached``, although it once had them.

        If the file is shorter than ``reached``, it was truncated or restored from an older copy:
        raises HistoryMissing. Otherwise the entries are damaged: adds a gap.
        """
        if self.journal.size() < reached.offset or reached.offset <= self.position.offset:
            raise _missing(self.position, reached)
        gap = Gap(self.position, reached)
        if not any(known.start == gap.start for known in self.gaps):
            self.gaps.append(gap)

    def _reopen(self) -> None:
        """Opens the new journal, after gc or repack has replaced the journal."""
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
        """Reads the tail again, because the newest entry's writer failed and removed the entry."""
        if newest.after.offset <= self.journal.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint=_RESTORE,
            )
        self._start_over()

    def _start_over(self) -> None:
        """Clears the tail in memory, so that its entries are read again."""
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
    """The question that a search for ``prefix`` answers, for a message."""
    if prefix[:1] == keys.REF:
        name = prefix[1:].partition(b"\0")[0].decode("utf-8", "replace")
        return f"where {name.removeprefix('heads/').removeprefix('tags/')} points to"
    on = keys.on("")[:-1]
    if prefix.startswith(on):
        name = prefix[len(on) :].partition(b"\0")[0].decode("utf-8", "replace")
        return f"which operation on {name} is the newest"
    return "which entry is the newest"
