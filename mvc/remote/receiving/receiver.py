"""Receives a slice of a fetch or push: journal entries with the records that these entries need.

A record has encoded tensors and manifests. A pack is a file of records. The received records are
appended to a pack. No other process reads these records before a journal entry names them. After
``verify`` has verified the records, each received entry (a *draft*) becomes a journal entry. The
last entry also has the changes of refs. If the process stops earlier, the next writer of the pack
deletes the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import (
    Busy,
    DamagedData,
    HistoryMissing,
    RemoteRefused,
    StorageFull,
    UnknownRevision,
    WeightsDropped,
)
from mvc.ids import CommitId
from mvc.limits import MIB, PIECE
from mvc.model.commit import Commit
from mvc.model.statement import Deployment, Statement, Tombstone
from mvc.names import is_report, printable
from mvc.remote.places import place_of
from mvc.remote.receiving.verify import (
    Delivered,
    Missing,
    ProvenSlice,
    ReceivedVersion,
    is_reached,
    opened_ahead,
    prove,
)
from mvc.remote.refs import leads_to, ref_changes
from mvc.remote.scopes import allows, check_moves, check_news, check_protected, require
from mvc.remote.slices import Absent, NodeReport, PartReader, Sent, decode_entries, sent_with
from mvc.remote.statements import (
    admit,
    check_clock,
    check_target,
    compared,
    in_parts,
    purged_versions,
    to_restore,
)
from mvc.remote.transport import BROUGHT, FETCH, Move, Place, Received, RefusedDeployment, Slice
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import BRANCH, head_refs
from mvc.repo.statements.live import Standings
from mvc.repo.statements.protection import protected, protecting
from mvc.store.format import check_features
from mvc.store.graph.search import Graph
from mvc.store.journal.entries import Entry, Region, StateMark
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import Placed
from mvc.store.packs.records import (
    CHECK_SIZE,
    PREFIX_SIZE,
    RecordHeader,
    decode_header,
    read_prefix,
)
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.store.writing.pack_writer import PackWriter
from mvc.text import size as in_units
from mvc.times import check_moment
from mvc.types import Bytes

_TRIES = 8
_AT_ONCE = 4  # number of entries that are published under one lock of the journal
_MEMBERS = 1 << 21  # limit of contents and pieces of a slice
_HEADER = 8 * MIB
_BODY = 8 * PIECE


class _ReceivedEntry(Struct):
    """A received entry, before it is published.

    ``fresh``: the versions of the entry that this repository lacks. ``refilled``: versions that
    this repository has, and whose missing states or weights arrived. ``marked``: refilled versions
    whose states arrived. ``restored``: what to record about weights that arrived. ``lapsed``:
    versions without weights that cannot be retrained here. These versions count as forgotten by a
    rule. ``statements``: the statements to admit if they pass the checks.
    """

    sent: Sent
    fresh: tuple[Commit, ...] = ()
    absent: dict[CommitId, Absent] = field(default_factory=dict)
    refilled: tuple[Commit, ...] = ()
    marked: tuple[CommitId, ...] = ()
    restored: tuple[StateMark, ...] = ()
    lapsed: set[CommitId] = field(default_factory=set)
    records: list[Placed] = field(default_factory=list)
    regions: tuple[Region, ...] = ()
    marks: tuple[bytes, ...] = ()
    statements: tuple[Statement, ...] = ()

    @property
    def is_new(self) -> bool:
        return bool(self.fresh or self.refilled)

    @property
    def own(self) -> set[CommitId]:
        return {commit.id for commit in self.fresh}

    @property
    def versions(self) -> list[ReceivedVersion]:
        """The versions whose states arrived."""
        versions = [
            (commit, self.absent.get(commit.id)) for commit in (*self.refilled, *self.fresh)
        ]
        return [
            ReceivedVersion(commit, frozenset(() if lack is None else (lack.path,)))
            for commit, lack in versions
            if lack is None or lack.why == "dropped"
        ]

    @property
    def delivered(self) -> Delivered:
        shapes = {shape.id: shape.spec for shape in self.sent.shapes}
        return Delivered(self.records, self.versions, shapes)

    def entry(self, operation: str, now_ns: int) -> Entry:
        """The entry to record, without statements and refs."""
        known = {commit.id: commit for commit in (*self.fresh, *self.refilled)}
        lacks = [(id_, lack) for id_, lack in self.absent.items() if id_ in known]
        return Entry(
            operation,
            now_ns,
            regions=self.regions,
            commits=self.fresh,
            marks=self.marks,
            states=(
                *(  # a tombstone (purge) may follow
                    StateMark(id_, "absent" if id_ in self.own else "forgotten")
                    for id_, lack in lacks
                    if lack.why != "dropped" or id_ in self.lapsed
                ),
                *self.restored,
                *(
                    StateMark(id_, "dropped", lack.path)
                    for id_, lack in lacks
                    if lack.why == "dropped"
                ),
                *(StateMark(id_, "stored") for id_ in self.marked),
            ),
        )


def receive(
    store: Store,
    config: Config,
    incoming: Slice,
    *,
    local: bool = False,
    scopes: tuple[str, ...] = (),
    sender: str = "",
) -> Received:
    """Publishes a slice durably. If contents are missing, changes nothing and returns their ids.

    ``local``: whether the slice belongs to a fetch. The rules for pushes do not apply to a fetch.
    ``scopes``: the sender's permissions; empty if everything is permitted. ``sender``: the name of
    the sender. If it raises an error, nothing of the slice is visible, unless another process
    changed the repository meanwhile: then the first entries may be visible. Raises DamagedData for
    a wrong hash; RemoteRefused for a time more than a day in the future, and for a missing scope;
    HistoryMissing for unknown parents; RefConflict; StateForgotten; StorageFull; UnsupportedFormat;
    Busy.
    """
    store.now_ns()
    store.require()
    store.fresh()
    check_features(incoming.features)
    check_moves(scopes, incoming.moves)
    sent = [part for entry in decode_entries(incoming.head) for part in _parts(entry)]
    drafts = _drafts(store, sent, incoming.size, local=local)
    if incoming.size > (room := store.fs.free_bytes(store.folder)):
        raise StorageFull(
            ("the disk" if local else "the remote's disk")
            + f" is nearly full: {in_units(incoming.size)} do not fit, "
            f"{in_units(room)} are free",
            hint="free some space, then repeat the command: complete slices are not sent again",
        )
    try:
        with store.pack_writer() as packs:
            _append_records(store.graph, packs, incoming.records, drafts)
            work = _Publication(
                store, config, drafts, incoming.moves, local=local, scopes=scopes, sender=sender
            )
            for _ in range(_TRIES):
                generation = store.fresh().generation
                try:
                    done = work.run(packs)
                except (ConcurrentRewrite, DamagedData, Missing):
                    # Maintenance may have deleted records meanwhile. If so, the loop tries again.
                    if store.fresh().generation == generation:
                        raise
                else:
                    return _received(store.snapshot, done, work)
    except Missing as missing:
        return Received(
            place_of(store.snapshot), missing.ids, without=purged_versions(store.snapshot)
        )
    raise Busy("the repository is rewritten continuously", hint="repeat the command later")


def _received(snapshot: Snapshot, done: Sequence[Recorded], work: _Publication) -> Received:
    end = done[-1].after if done else snapshot.position
    return Received(
        Place(end.sequence, end.chain),
        retained=tuple(work.retained),
        refused=tuple(work.refused),
        # Too large if other processes published in between. The sender then reads more entries.
        begun=done[-1].sequence + 1 - len(done) if done else 0,
    )


# -- received entries ------------------------------------------------------------------------


def _parts(sent: Sent) -> Iterator[Sent]:
    """Splits an entry with many statements (such as deployments). Raises DamagedData."""
    first, *more = [*in_parts(sent.decoded)] or [()]
    yield replace(sent, statements=tuple(statement.encoded for statement in first))
    yield from (sent_with(statements, is_own=sent.is_own) for statements in more)


def _drafts(store: Store, sent: Sequence[Sent], size: int, *, local: bool) -> list[_ReceivedEntry]:
    """The drafts of received entries, after checks of sizes, parents and times."""
    if sum(entry.size for entry in sent) != size or any(entry.size < 0 for entry in sent):
        raise DamagedData("the sizes of the entries do not add up to the size of the records")
    snapshot, now_ns = store.snapshot, store.now_ns()
    new: set[CommitId] = set()
    drafts = []
    for entry in sent:
        versions = [Commit.decode(data) for data in entry.commits]
        fresh = []
        for commit in versions:
            check_clock(commit.time_ns, now_ns, f"version {commit.id.short}")
            if commit.id in new or commits.find(snapshot, commit.id) is not None:
                continue
            for needed in (*commit.parents, *commit.needs):
                if needed not in new and commits.find(snapshot, needed) is None:
                    raise HistoryMissing(
                        f"version {commit.id.short} needs {needed.short}, which was not sent",
                        hint="repeat the command; if that does not help, clone again",
                    )
            new.add(commit.id)
            fresh.append(commit)
        absent = {CommitId(lack.commit): lack for lack in entry.absent}
        draft = _ReceivedEntry(entry, tuple(fresh), absent)
        to_restore(
            store.snapshot, [version.commit.id for version in draft.versions]
        )  # refuses purged states
        _note_restored(store, draft)
        drafts.append(draft)
    _check_bases(store, drafts, local=local)
    return drafts or [_ReceivedEntry(Sent())]


def _note_restored(store: Store, draft: _ReceivedEntry) -> None:
    """Notes in the draft which versions get their missing states or dropped weights."""
    ids = [CommitId(id_) for id_ in draft.sent.restored]
    for id_ in ids:
        if not store.snapshot.has_commit(id_):
            raise UnknownRevision(
                f"the receiver has no version {id_.short}, whose state was sent",
                hint="push the version itself first",
            )
        if id_ in draft.absent and draft.absent[id_].why != "dropped":
            raise DamagedData(f"the slice lacks the announced state of version {id_.short}")
    draft.marked = to_restore(store.snapshot, ids)
    for id_ in ids:
        dropped = None if id_ in draft.absent else availability.dropped(store, id_)
        if dropped is not None:
            draft.restored += (StateMark(id_, "stored", dropped.path),)
        if dropped is not None or id_ in draft.marked:
            draft.refilled += (commits.get(store.snapshot, id_),)


def _check_bases(store: Store, drafts: Sequence[_ReceivedEntry], *, local: bool) -> None:
    """Checks that dropped weights can be recomputed by repeating the training.

    The training needs the states of other versions, the *bases*. If a base is missing in a fetch,
    the version without weights counts as forgotten by a rule, because this repository may have
    forgotten the base. If a base is missing in a push, raises WeightsDropped.
    """
    fresh = {commit.id for draft in drafts for commit in draft.fresh}
    arriving = {version.commit.id for draft in drafts for version in draft.versions}
    without_weights = [(d, v.commit) for d in drafts for v in d.versions if v.dropped]
    for draft, commit in without_weights:  # bases come before the versions trained from them
        for needed in availability.leading_on(store, commit.needs, arriving):
            is_stored = needed not in fresh and availability.forgotten(store, needed) is None
            if needed in arriving or is_stored:
                continue
            if not local or commit.id not in fresh:
                raise WeightsDropped(
                    f"version {commit.id.short} was sent without weights, and {needed.short}, "
                    "needed to retrain them, without its state",
                    hint="send the states of both, or restore the weights first: "
                    f"'mvc retrain {commit.id.short} --trust-code'",
                )
            draft.lapsed.add(commit.id)
            arriving.discard(commit.id)


def _append_records(
    graph: Graph, packs: PackWriter, parts: Iterable[Bytes], drafts: Sequence[_ReceivedEntry]
) -> None:
    """Appends the records of every entry, except records whose contents are stored already."""
    source = _Source(iter(parts))
    for draft in drafts:

        def is_news(header: RecordHeader, draft: _ReceivedEntry = draft) -> bool:
            members = header.members
            return draft.is_new and not all(is_reached(graph, m.id, m.start) for m in members)

        draft.records.extend(_appended(packs, source, draft.sent.size, is_news))
        draft.regions = packs.cut()
    source.end()


def take_records(packs: PackWriter, parts: Iterable[Bytes], size: int) -> tuple[Region, ...]:
    """Appends ``size`` bytes of records without verification.

    Returns the regions of packs to which the records were written.
    """
    source = _Source(iter(parts))
    for _ in _appended(packs, source, size, lambda _: True):
        pass
    source.end()
    return packs.cut()


def _appended(
    packs: PackWriter, source: _Source, size: int, wanted: Callable[[RecordHeader], bool]
) -> Iterator[Placed]:
    while size:
        head, header = _header(source, size)
        size -= header.size
        if not wanted(header):
            for _ in source.parts(header.body_size):
                pass
            continue
        pack, at = packs.append(head, ())
        for part in source.parts(header.body_size):
            packs.extend(part)
        yield pack, at, header


def _header(source: _Source, left: int) -> tuple[bytes, RecordHeader]:
    where = "the received data"
    prefix = source.take(PREFIX_SIZE)
    header_size, body_size = read_prefix(prefix, left, where)
    if header_size > _HEADER or body_size > _BODY:
        raise DamagedData("a received record exceeds the size limit")
    head = prefix + source.take(header_size + CHECK_SIZE)
    header = decode_header(head, where)
    source.members += len(header.members)
    if source.members > _MEMBERS:
        raise DamagedData("a slice has too many contents")
    return head, header


class _Source(PartReader):
    """Reads a slice's records. ``members``: number of contents and pieces read so far."""

    members = 0

    def parts(self, size: int) -> Iterator[memoryview]:
        while size:
            part = self.read(size)
            if not len(part):
                raise DamagedData("the records of a slice are truncated")
            size -= len(part)
            yield part

    def take(self, size: int) -> bytes:
        return b"".join(self.parts(size))

    def end(self) -> None:
        """Reads to the end of the slice. This compares the checksum."""
        if len(self.read(1)):
            raise DamagedData("a slice has bytes after its last record")


