"""Takes a slice into an open repository: written, proven, and only then published.

Its records go behind the committed end of a pack, where nothing but this process sees them. Once
they are proven (``verify``) one journal entry is made of each entry that was sent; refs move with
the last one. What ends before that leaves bytes that the next writer of the pack cuts off.
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
    Given,
    Missing,
    ProvenSlice,
    is_reached,
    opened_ahead,
    prove,
)
from mvc.remote.refs import leads_to, ref_changes
from mvc.remote.scopes import allows, check_moves, check_news, check_protected, require
from mvc.remote.slices import Absent, NodeReport, PartReader, Sent, decode_entries, sent_with
from mvc.remote.statements import (
    admit,
    by_name,
    check_clock,
    check_target,
    compared,
    here_again,
    in_parts,
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
_AT_ONCE = 4  # entries that are published before others may take the journal's lock
_MEMBERS = 1 << 21  # objects and pieces of a slice
_HEADER = 8 * MIB
_BODY = 8 * PIECE


class _ReceivedEntry(Struct):
    """An entry that was sent, which of its versions are new here, and where its records lie.

    ``again``: versions that were here without their states or weights, which have come;
    ``marked`` and ``restored`` say so in the journal. ``lapsed``: versions without weights, and
    without what makes them again, which count as forgotten by rule. ``said``: what may be taken of
    the statements that were sent.
    """

    sent: Sent
    fresh: tuple[Commit, ...] = ()
    absent: dict[CommitId, Absent] = field(default_factory=dict)
    again: tuple[Commit, ...] = ()
    marked: tuple[CommitId, ...] = ()
    restored: tuple[StateMark, ...] = ()
    lapsed: set[CommitId] = field(default_factory=set)
    records: list[Placed] = field(default_factory=list)
    regions: tuple[Region, ...] = ()
    marks: tuple[bytes, ...] = ()
    said: tuple[Statement, ...] = ()

    @property
    def is_new(self) -> bool:
        return bool(self.fresh or self.again)

    @property
    def own(self) -> set[CommitId]:
        return {commit.id for commit in self.fresh}

    @property
    def versions(self) -> list[Given]:
        """The versions whose states came along."""
        came = [(commit, self.absent.get(commit.id)) for commit in (*self.again, *self.fresh)]
        return [
            Given(commit, frozenset(() if lack is None else (lack.path,)))
            for commit, lack in came
            if lack is None or lack.why == "dropped"
        ]

    @property
    def delivered(self) -> Delivered:
        shapes = {each.id: each.spec for each in self.sent.shapes}
        return Delivered(self.records, self.versions, shapes)

    def entry(self, operation: str, now_ns: int) -> Entry:
        """What is recorded here, but for statements and refs."""
        known = {commit.id: commit for commit in (*self.fresh, *self.again)}
        lacks = [(id_, lack) for id_, lack in self.absent.items() if id_ in known]
        return Entry(
            operation,
            now_ns,
            regions=self.regions,
            commits=self.fresh,
            marks=self.marks,
            states=(
                *(  # with a tombstone, once that comes
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
    given: Slice,
    *,
    local: bool = False,
    scopes: tuple[str, ...] = (),
    sender: str = "",
) -> Received:
    """Publishes a slice, durably, or says which objects it lacks; then nothing has changed.

    ``local``: the repository itself fetches, so no rule of a push applies to its refs.
    ``scopes``: what the sender may do, without any everything; ``sender``: who that is.
    Raises DamagedData for what is not what its name says, RemoteRefused for what is dated more
    than a day ahead or needs another scope, HistoryMissing for a version whose parents are
    unknown, RefConflict, StateForgotten, StorageFull, UnsupportedFormat, Busy; nothing of the slice
    is visible then.
    """
    store.now_ns()
    store.require()
    store.fresh()
    check_features(given.features)
    check_moves(scopes, given.moves)
    sent = [part for each in decode_entries(given.head) for part in _parts(each)]
    drafts = _drafts(store, sent, given.size, local=local)
    if given.size > (room := store.fs.free_bytes(store.folder)):
        raise StorageFull(
            ("the disk" if local else "the remote's disk")
            + f" is nearly full: {in_units(given.size)} do not fit, "
            f"{in_units(room)} are free",
            hint="make room, then run it again: what was received whole stays",
        )
    try:
        with store.pack_writer() as packs:
            _take_records(store.graph, packs, given.records, drafts)
            work = _Publication(
                store, config, drafts, given.moves, local=local, scopes=scopes, sender=sender
            )
            for _ in range(_TRIES):
                generation = store.fresh().generation
                try:
                    done = work.run(packs)
                except (ConcurrentRewrite, DamagedData, Missing):
                    # Maintenance may have taken away what was read.
                    if store.fresh().generation == generation:
                        raise
                else:
                    return _received(store.snapshot, done, work)
    except Missing as missing:
        return Received(place_of(store.snapshot), missing.ids, without=by_name(store.snapshot))
    raise Busy("the repository was rewritten again and again meanwhile", hint="run it again")


def _received(snapshot: Snapshot, done: Sequence[Recorded], work: _Publication) -> Received:
    end = done[-1].after if done else snapshot.position
    return Received(
        Place(end.sequence, end.chain),
        held=tuple(work.held),
        refused=tuple(work.refused),
        # Where others published between them, this is no number at which the sender stopped.
        begun=done[-1].sequence + 1 - len(done) if done else 0,
    )


# -- what was sent ---------------------------------------------------------------------------


def _parts(sent: Sent) -> Iterator[Sent]:
    """An entry, and others with the rest of what it says if that is much. Raises DamagedData."""
    first, *more = [*in_parts(sent.said)] or [()]
    yield replace(sent, statements=tuple(each.encoded for each in first))
    yield from (sent_with(each, is_own=sent.is_own) for each in more)


def _drafts(store: Store, sent: Sequence[Sent], size: int, *, local: bool) -> list[_ReceivedEntry]:
    """The entries, checked: sizes, parents, times."""
    if sum(each.size for each in sent) != size or any(each.size < 0 for each in sent):
        raise DamagedData("the entries of a slice have other records than it brings")
    snapshot, now_ns = store.snapshot, store.now_ns()
    new: set[CommitId] = set()
    drafts = []
    for each in sent:
        versions = [Commit.decode(data) for data in each.commits]
        fresh = []
        for commit in versions:
            check_clock(commit.time_ns, now_ns, f"version {commit.id.short}")
            if commit.id in new or commits.find(snapshot, commit.id) is not None:
                continue
            for behind in (*commit.parents, *commit.needs):
                if behind not in new and commits.find(snapshot, behind) is None:
                    raise HistoryMissing(
                        f"version {commit.id.short} builds on {behind.short}, which was not sent",
                        hint="run it again; if that does not help, clone again",
                    )
            new.add(commit.id)
            fresh.append(commit)
        absent = {CommitId(lack.commit): lack for lack in each.absent}
        draft = _ReceivedEntry(each, tuple(fresh), absent)
        here_again(
            store.snapshot, [given.commit.id for given in draft.versions]
        )  # refuses a tombstone's
        _come_back(store, draft)
        drafts.append(draft)
    _check_made_from(store, drafts, local=local)
    return drafts or [_ReceivedEntry(Sent())]


def _come_back(store: Store, draft: _ReceivedEntry) -> None:
    """Notes which versions without states, or without weights, have theirs again."""
    ids = [CommitId(id_) for id_ in draft.sent.again]
    for id_ in ids:
        if not store.snapshot.has_commit(id_):
            raise UnknownRevision(
                f"there is no version {id_.short} whose state could be taken",
                hint="push the version itself first",
            )
        if id_ in draft.absent and draft.absent[id_].why != "dropped":
            raise DamagedData(f"the state of version {id_.short} was to come, and does not")
    draft.marked = here_again(store.snapshot, ids)
    for id_ in ids:
        gone = None if id_ in draft.absent else availability.dropped(store, id_)
        if gone is not None:
            draft.restored += (StateMark(id_, "stored", gone.path),)
        if gone is not None or id_ in draft.marked:
            draft.again += (commits.get(store.snapshot, id_),)


def _check_made_from(store: Store, drafts: Sequence[_ReceivedEntry], *, local: bool) -> None:
    """Looks at versions without weights of which what makes them again is not here.

    In a fetch such a version counts as forgotten by rule, because its base may have been forgotten
    here; it comes back with its base. Else raises WeightsDropped.
    """
    fresh = {commit.id for draft in drafts for commit in draft.fresh}
    coming = {given.commit.id for draft in drafts for given in draft.versions}
    made = [(d, given.commit) for d in drafts for given in d.versions if given.given_up]
    for draft, commit in made:  # bases come before what was trained from them
        for needed in availability.leading_on(store, commit.needs, coming):
            is_here = needed not in fresh and availability.forgotten(store, needed) is None
            if needed in coming or is_here:
                continue
            if not local or commit.id not in fresh:
                raise WeightsDropped(
                    f"version {commit.id.short} has no weights, and {needed.short}, from which "
                    "they are trained again, comes without its state",
                    hint="send the state of both, or store the weights again first: "
                    f"'mvc retrain {commit.id.short} --trust-code'",
                )
            draft.lapsed.add(commit.id)
            coming.discard(commit.id)


def _take_records(
    graph: Graph, packs: PackWriter, parts: Iterable[Bytes], drafts: Sequence[_ReceivedEntry]
) -> None:
    """Appends the records of every entry, but those of which all objects are here already."""
    source = _Source(iter(parts))
    for draft in drafts:

        def is_news(header: RecordHeader, draft: _ReceivedEntry = draft) -> bool:
            members = header.members  # not all are here already
            return draft.is_new and not all(is_reached(graph, m.id, m.start) for m in members)

        draft.records.extend(_appended(packs, source, draft.sent.size, is_news))
        draft.regions = packs.cut()
    source.end()


def take_records(packs: PackWriter, parts: Iterable[Bytes], size: int) -> tuple[Region, ...]:
    """Appends records as they come, of so many bytes; returns where they lie. Proves nothing."""
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
    where = "what was sent"
    prefix = source.take(PREFIX_SIZE)
    header_size, body_size = read_prefix(prefix, left, where)
    if header_size > _HEADER or body_size > _BODY:
        raise DamagedData("a record is larger than any that is written")
    head = prefix + source.take(header_size + CHECK_SIZE)
    header = decode_header(head, where)
    source.members += len(header.members)
    if source.members > _MEMBERS:
        raise DamagedData("a slice brings more objects than any has")
    return head, header


class _Source(PartReader):
    """The bytes of a slice's records, in the parts in which they come. ``members`` were read."""

    members = 0

    def parts(self, size: int) -> Iterator[memoryview]:
        while size:
            part = self.read(size)
            if not len(part):
                raise DamagedData("the records of a slice are cut off")
            size -= len(part)
            yield part

    def take(self, size: int) -> bytes:
        return b"".join(self.parts(size))

    def end(self) -> None:
        """Reads on to the end, where the source compares its checksum."""
        if len(self.read(1)):
            raise DamagedData("a slice goes on after its last record")


