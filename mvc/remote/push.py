"""Pushes to a remote: sends the versions that the remote lacks, and moves its branches and tags.

Either all refs move, or none. A ref moves only if it still has the value that the sender expects.
After the push, the local ref ``remotes/R/NAME`` has the value of the branch NAME of the remote R.
The file ``.mvc/remotes/R/pushed`` records the position in the local journal (log of operations) up
to which R has all versions and statements, so the next push compares only later operations.
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
from mvc.model.statement import ReplayProof, Retraction, Tombstone
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
from mvc.remote.scopes import allows, check_news, names_target
from mvc.remote.slices import Sent, decode_entries, encode_entries, sent_with
from mvc.remote.statements import statements_to_send, tombstones, without
from mvc.remote.transfer import (
    NOTHING,
    RefUpdate,
    Tally,
    Transferred,
    transfer,
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
from mvc.repo.lookup.refs import BRANCH, remote_refs, tags
from mvc.repo.statements.live import live_now
from mvc.repo.statements.protection import protected
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Progress

if TYPE_CHECKING:
    from mvc.remote.sending.sender import Sending

_AT_ONCE = 1000  # limit of entries with tombstones (records of purged versions) in one slice


class Pushed(Transferred, frozen=True):
    """The result of a push, or of a dry run.

    ``passed_over``: tags that were not pushed, because they have another value at the remote.
    ``at_home``: versions of data sets whose contents are not pushed. ``denied``: scopes that the
    token lacks. Tags and deployments that need these scopes were not sent. ``not_there``: pairs of
    a target and its live version, if the remote lacks this version. Their deployments were not
    sent. ``not_forgotten``: versions that are purged here, but not at the remote, because the token
    lacks the scope ``admin``. ``refused``: deployments and retractions that the remote refused,
    because another deployment to the target was made at the remote meanwhile.
    """

    passed_over: tuple[str, ...] = ()
    at_home: tuple[CommitId, ...] = ()
    denied: tuple[str, ...] = ()
    not_there: tuple[tuple[str, CommitId], ...] = ()
    not_forgotten: tuple[CommitId, ...] = ()
    refused: tuple[RefusedDeployment, ...] = ()

    @property
    def is_short(self) -> bool:
        """Whether deployments or tombstones were not sent. Tags that were not sent do not count."""
        denied = not all(scope.startswith("push:") for scope in self.denied)
        return bool(denied or self.not_forgotten or self.refused)


def push(
    store: Store,
    config: Config,
    remote: Remote,
    refs: Sequence[str] = (),
    options: PushOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends branches and tags (by default the current branch) and all versions that they need.

    Sends tags, data sets, deployments and annotations of all versions that the remote has after the
    push. All data are durable at the remote on return. If an error is raised, no ref has moved.
    Raises RefConflict for a move that is no fast-forward, and for a ref that was moved meanwhile;
    UnknownRevision; StateForgotten if neither side has a state; WeightsDropped if the remote could
    not recompute weights; RemoteUnreachable; RemoteRefused; the errors of the local and of the
    remote store.
    """
    chosen = options or PushOptions()
    store.fresh()
    with closing(open_transport(remote, store, config)) as transport:
        import_module("mvc.remote.sending.sender")  # slow; ssh starts meanwhile
        work = _Push(store, config, remote, transport, progress=progress)
        if not chosen.dry_run:
            work.forget()
        plan = _planned(store, remote, work, refs, options=chosen)
        wanted = work.wanted([
            *(update.new for update in plan.updates if update.new is not None),
            *plan.tips,
            *work.replaced(plan.tips),
        ])  # fmt: skip
        # Check the scopes here, because an error of the server would not name the ref.
        for update in plan.updates:
            check_news(work.head.scopes, (), adds=True, name=update.name)
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
        note = ", but the remote has applied the purges" if work.forgot else ""
        raise RefConflict(error.message + note, hint=error.hint) from error