# -- publication -----------------------------------------------------------------------------


class _Publication:
    """Verifies the drafts, then publishes the drafts in order. Refs change with the last draft."""

    def __init__(
        self,
        store: Store,
        config: Config,
        drafts: Sequence[_ReceivedEntry],
        moves: Sequence[Move],
        *,
        local: bool,
        scopes: tuple[str, ...],
        sender: str,
    ) -> None:
        self._store, self._config, self._drafts, self._sender = store, config, drafts, sender
        self._moves, self._local, self._scopes = moves, local, scopes
        self._operation = FETCH if local else BROUGHT
        self._commits = {commit.id: commit for draft in drafts for commit in draft.fresh}
        self.retained: dict[CommitId, None] = {}
        self.refused: list[RefusedDeployment] = []

    def run(self, packs: PackWriter) -> list[Recorded]:
        """Verifies and publishes all drafts, and returns the published entries.

        Raises Missing and DamagedData. Raises ConcurrentRewrite if maintenance replaced the journal
        meanwhile, because maintenance may have deleted bases of received deltas.
        """
        generation = self._store.snapshot.generation
        self._store.require(self._proven().features)
        packs.sync()
        self.refused.clear()
        standings = Standings(self._store.snapshot)
        for draft in self._drafts:
            draft.statements = draft.sent.decoded

        def makes(drafts: Sequence[_ReceivedEntry]) -> Iterator[Callable[[], Entry]]:
            if self._store.snapshot.generation != generation:
                raise ConcurrentRewrite("the journal was replaced during verification")
            for draft in drafts:  # checks all drafts before the first one is published
                self._entry(draft, self._commits)
            for draft in drafts:
                if draft.sent.is_own and not self._local:
                    draft.statements, refused = compared(
                        self._store.snapshot, draft.statements, standings
                    )
                    self.refused += refused
                if self._entry(draft, draft.own) is not None:
                    yield partial(self._checked_entry, draft)

        # Check all drafts before the first draft is published. If the checks later fail, another
        # process has changed the repository.
        if len(self._drafts) > _AT_ONCE:
            for draft in self._drafts:
                self._entry(draft, self._commits)
        done = list[Recorded]()
        for begin in range(0, len(self._drafts), _AT_ONCE):
            try:
                part = self._drafts[begin : begin + _AT_ONCE]
                done += self._store.publish_all(partial(makes, part))
            except (ConcurrentRewrite, DamagedData, Missing) as error:
                if not done:
                    raise
                raise Busy("the repository was rewritten meanwhile", hint="run it again") from error
        return done

    def _proven(self) -> ProvenSlice:
        fresh = [draft for draft in self._drafts if draft.is_new]
        if not fresh:
            return ProvenSlice()
        entries = [draft.entry(self._operation, self._store.now_ns()) for draft in fresh]
        with opened_ahead(self._store.snapshot, entries) as view:
            proven = prove(self._store, view, [draft.delivered for draft in fresh])
        for draft in fresh:
            marks = {mark for commit in draft.fresh for mark in proven.marks.get(commit.id, ())}
            draft.marks = tuple(sorted(marks))
        return proven

    def _checked_entry(self, draft: _ReceivedEntry) -> Entry:
        entry = self._entry(draft, draft.own)
        assert entry is not None
        return entry

    def _entry(self, draft: _ReceivedEntry, own: Collection[CommitId]) -> Entry | None:
        """The entry to record for a draft. None if the draft has nothing new.

        Call it under the journal's lock; without the lock, the call only checks the draft. ``own``:
        new versions that the draft's statements may name. Raises an error if a change is refused.
        """
        store, config, snapshot = self._store, self._config, self._store.snapshot
        entry = draft.entry(self._operation, store.now_ns())
        entry, news = replace(entry, author=self._sender), draft.is_new
        check_news(self._scopes, (), adds=news)
        if not self._local and any(is_report(statement.target) for statement in draft.statements):
            raise RemoteRefused("a push must not contain reports of nodes")
        admitted = admit(store, draft.statements, own)
        statements = [*admitted.statements, *self._reported(draft.sent.reports, own)]
        if statements:
            targets = admitted.targets(snapshot) | {row.target for row in draft.sent.reports}
            annotated = admitted.versions(snapshot)
            if not self._local:
                check_protected(self._scopes, protected(protecting(config), targets))
            forgets = any(isinstance(statement, Tombstone) for statement in statements)
            check_news(self._scopes, targets, adds=bool(annotated), forgets=forgets)
            self._check_annotated(annotated)
            states = (*entry.states, *admitted.states)
            entry, news = replace(entry, statements=tuple(statements), states=states), True
            self.retained.update(dict.fromkeys(admitted.retained))
        if draft is self._drafts[-1]:
            changes = ref_changes(store, self._moves, self._commits, local=self._local)
            entry, news = replace(entry, refs=tuple(changes)), news or bool(changes)
        return entry if news else None

    def _reported(
        self, reports: Sequence[NodeReport], own: Collection[CommitId]
    ) -> Iterator[Deployment]:
        """Deployments that record new reports of nodes (machines that serve a model).

        A server that collects reports adds the sender and the time of arrival to a report. From a
        client whose scopes are limited, these two fields are ignored.
        """
        for report in reports:
            commit, now_ns = CommitId(report.commit), self._store.now_ns()
            check_target(report.target)
            if not is_report(report.target):
                raise DamagedData("a report names a target that belongs to no node")
            check_moment(report.time_ns)
            check_clock(max(report.time_ns, report.now_ns), now_ns, "a report")
            known = self._store.snapshot.deployed_at(report.target, report.time_ns)
            if any(other.subject == commit for other in known):
                continue
            if commit not in own and not self._store.snapshot.has_commit(commit):
                raise HistoryMissing(
                    f"this repository lacks version {commit.short}, which "
                    f"{printable(report.target)} serves",
                    hint="push that version first",
                )
            is_gathered = bool(report.arrived_ns) and not self._scopes
            arrived_ns = report.arrived_ns if is_gathered else now_ns
            yield Deployment(
                subject=commit,
                author=report.author if is_gathered else self._sender,
                target=report.target,
                time_ns=report.time_ns,
                ahead_ms=(report.now_ns - arrived_ns) // 10**6,
            )

    def _check_annotated(self, ids: Set[CommitId]) -> None:
        """Raises RemoteRefused if the sender may not annotate one of these versions.

        If a branch that the sender may not push contains the version, the sender may not annotate
        the version. Otherwise the sender may annotate versions that it sent, and versions in
        branches and tags that it may push.
        """
        known = ids - self._commits.keys()
        if not known or allows(self._scopes, "admin"):
            return
        store, snapshot = self._store, self._store.snapshot
        refs = head_refs(snapshot)
        allowed = {name for name in refs if allows(self._scopes, "push", name)}
        for name in refs.keys() - allowed:
            ancestors = Ancestors(snapshot, [refs[name]])
            if name.startswith(BRANCH) and any(id_ in ancestors for id_ in known):
                require(self._scopes, "push", name)
        led_to = Ancestors(snapshot, [refs[name] for name in allowed])
        moved = [move.new for move in self._moves if move.new is not None]
        for id_ in known:
            if commits.placed(snapshot, id_)[0].entry.sender == self._sender or id_ in led_to:
                continue
            if not any(leads_to(store.snapshot, new, id_, self._commits) for new in moved):
                raise RemoteRefused(
                    f"this token must not annotate or sign {id_.short}: no branch or tag that this "
                    "token may push contains the version",
                    hint="ask the server's administrator for a token that may push such a branch",
                )