# -- publication -----------------------------------------------------------------------------


class _Publication:
    """Proves the drafts and publishes them one after the other; the refs move with the last."""

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
        self.held: dict[CommitId, None] = {}
        self.refused: list[RefusedDeployment] = []

    def run(self, packs: PackWriter) -> list[Recorded]:
        """Returns what was published. Raises Missing, DamagedData.

        Raises ConcurrentRewrite if maintenance took away meanwhile what the slice builds on.
        """
        generation = self._store.snapshot.generation
        self._store.require(self._proven().features)
        packs.sync()
        self.refused.clear()
        standings = Standings(self._store.snapshot)
        for draft in self._drafts:
            draft.said = draft.sent.said

        def makes(drafts: Sequence[_ReceivedEntry]) -> Iterator[Callable[[], Entry]]:
            if self._store.snapshot.generation != generation:
                raise ConcurrentRewrite("the journal was replaced while what came was proven")
            for draft in drafts:  # what is refused is refused before anything is published
                self._entry(draft, self._commits)
            for draft in drafts:
                if draft.sent.is_own and not self._local:
                    draft.said, refused = compared(self._store.snapshot, draft.said, standings)
                    self.refused += refused
                if self._entry(draft, draft.own) is not None:
                    yield partial(self._made, draft)

        if len(self._drafts) > _AT_ONCE:  # then only what others publish meanwhile can refuse it
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

    def _made(self, draft: _ReceivedEntry) -> Entry:
        entry = self._entry(draft, draft.own)
        assert entry is not None
        return entry

    def _entry(self, draft: _ReceivedEntry, own: Collection[CommitId]) -> Entry | None:
        """What is recorded of a draft, under the journal's lock; None if nothing of it is new.

        ``own``: versions that are there by then. Raises what the receiver refuses.
        """
        store, config, snapshot = self._store, self._config, self._store.snapshot
        entry = draft.entry(self._operation, store.now_ns())
        entry, news = replace(entry, author=self._sender), draft.is_new
        check_news(self._scopes, (), adds=news)
        if not self._local and any(is_report(each.target) for each in draft.said):
            raise RemoteRefused("what nodes report is recorded by the remote that they report to")
        admitted = admit(store, draft.said, own)
        statements = [*admitted.statements, *self._reported(draft.sent.reports, own)]
        if statements:
            targets = admitted.targets(snapshot) | {each.target for each in draft.sent.reports}
            said = admitted.versions(snapshot)
            if not self._local:
                check_protected(self._scopes, protected(protecting(config), targets))
            forgets = any(isinstance(each, Tombstone) for each in statements)
            check_news(self._scopes, targets, adds=bool(said), forgets=forgets)
            self._check_annotated(said)
            states = (*entry.states, *admitted.states)
            entry, news = replace(entry, statements=tuple(statements), states=states), True
            self.held.update(dict.fromkeys(admitted.held))
        if draft is self._drafts[-1]:
            changes = ref_changes(store, self._moves, self._commits, local=self._local)
            entry, news = replace(entry, refs=tuple(changes)), news or bool(changes)
        return entry if news else None

    def _reported(
        self, reports: Sequence[NodeReport], own: Collection[CommitId]
    ) -> Iterator[Deployment]:
        """What nodes report, as this repository records it; without what is on record.

        Only what a server has gathered, which comes without scopes, says when it came and from
        whom.
        """
        for each in reports:
            commit, now_ns = CommitId(each.commit), self._store.now_ns()
            check_target(each.target)
            if not is_report(each.target):
                raise DamagedData("a node reports on a target that is none of nodes")
            check_moment(each.time_ns)
            check_clock(max(each.time_ns, each.now_ns), now_ns, "a report")
            known = self._store.snapshot.deployed_at(each.target, each.time_ns)
            if any(other.subject == commit for other in known):
                continue
            if commit not in own and not self._store.snapshot.has_commit(commit):
                raise HistoryMissing(
                    f"version {commit.short}, which {printable(each.target)} serves, is not here",
                    hint="it comes with a push",
                )
            is_gathered = bool(each.arrived_ns) and not self._scopes
            arrived_ns = each.arrived_ns if is_gathered else now_ns
            yield Deployment(
                subject=commit,
                author=each.author if is_gathered else self._sender,
                target=each.target,
                time_ns=each.time_ns,
                ahead_ms=(each.now_ns - arrived_ns) // 10**6,
            )

    def _check_annotated(self, ids: Set[CommitId]) -> None:
        """Raises RemoteRefused for versions of branches to which the sender may not push, and for
        others than its own: those that it sent, or to which a ref leads to which it may push.
        """
        others = ids - self._commits.keys()
        if not others or allows(self._scopes, "admin"):
            return
        store, snapshot = self._store, self._store.snapshot
        refs = head_refs(snapshot)
        allowed = {name for name in refs if allows(self._scopes, "push", name)}
        for name in refs.keys() - allowed:
            behind = Ancestors(snapshot, [refs[name]])
            if name.startswith(BRANCH) and any(id_ in behind for id_ in others):
                require(self._scopes, "push", name)
        led_to = Ancestors(snapshot, [refs[name] for name in allowed])
        moved = [move.new for move in self._moves if move.new is not None]
        for id_ in others:
            if commits.placed(snapshot, id_)[0].entry.sender == self._sender or id_ in led_to:
                continue
            if not any(leads_to(store.snapshot, new, id_, self._commits) for new in moved):
                raise RemoteRefused(
                    f"no branch or tag that this token may push leads to {id_.short}, which was to "
                    "be annotated or signed",
                    hint="ask who runs the remote for a token that may push such a branch",
                )