def push_states(
    store: Store,
    config: Config,
    remote: Remote,
    versions: Sequence[CommitId],
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Sends states to a remote that has the versions without states.

    The states are durable at the remote on return.

    Raises StateForgotten for a state that is absent here; UnknownRevision for a version that the
    remote lacks.
    """
    store.fresh()
    with closing(open_transport(remote, store, config)) as transport:
        import_module("mvc.remote.sending.sender")  # slow; ssh starts meanwhile
        work = _Push(store, config, remote, transport, progress=progress)
        for id_ in versions:
            availability.check_stored(store, id_)
        lacking = work.lacking(tuple(dict.fromkeys(versions)))
        if lacking:
            work.run(
                Wanted(
                    restore=lacking, have=frozenset(availability.nearest_stored(store, lacking))
                ),
                (),
            )
        return Pushed(**asdict(replace(work.tally.total(), versions=len(lacking))))


def send_first(
    store: Store, config: Config, remote: Remote, progress: Progress | None = None
) -> Callable[[Entry], Callable[[Recorded], None]]:
    """Returns a function that sends a draft: a deployment or retraction that is not yet recorded.

    The function sends the version of the draft, too, and returns a second function. Call the first
    function before the draft is recorded, and the second function afterwards. If another deployment
    was made at the remote meanwhile, the first function raises RefConflict. In this case, do not
    record the draft.
    """

    def send(draft: Entry) -> Callable[[Recorded], None]:
        snapshot = store.fresh()
        end = snapshot.position
        due = Recorded(draft, end.offset, end.sequence, end, copies=2, check=b"")
        statements = sent_with(statements_to_send(snapshot, due), is_own=True)
        with closing(open_transport(remote, store, config)) as transport:
            work = _Push(store, config, remote, transport, due=[due], progress=progress)
            wanted = work.wanted(work.due(own_targets(due)))
            work.needed(wanted, partial=False)
            work.run(wanted, ())
            work.remember(())
            got = transport.receive(Slice(encode_entries([statements]), 0, ()))
        if got.refused:
            raise RefConflict(
                f"{remote.name} refuses the operation: {got.refused[0]}; nothing was recorded here",
                hint=f"'mvc fetch{remote.typed}' fetches that deployment",
            )
        return partial(_mark_sent, store, remote)

    return send


def _mark_sent(store: Store, remote: Remote, recorded: Recorded) -> None:
    """Records that the remote has the statements of an operation."""
    known = known_place(store, remote, PUSHED)
    if known is None:
        return
    # The operation may retract deployments that the remote refused. Do not send these deployments.
    retracted = {StatementId(row.subject) for row in recorded.entry.retractions}
    rows = [without_deployed(row, retracted) for row in operations(store.fresh(), known)]
    if known.place.sequence == recorded.sequence:
        known = replace(known, place=Place(recorded.after.sequence, recorded.after.chain))
    left = tuple(
        row.sequence for row in rows if row.sequence < recorded.sequence and own_targets(row)
    )
    keep_place(store, remote, PUSHED, replace(known, dealt=recorded.sequence + 1, left=left))


# -- selection and sending -----------------------------------------------------------------------


class _Push:
    """One push, which sends slices (parts of a transfer).

    ``forgot``: whether the remote applied a new purge.
    """

    def __init__(
        self, store: Store, config: Config, remote: Remote, transport: Transport,
        *, due: Iterable[Recorded] = (), progress: Progress | None,
    ) -> None:  # fmt: skip
        self._store, self._config, self._remote, self._transport = store, config, remote, transport
        before = ask(transport, store, remote)
        self.head, self._known = before.head, before.pushed
        rows = operations(store.fresh(), self._known, *due)
        self._due = {row.sequence: row for row in rows}
        self.forgot = False
        self.tally = Tally(remote, progress)
        self._without: Container[CommitId] = (
            frozenset() if remote.data else _ByValue(store.snapshot)
        )
        self.at_home: tuple[CommitId, ...] = ()
        self.denied = frozenset[str]()
        self._may_forget = allows(self.head.scopes, "admin")
        self._closed = Ancestors(store.snapshot, (
            tip for name, tip in self.head.refs.items()
            if isinstance(tip, CommitId) and name.startswith(BRANCH)
            and not allows(self.head.scopes, "push", name) and store.snapshot.has_commit(tip)
        ))  # fmt: skip
        self._purged = set[CommitId]()
        self._accepted = set[StatementId]()
        self._refused = dict[StatementId, RefusedDeployment]()
        self._end, self._alone = self.head.place, True  # _alone: no other client wrote meanwhile
        self._identity = self.head.identity  # empty for an empty bucket

    def forget(self) -> None:
        """Sends purges. Call it first, so that they apply even if the rest of the push fails."""
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
            self.forgot |= self._deliver(Slice(encode_entries(sent), 0, ())).begun > 0

    @property
    def not_forgotten(self) -> tuple[CommitId, ...]:
        """Versions that are purged here, but not at the remote, because the token forbids it."""
        theirs = filter(self._store.snapshot.has_commit, tips_of(self.head.refs))
        known = Ancestors(self._store.snapshot, theirs)
        return tuple(id_ for id_ in sorted(self._purged) if id_ in known)

    def wanted(self, tips: Iterable[CommitId]) -> Wanted:
        """What to send: the versions and statements that the remote lacks, as far as known here."""
        store, remote, known = self._store, self._remote, self._known
        seen = [] if known is None else [r.commit for r in remote_refs(store.fresh(), remote.name)]
        theirs = dict.fromkeys([*tips_of(self.head.refs), *self.head.unnamed, *seen])
        have = [id_ for id_ in theirs if store.snapshot.has_commit(id_)]
        wanted = Wanted(versions=tuple(dict.fromkeys([*tips, *have])), have=frozenset(have))
        if known is None:
            return wanted
        due = known.new_since_push(store, have)  # versions that other repositories pushed
        for number, recorded in self._due.items():
            due += deployed_by(store.snapshot, recorded) if number < known.dealt else ()
        return replace(wanted, after=known.place, due=tuple(due))

    def due(self, targets: set[str]) -> Iterator[CommitId]:
        """The versions of unsent deployments and retractions on these targets."""
        for recorded in self._due.values():
            if own_targets(recorded) & targets:
                yield from deployed_by(self._store.snapshot, recorded)

    def replaced(self, tips: Sequence[CommitId]) -> Iterator[CommitId]:
        """The versions of unsent deployments and retractions.

        Includes only targets whose live version the remote has after the push.
        """
        snapshot, theirs = self._store.snapshot, [*tips_of(self.head.refs), *tips]
        known = Ancestors(snapshot, filter(snapshot.has_commit, theirs))
        targets = {
            target
            for id_, targets in (live_now(self._store).items() if self._due else ())
            for target in targets
            if id_ in known and self._accepts(target)
        }
        return (v for v in self.due(targets) if availability.recorded_absence(snapshot, v) is None)

    def lacking(self, versions: tuple[CommitId, ...]) -> tuple[CommitId, ...]:
        """The versions whose states the remote lacks.

        Sends a slice without records that announces the states. The answer names the missing
        states.
        """
        sent = [Sent(restored=(bytes(id_),)) for id_ in versions]
        missing = set(self._transport.receive(Slice(encode_entries(sent), 0, ())).missing)
        by_manifest = {commits.get(self._store.snapshot, id_).manifest: id_ for id_ in versions}
        if missing <= by_manifest.keys():
            return tuple(by_manifest[id_] for id_ in by_manifest if id_ in missing)
        return versions

    def needed(self, wanted: Wanted, *, partial: bool) -> set[CommitId]:
        """The versions that the sent versions need, such as data sets.

        Raises StateForgotten if neither side has the state of a version, unless ``partial``. Raises
        WeightsDropped if the remote could not recompute dropped weights, because a version that is
        needed for this is not sent.
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
                    f"neither this repository nor {self.tally.remote} has the state of version "
                    f"{short}",
                    hint=f"'mvc fetch REMOTE {short}' from a remote that has it, or push the "
                    "version without its state with --partial",
                )
            if absent.why == "dropped" and needs:
                raise WeightsDropped(
                    f"the weights of version {short} were dropped, and {needs[0].short}, which is "
                    f"needed to retrain them, is not sent to {self.tally.remote}",
                    hint=f"restore the weights first: 'mvc retrain {short} --trust-code'",
                )

    def _slices(self, wanted: Wanted) -> Generator[Slice]:
        """The slices to send for ``wanted``, without statements that the remote would refuse."""
        if not wanted.versions and not wanted.restore:
            return
        from mvc.remote.sending.sender import send

        for slice_ in send(
            self._store, self._config, wanted, without=self._without, part_of=self._unsent
        ):
            yield self._allowed(slice_)

    def _unsent(self, recorded: Recorded) -> Recorded:
        """The operation without deployments and retractions that the remote has or need not get."""
        entry, known = recorded.entry, self._known
        if known is not None and recorded.sequence < known.dealt and own_targets(recorded):
            deployed = {deployment.id for deployment in entry.deployments}
            retracted = {StatementId(retraction.subject) for retraction in entry.retractions}
            recorded = without_deployed(recorded, deployed | retracted)
        return self._due.get(recorded.sequence, recorded)

    def _allowed(self, outgoing: Slice) -> Slice:
        """Removes tombstones, deployments, retractions and proofs that the token does not allow.

        Does not remove deployments that other repositories recorded: the remote has them, or raises
        an error.
        """
        if not self.head.scopes and not self.head.protected:
            return outgoing
        own, entries = self._store.snapshot.node, list[Sent]()
        for sent in decode_entries(outgoing.head):
            denied = set[StatementId]()
            for statement in sent.decoded:
                if isinstance(statement, Tombstone) and not self._may_forget:
                    denied.add(statement.id)
                    self._purged |= {CommitId(statement.subject)} if sent.is_own else set()
                # The proof may be about a version of a branch that this token may not push.
                if (
                    isinstance(statement, ReplayProof)
                    and CommitId(statement.subject) in self._closed
                ):
                    denied.add(statement.id)
                is_mine = (
                    sent.is_own if isinstance(statement, Retraction) else statement.node == own
                )
                if statement.target and is_mine and not self._accepts(statement.target):
                    self.denied |= {f"deploy:{statement.target}"}
                    denied.add(statement.id)
            if denied:
                sent = _without_statements(sent, denied)
            if sent != Sent():
                entries.append(sent)
        return replace(outgoing, head=encode_entries(entries))

    def _accepts(self, target: str) -> bool:
        """Whether the remote accepts deployments to this target with this token."""
        scopes = self.head.scopes
        if protected(self.head.protected, [target]):
            return names_target(scopes, target)
        return allows(scopes, "deploy", target)

    def count(self, wanted: Wanted) -> None:
        for slice_ in self._slices(wanted):
            self._count(slice_)
            self.tally.bytes += slice_.size

    def run(self, wanted: Wanted, moves: Sequence[Move]) -> None:
        """Sends all wanted slices. The refs move with the last slice."""
        transfer(self._slices, self._deliver, wanted, tuple(moves), tally=self.tally)

    def _deliver(self, outgoing: Slice) -> Received:
        """Sends a slice unless it is empty."""
        before, self.tally.place = self.tally.bytes, outgoing.place or self.tally.place
        if outgoing.head == NOTHING and not outgoing.moves:
            return Received(self._end)
        got = self._transport.receive(
            replace(outgoing, records=self.tally.records(outgoing.records))
        )
        if got.missing:
            self.tally.bytes = before
            return got
        self.tally.retained.update(dict.fromkeys(got.retained))
        self._alone &= (got.begun or got.place.sequence) == self._end.sequence
        self._end, self._identity = got.place, self._identity or got.identity
        refused = {deployment.id: deployment for deployment in got.refused}
        self._refused.update(refused)
        self._count(outgoing, refused, is_new=got.begun > 0)
        return got

    def _remaining(self) -> Iterator[tuple[Recorded, set[StatementId]]]:
        """Yields operations, each with the ids of its deployments and retractions to send."""
        snapshot = self._store.snapshot
        for row in operations(self._store.fresh(), self._known):
            refused = {new.id for new in row.entry.deployments} & self._refused.keys()
            done = self._accepted | {id_ for id_ in refused if retracting(snapshot, id_)}
            yield (
                row,
                {s.id for s in statements_to_send(snapshot, row) if s.target and s.id not in done},
            )

    def refused(self) -> tuple[RefusedDeployment, ...]:
        """For each target, one refused deployment that is not retracted here."""
        refused = (
            self._refused[id_] for _, ids in self._remaining() for id_ in ids & self._refused.keys()
        )
        return tuple({deployment.target: deployment for deployment in refused}.values())

    def not_there(self) -> tuple[tuple[str, CommitId], ...]:
        """Pairs of a target and its live version, if the remote lacks this version."""
        pending = {
            (new.target, new.subject)
            for row, ids in self._remaining()
            for new in row.entry.deployments
            if new.id in ids - self._refused.keys() and f"deploy:{new.target}" not in self.denied
        }
        return tuple(
            (target, id_)
            for id_, targets in live_now(self._store).items()
            for target in targets
            if (target, id_) in pending
        )

    def _count(
        self,
        outgoing: Slice,
        refused: Container[StatementId] = frozenset(),
        *,
        is_new: bool = True,
    ) -> None:
        """Counts the entries that the remote accepted, and collects the ids of their statements.

        ``refused``: statements that the remote refused. ``is_new``: whether the remote lacked a
        part of the slice.
        """
        entries = [_without_statements(sent, refused) for sent in decode_entries(outgoing.head)]
        for sent in entries:
            if sent.is_own:
                self._accepted.update(
                    statement.id for statement in sent.decoded if statement.target
                )
        entries = [sent for sent in entries if is_new and sent != Sent()]
        self.tally.entries(outgoing.head, entries, versions_in(entries))

    def remember(self, updates: Sequence[RefUpdate]) -> None:
        """Records the remote's refs, how much of the local journal was sent, and how much of the
        remote's journal was read.
        """
        store, remote, head = self._store, self._remote, self.head
        if not remote.name:
            return
        noted = _note_refs(store, remote, updates)
        is_complete = not self.denied and not self.not_forgotten
        place = self.tally.place
        known = self._known or KnownPlace(self._identity, Place(0, b""))
        if place is not None and is_complete:
            if noted is not None and noted.sequence == place.sequence:
                place = Place(noted.after.sequence, noted.after.chain)
            now = {**head.refs, **{update.name: update.new for update in updates}}
            tips = tuple(map(bytes, tips_of(now)))
            known = KnownPlace(self._identity, place, tips, end=self._end)
        if place is not None:
            end = place.sequence
            left = tuple(
                row.sequence for row, ids in self._remaining() if ids and row.sequence < end
            )
            keep_place(store, remote, PUSHED, replace(known, dealt=end, left=left))
        read = known_place(store, remote, FETCHED)
        was_read = head.place.sequence == 1 if read is None else read.place == head.place
        if self._alone and was_read:  # the remote has nothing new
            known = read or KnownPlace(self._identity, self._end)
            known = replace(known, identity=self._identity, place=self._end)
            keep_place(store, remote, FETCHED, known)
        elif read is not None and read.place.sequence > head.place.sequence:
            # The remote's journal became shorter: the next fetch reads it from the start.
            keep_place(store, remote, FETCHED, replace(read, place=Place(0, b"")))


def _without_statements(sent: Sent, refused: Container[StatementId]) -> Sent:
    rest = tuple(statement.encoded for statement in without(sent.decoded, refused))
    return replace(sent, statements=rest, is_own=sent.is_own and bool(rest))


class _ByValue:
    """Contains the versions of data sets whose files are stored, not only paths and hashes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        return commits.get(self._snapshot, id_).params.get(DATA_SET) == BY_VALUE


def _note_refs(store: Store, remote: Remote, updates: Sequence[RefUpdate]) -> Recorded | None:
    """Records the new values of tracking refs. Returns None if nothing changed."""

    def make() -> Entry:
        return Entry("push", store.clock.now_ns(), remote.name, refs=changes())

    def changes() -> tuple[RefChange, ...]:
        ref, own = store.snapshot.ref, [u for u in updates if u.local.startswith(REMOTE)]
        return tuple(RefChange(u.local, ref(u.local), u.new) for u in own if ref(u.local) != u.new)

    return store.publish(make) if changes() else None
