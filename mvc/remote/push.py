"""Pushing: versions that a remote lacks, and its branches and tags moved to them.

Every ref moves from the value that is expected there, all of them or none. Where the remote's
branches then are is kept as ``remotes/R/NAME``, up to where this repository's own journal was
looked at in ``.mvc/remotes/R/pushed``: if that file is lost, more is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from mvc.errors import (
    RefConflict,
    StateForgotten,
    WeightsDropped,
)
from mvc.ids import CommitId, StatementId
from mvc.model.statement import Retraction, Tombstone
from mvc.names import BY_VALUE, DATA, DATA_SET, REMOTE
from mvc.remote.places import (
    FETCHED,
    PUSHED,
    KnownPlace,
    ask,
    begins,
    keep_place,
    known_place,
    tips_of,
)
from mvc.remote.refs import PushOptions, RefPlan, plan_updates, with_tags
from mvc.remote.remotes import Remote
from mvc.remote.scopes import allows, names_target
from mvc.remote.slices import Sent, decode_entries, encode_entries, sent_with
from mvc.remote.statements import told, tombstones, without
from mvc.remote.transfer import (
    NOTHING,
    RefUpdate,
    Tally,
    Transferred,
    carry,
    versions_in,
)
from mvc.remote.transport import (
    Move,
    Place,
    Received,
    RefusedDeployment,
    Slice,
    Transport,
    Wanted,
)
from mvc.remote.transports.opening import open_transport
from mvc.remote.unsent import (
    deployed_by,
    operations,
    own_targets,
    retracting,
    without_deployed,
)
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import remote_refs, tags
from mvc.repo.statements.live import live_now
from mvc.repo.statements.protection import protected
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Progress

if TYPE_CHECKING:
    from mvc.remote.sending.sender import Sending

_AT_ONCE = 1000  # operations whose tombstones go in one slice


class Pushed(Transferred, frozen=True):
    """What went, or would.

    ``passed_over``: tags that are another version there. ``at_home``: data sets whose contents stay
    here.
    ``denied``: scopes that the caller lacks there, so that tags and deployments which would have
    gone along have not. ``not_there``: targets, with the version that is live on them here, whose
    version the remote does not have: their deployments stay here. ``not_forgotten``: versions
    forgotten by name here, which the remote lets nobody forget but a holder of ``admin``.
    ``refused``: by target a deployment or retraction that was left out, because others deployed
    there meanwhile.
    """

    passed_over: tuple[str, ...] = ()
    at_home: tuple[CommitId, ...] = ()
    denied: tuple[str, ...] = ()
    not_there: tuple[tuple[str, CommitId], ...] = ()
    not_forgotten: tuple[CommitId, ...] = ()
    refused: tuple[RefusedDeployment, ...] = ()

    @property
    def is_short(self) -> bool:
        """Whether deployments, tags or tombstones were left out."""
        return bool(self.denied or self.passed_over or self.not_forgotten or self.refused)


def push(
    store: Store,
    config: Config,
    remote: Remote,
    refs: Sequence[str] = (),
    options: PushOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends branches and tags, by default the current branch, with what they need; durable there.

    Tags, data sets, deployments and annotations of the versions that are there then go along, and
    what was live before them.
    Raises RefConflict for what is not fast-forward or has moved there, UnknownRevision,
    StateForgotten for a version whose state neither side has, WeightsDropped for weights that
    nobody there could make again, RemoteUnreachable, RemoteRefused, and the errors of both stores;
    then no ref has moved.
    """
    chosen = options or PushOptions()
    store.fresh()
    with closing(open_transport(remote, store, config)) as transport:
        import_module("mvc.remote.sending.sender")  # while the other end of ssh starts
        work = _Push(store, config, remote, transport, progress=progress)
        if not chosen.dry_run:
            work.forget()
        plan = _planned(store, remote, work, refs, options=chosen)
        wanted = work.wanted([
            *(update.new for update in plan.updates if update.new is not None),
            *plan.tips,
            *work.replaced(plan.tips),
        ])  # fmt: skip
        needed = work.needed(wanted, partial=chosen.partial)
        plan = with_tags(store, remote, work.head, plan, needed=needed)
        if chosen.dry_run:
            work.count(wanted)
        else:
            work.run(wanted, [
                Move(u.name, u.old, u.new, force=chosen.force and u.change == "forced")
                for u in plan.updates
            ])  # fmt: skip
            work.remember(plan.updates)
        return Pushed(
            **asdict(work.tally.total(plan.updates)), passed_over=plan.passed_over,
            at_home=work.at_home,
            denied=(
                *plan.denied, *sorted(work.denied), *(("admin",) if work.not_forgotten else ()),
            ),
            not_there=work.not_there(), not_forgotten=work.not_forgotten, refused=work.refused(),
        )  # fmt: skip


def _planned(
    store: Store, remote: Remote, work: _Push, refs: Sequence[str], *, options: PushOptions
) -> RefPlan:
    try:
        return plan_updates(store, remote, work.head, refs, options=options)
    except RefConflict as error:
        but = ", but what was forgotten by name is forgotten there" if work.forgot else ""
        raise RefConflict(error.message + but, hint=error.hint) from error


def push_states(
    store: Store,
    config: Config,
    remote: Remote,
    versions: Sequence[CommitId],
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends the states of versions that the remote has without them; durable there on return.

    Raises StateForgotten for a state that is not here, UnknownRevision for a version that is not
    there.
    """
    store.fresh()
    with closing(open_transport(remote, store, config)) as transport:
        import_module("mvc.remote.sending.sender")  # while the other end of ssh starts
        work = _Push(store, config, remote, transport, progress=progress)
        for id_ in versions:
            availability.check_kept(store, id_)
        again = work.lacking(tuple(dict.fromkeys(versions)))
        if again:
            work.run(
                Wanted(again=again, have=frozenset(availability.nearest_kept(store, again))), ()
            )
        return Pushed(**asdict(replace(work.tally.total(), versions=len(again))))


def send_first(
    store: Store, config: Config, remote: Remote, progress: Progress | None = None
) -> Callable[[Entry], Callable[[Recorded], None]]:
    """Sends a deployment or retraction, with its version, before it is recorded here.

    The function raises RefConflict if others deployed there meanwhile; nothing is recorded then.
    """

    def send(draft: Entry) -> Callable[[Recorded], None]:
        snapshot = store.fresh()
        end = snapshot.position
        due = Recorded(draft, end.offset, end.sequence, end, copies=2, check=b"")
        said = sent_with(told(snapshot, due), is_own=True)
        with closing(open_transport(remote, store, config)) as transport:
            work = _Push(store, config, remote, transport, due=[due], progress=progress)
            wanted = work.wanted(work.due(own_targets(due)))
            work.needed(wanted, partial=False)
            work.run(wanted, ())
            work.remember(())
            got = transport.receive(Slice(encode_entries([said]), 0, ()))
        if got.refused:
            raise RefConflict(
                f"{remote.name} refuses it: {got.refused[0]}; nothing was recorded of it",
                hint=f"'mvc fetch{remote.typed}' brings what happened there",
            )
        return partial(_mark_sent, store, remote)

    return send


def _mark_sent(store: Store, remote: Remote, recorded: Recorded) -> None:
    """Notes that the remote has what an operation says."""
    known = known_place(store, remote, PUSHED)
    if known is None:
        return
    # Of what was refused: it is not there.
    taken = {StatementId(each.subject) for each in recorded.entry.retractions}
    rows = [without_deployed(each, taken) for each in operations(store.fresh(), known)]
    if known.place.sequence == recorded.sequence:
        known = replace(known, place=Place(recorded.after.sequence, recorded.after.chain))
    left = tuple(
        each.sequence for each in rows if each.sequence < recorded.sequence and own_targets(each)
    )
    keep_place(store, remote, PUSHED, replace(known, dealt=recorded.sequence + 1, left=left))


# -- what goes ---------------------------------------------------------------------------------


class _Push:
    """Sends slices. ``forgot``: whether the remote has heard of something forgotten by name."""

    def __init__(
        self, store: Store, config: Config, remote: Remote, transport: Transport,
        *, due: Iterable[Recorded] = (), progress: Progress | None,
    ) -> None:  # fmt: skip
        self._store, self._config, self._remote, self._transport = store, config, remote, transport
        before = ask(transport, store, remote)
        self.head, self._known = before.head, before.pushed
        rows = operations(store.fresh(), self._known, *due)
        self._said = {each.sequence: each for each in rows}
        self.forgot = False
        self.tally = Tally(remote, progress)
        self._without: Container[CommitId] = (
            frozenset() if remote.data else _ByValue(store.snapshot)
        )
        self.at_home: tuple[CommitId, ...] = ()
        self.denied = frozenset[str]()
        self._may_forget = allows(self.head.scopes, "admin")
        self._buried = set[CommitId]()
        self._accepted = set[StatementId]()
        self._refused = dict[StatementId, RefusedDeployment]()
        self._end, self._alone = self.head.place, True  # whether nobody else has written there
        self._identity = self.head.identity  # an empty bucket has none yet

    def forget(self) -> None:
        """Has the remote forget what was forgotten by name, whatever becomes of this push."""
        snapshot = self._store.snapshot
        place = None if self._known is None else self._known.place

        if not self._may_forget:
            return
        stones = iter(
            snapshot.retry_on_rewrite(
                lambda: list(map(sent_with, tombstones(snapshot, begins(snapshot, place))))
            )
        )
        while sent := list(islice(stones, _AT_ONCE)):
            self.forgot |= self._give(Slice(encode_entries(sent), 0, ())).begun > 0

    @property
    def not_forgotten(self) -> tuple[CommitId, ...]:
        """Versions that the remote has, forgotten by name here, which it is not to forget."""
        theirs = filter(self._store.snapshot.has_commit, tips_of(self.head.refs))
        there = Ancestors(self._store.snapshot, theirs)
        return tuple(id_ for id_ in sorted(self._buried) if id_ in there)

    def wanted(self, tips: Iterable[CommitId]) -> Wanted:
        """What the remote lacks of these versions, and is not told yet, as far as it is known."""
        store, remote, known = self._store, self._remote, self._known
        seen = [] if known is None else [r.commit for r in remote_refs(store.fresh(), remote.name)]
        theirs = dict.fromkeys([*tips_of(self.head.refs), *self.head.unnamed, *seen])
        have = [id_ for id_ in theirs if store.snapshot.has_commit(id_)]
        found = Wanted(versions=tuple(dict.fromkeys([*tips, *have])), have=frozenset(have))
        if known is None:
            return found
        due = known.untold(store, have)  # others have brought these since
        for number, recorded in self._said.items():
            due += deployed_by(store.snapshot, recorded) if number < known.dealt else ()
        return replace(found, after=known.place, due=tuple(due))

    def due(self, targets: set[str]) -> Iterator[CommitId]:
        """The versions of what is to be sent of these targets."""
        for each in self._said.values():
            if own_targets(each) & targets:
                yield from deployed_by(self._store.snapshot, each)

    def replaced(self, tips: Sequence[CommitId]) -> Iterator[CommitId]:
        """What is to be sent of targets whose live version the remote then has."""
        snapshot, there = self._store.snapshot, [*tips_of(self.head.refs), *tips]
        known = Ancestors(snapshot, filter(snapshot.has_commit, there))
        targets = {
            target
            for id_, targets in (live_now(self._store).items() if self._said else ())
            for target in targets
            if id_ in known and self._takes(target)
        }
        return (v for v in self.due(targets) if availability.gone(snapshot, v) is None)

    def lacking(self, versions: tuple[CommitId, ...]) -> tuple[CommitId, ...]:
        """Those whose states the remote lacks: it is offered all of them without a record."""
        sent = [Sent(again=(bytes(id_),)) for id_ in versions]
        missing = set(self._transport.receive(Slice(encode_entries(sent), 0, ())).missing)
        by_manifest = {commits.get(self._store.snapshot, id_).manifest: id_ for id_ in versions}
        if missing <= by_manifest.keys():
            return tuple(by_manifest[id_] for id_ in by_manifest if id_ in missing)
        return versions

    def needed(self, wanted: Wanted, *, partial: bool) -> set[CommitId]:
        """The versions that travel because others need them; looks at what goes without something.

        Raises StateForgotten for a version whose state neither side has, unless ``partial``, and
        WeightsDropped for one without weights where what makes them again stays here.
        """
        from mvc.remote.sending.sender import Sending

        snapshot = self._store.snapshot
        lacks = snapshot.forgetting() or snapshot.state_marks(weights=True)
        is_whole = self._remote.data and not lacks
        has_data = any(tag.name.startswith(DATA) for tag in tags(self._store.fresh()))
        if not wanted.versions or (is_whole and not has_data):
            return set()
        sending = Sending(self._store, self._config, wanted, self._without)
        if not is_whole:
            self.at_home = tuple(c.id for c in sending.versions if c.id in self._without)
            self._check_lacks(sending, partial=partial)
        return {id_ for commit in sending.versions for id_ in commit.needs} if has_data else set()

    def _check_lacks(self, sending: Sending, *, partial: bool) -> None:
        for commit, absent, needs in sending.lacks():
            id_, short = commit.id, commit.id.short
            if absent.why == "rule" and id_ not in self._without and not partial:
                raise StateForgotten(
                    f"the state of version {short} is neither here nor at {self.tally.remote}",
                    hint=f"'mvc fetch REMOTE {short}' brings it from where it is; --partial "
                    "pushes the version without it",
                )
            if absent.why == "dropped" and needs:
                raise WeightsDropped(
                    f"the weights of version {short} were given up, and {needs[0].short}, "
                    f"from which they are trained again, does not go to {self.tally.remote}",
                    hint=f"'mvc retrain {short} --trust-code' stores them again first",
                )

    def _slices(self, wanted: Wanted) -> Generator[Slice]:
        """Without what goes along and the remote would refuse."""
        if not wanted.versions and not wanted.again:
            return
        from mvc.remote.sending.sender import send

        for each in send(self._store, self._config, wanted, without=self._without, said=self._told):
            yield self._allowed(each)

    def _told(self, recorded: Recorded) -> Recorded:
        """An operation without what the remote was told of it, or need not hear any more."""
        entry, known = recorded.entry, self._known
        if known is not None and recorded.sequence < known.dealt and own_targets(recorded):
            made = {each.id for each in entry.deployments}
            taken = {StatementId(each.subject) for each in entry.retractions}
            recorded = without_deployed(recorded, made | taken)
        return self._said.get(recorded.sequence, recorded)

    def _allowed(self, given: Slice) -> Slice:
        """The slice without tombstones, and deployments and retractions that were recorded here,
        that the remote would refuse.

        What came from elsewhere is known there already, or is refused by name.
        """
        if not self.head.scopes and not self.head.protected:
            return given
        own, entries = self._store.snapshot.node, list[Sent]()
        for sent in decode_entries(given.head):
            said, gone = sent.said, set[StatementId]()
            for each in said:
                if isinstance(each, Tombstone) and not self._may_forget:
                    gone.add(each.id)
                    self._buried |= {CommitId(each.subject)} if sent.is_own else set()
                is_mine = sent.is_own if isinstance(each, Retraction) else each.node == own
                if each.target and is_mine and not self._takes(each.target):
                    self.denied |= {f"deploy:{each.target}"}
                    gone.add(each.id)
            if gone:
                sent = _but(sent, gone)
            if sent != Sent():
                entries.append(sent)
        return replace(given, head=encode_entries(entries))

    def _takes(self, target: str) -> bool:
        """Whether the remote takes deployments to this target from here."""
        scopes = self.head.scopes
        if protected(self.head.protected, [target]):
            return names_target(scopes, target)
        return allows(scopes, "deploy", target)

    def count(self, wanted: Wanted) -> None:
        for each in self._slices(wanted):
            self._counted(each)
            self.tally.bytes += each.size

    def run(self, wanted: Wanted, moves: Sequence[Move]) -> None:
        """Sends all of it; the refs move with the last slice."""
        carry(self._slices, self._give, wanted, tuple(moves), tally=self.tally)

    def _give(self, given: Slice) -> Received:
        """What is empty does not go."""
        before, self.tally.place = self.tally.bytes, given.place or self.tally.place
        if given.head == NOTHING and not given.moves:
            return Received(self._end)
        got = self._transport.receive(replace(given, records=self.tally.records(given.records)))
        if got.missing:
            self.tally.bytes = before
            return got
        self.tally.held.update(dict.fromkeys(got.held))
        self._alone &= (got.begun or got.place.sequence) == self._end.sequence
        self._end, self._identity = got.place, self._identity or got.identity
        refused = {each.id: each for each in got.refused}
        self._refused.update(refused)
        self._counted(given, refused, is_new=got.begun > 0)
        return got

    def _left(self) -> Iterator[tuple[Recorded, set[StatementId]]]:
        """Operations with the statements that the remote lacks of each, and should have."""
        snapshot = self._store.snapshot
        for each in operations(self._store.fresh(), self._known):
            made = {new.id for new in each.entry.deployments} & self._refused.keys()
            gone = self._accepted | {id_ for id_ in made if retracting(snapshot, id_)}
            yield each, {s.id for s in told(snapshot, each) if s.target and s.id not in gone}

    def refused(self) -> tuple[RefusedDeployment, ...]:
        """What was refused and still counts here, one for each target."""
        found = (
            self._refused[id_] for _, ids in self._left() for id_ in ids & self._refused.keys()
        )
        return tuple({each.target: each for each in found}.values())

    def not_there(self) -> tuple[tuple[str, CommitId], ...]:
        """Targets, with what is live on them, whose version does not go."""
        going = {
            (new.target, new.subject)
            for each, ids in self._left()
            for new in each.entry.deployments
            if new.id in ids - self._refused.keys() and f"deploy:{new.target}" not in self.denied
        }
        return tuple(
            (target, id_)
            for id_, targets in live_now(self._store).items()
            for target in targets
            if (target, id_) in going
        )

    def _counted(
        self,
        given: Slice,
        refused: Container[StatementId] = frozenset(),
        *,
        is_new: bool = True,
    ) -> None:
        """Counts what the remote has taken, and notes which statements of this repository.

        Not ``is_new``: it had all of it.
        """
        entries = [_but(sent, refused) for sent in decode_entries(given.head)]
        for sent in entries:
            if sent.is_own:
                self._accepted.update(each.id for each in sent.said if each.target)
        entries = [sent for sent in entries if is_new and sent != Sent()]
        self.tally.entries(given.head, entries, versions_in(entries))

    def remember(self, updates: Sequence[RefUpdate]) -> None:
        """Keeps where the remote's refs are now, and up to where either journal is dealt with."""
        store, remote, head = self._store, self._remote, self.head
        if not remote.name:
            return
        noted = _note_refs(store, remote, updates)
        is_told = not self.denied and not self.not_forgotten
        place = self.tally.place
        known = self._known or KnownPlace(self._identity, Place(0, b""))
        if place is not None and is_told:
            if noted is not None and noted.sequence == place.sequence:
                place = Place(noted.after.sequence, noted.after.chain)
            now = {**head.refs, **{each.name: each.new for each in updates}}
            tips = tuple(map(bytes, tips_of(now)))
            known = KnownPlace(self._identity, place, tips, there=self._end)
        if place is not None:
            end = place.sequence
            left = tuple(e.sequence for e, ids in self._left() if ids and e.sequence < end)
            keep_place(store, remote, PUSHED, replace(known, dealt=end, left=left))
        read = known_place(store, remote, FETCHED)
        was_read = head.place.sequence == 1 if read is None else read.place == head.place
        if self._alone and was_read:  # what was written there since is from here
            known = read or KnownPlace(self._identity, self._end)
            known = replace(known, identity=self._identity, place=self._end)
            keep_place(store, remote, FETCHED, known)
        elif read is not None and read.place.sequence > head.place.sequence:  # that state is lost
            keep_place(store, remote, FETCHED, replace(read, place=Place(0, b"")))


def _but(sent: Sent, refused: Container[StatementId]) -> Sent:
    """An operation without these statements."""
    left = tuple(each.encoded for each in without(sent.said, refused))
    return replace(sent, statements=left, is_own=sent.is_own and bool(left))


class _ByValue:
    """The versions of data sets that hold their files."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        return commits.get(self._snapshot, id_).params.get(DATA_SET) == BY_VALUE


def _note_refs(store: Store, remote: Remote, updates: Sequence[RefUpdate]) -> Recorded | None:
    """Records where the remote's branches are now; None if that is known."""

    def make() -> Entry:
        return Entry("push", store.clock.now_ns(), remote.name, refs=changes())

    def changes() -> tuple[RefChange, ...]:
        ref, own = store.snapshot.ref, [u for u in updates if u.local.startswith(REMOTE)]
        return tuple(RefChange(u.local, ref(u.local), u.new) for u in own if ref(u.local) != u.new)

    return store.publish(make) if changes() else None
