"""Finds deployments and retractions that were recorded here and that a remote lacks.

Deployments and retractions are called *statements*. A statement names the deployment that it
replaces. A remote accepts the statement only if this deployment is live at the remote. For each
missing statement, in the order of recording, this module predicts whether the remote will accept
the statement. All other statements that were recorded here are assumed to be at the remote.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mvc.ids import CommitId, StatementId
from mvc.model.statement import Retraction
from mvc.remote.places import PUSHED, KnownPlace, known_place
from mvc.remote.remotes import Remote, remotes
from mvc.remote.statements import version_of, without
from mvc.repo.statements.live import (
    IN_STEP,
    Against,
    Deployed,
    Standing,
    deployment_with,
    on,
    recorded_as,
)
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store


class Unsent(Struct, frozen=True):
    """The statements on ``target`` that ``remote`` lacks.

    ``state``: ``conflict`` if another deployment was made at the remote meanwhile. ``live_there``:
    the deployment that is live at the remote, as far as known here. ``against``: statements that a
    new deployment must retract so that the remote accepts it.
    """

    remote: str
    target: str
    state: Literal["not sent", "conflict"]
    live_there: Deployed | None
    against: Against = IN_STEP


def own_targets(recorded: Recorded) -> set[str]:
    """The targets of an operation. Empty if another repository recorded the operation."""
    entry = recorded.entry
    if entry.is_received:
        return set()
    return {statement.target for statement in entry.statements if statement.target}


def deployed_by(snapshot: Snapshot, recorded: Recorded) -> list[CommitId]:
    """The versions of an operation's deployments, and of the deployments that it retracts."""
    mine = recorded.entry.statements
    return [
        version
        for row in mine
        if row.target and (version := version_of(snapshot, row, mine)) is not None
    ]


def operations(snapshot: Snapshot, known: KnownPlace | None, *due: Recorded) -> list[Recorded]:
    """The operations in ``due``, and the operations that a remote lacks according to ``known``.

    Removes a deployment or retraction from its operation if a later operation has replaced the
    deployment or retraction. Sending it could only undo the later operation.
    """
    dealt, left = (0, ()) if known is None else (known.dealt, known.left)
    rows = [
        *(row for row in map(snapshot.by_sequence, left) if row is not None),
        *(row for row in (*snapshot.from_sequence(dealt), *due) if own_targets(row)),
    ]
    own, immediate = dict[StatementId, StatementId | None](), set[StatementId]()
    skipped, unsent_rows = set[StatementId](), list[Recorded]()
    numbers = {row.sequence for row in rows}
    for row in rows:
        for new in row.entry.deployments:
            retractions = () if row.sequence >= dealt else retracting(snapshot, new.id)
            # If the retraction of a deployment is not sent, the deployment need not be sent.
            if any(r.sequence not in numbers for r in retractions):
                skipped.add(new.id)
            own[new.id] = new.replaces
            immediate |= {new.id} if known and new.time_ns == new.recorded_ns else set()
    for row in reversed(rows):
        ended, firsts = set[StatementId](), set[StatementId]()
        deploys = {new.target for new in row.entry.deployments}
        for retraction in _retractions(row):
            replaced, retracted = retraction.replaces, StatementId(retraction.subject)
            is_immediate = retracted in immediate
            while (
                is_immediate and replaced is not None and replaced != retracted and replaced in own
            ):
                replaced = own[replaced]
            is_first = all(r.sequence >= row.sequence for r in retracting(snapshot, retracted))
            is_past = is_immediate and replaced != retracted
            if not is_first or is_past or retraction.target in deploys:
                ended.add(retracted)
                firsts |= {retracted} if is_first else set()
        unsent_rows.append(without_deployed(row, skipped | firsts if firsts else skipped))
        skipped |= ended
    return unsent_rows[::-1]


def _retractions(recorded: Recorded) -> list[Retraction]:
    return [row for row in recorded.entry.retractions if row.target]


def retracting(snapshot: Snapshot, deployment: bytes) -> list[Recorded]:
    """The operations that retract a deployment, in the order of the journal."""
    rows = (recorded for recorded, _ in snapshot.about(Retraction, deployment))
    return sorted(rows, key=lambda recorded: recorded.sequence)


def without_deployed(recorded: Recorded, deployments: Container[StatementId]) -> Recorded:
    """An operation without these deployments and without retractions of these deployments."""
    entry = recorded.entry
    ids = {
        *(row.id for row in entry.deployments if row.id in deployments),
        *(row.id for row in _retractions(recorded) if StatementId(row.subject) in deployments),
    }
    rest = without(entry.statements, ids)
    return replace(recorded, entry=replace(entry, statements=rest, previous=()))


def unsent(store: Store, target: str | None = None) -> tuple[Unsent, ...]:
    """The statements that each remote lacks, by remote and target.

    Reports no conflicts with a remote that never got a push, if another remote got a push:
    deployments that others made after this push would look like conflicts.
    """
    lacking, known, snapshot = list[Unsent](), _pushed(store), store.fresh()
    names = [name for name in snapshot.targets() if target in (None, name)]
    for remote, pushed in known.items():
        dealt, left = (0, ()) if pushed is None else (pushed.dealt, pushed.left)
        since = {name: own for name in names if (own := snapshot.own_since(name, dealt))}
        is_sure = pushed is not None or not any(known.values())
        if is_sure and (left or not all(is_in_turn for _, is_in_turn in since.values())):
            rows = operations(snapshot, pushed)
            for name in names:
                mine = [recorded for recorded in rows if name in own_targets(recorded)]
                lacking += _compared(snapshot, remote, name, mine) if mine else ()
        else:
            for name, (last, _) in since.items():
                live = Standing(snapshot, name).then(last.entry.time_ns, None)
                lacking.append(Unsent(remote, name, "not sent", live))
    return tuple(lacking)


def against(store: Store, target: str) -> Against:
    """The statements that a new deployment must retract so that a remote accepts it.

    The result is empty if another remote has accepted or would accept these statements, because
    the statements count at the other remote.
    """
    conflicts = {u.remote: u.against for u in unsent(store, target) if u.state == "conflict"}
    if any(name not in conflicts for name, known in _pushed(store).items() if known is not None):
        return IN_STEP
    return next(iter(conflicts.values()), IN_STEP)


def _pushed(store: Store) -> dict[str, KnownPlace | None]:
    return {name: known_place(store, remote, PUSHED) for name, remote in remotes(store).items()}


def apart_from(store: Store, remote: Remote, target: str) -> Against:
    """All statements on a target that the remote lacks."""
    known = known_place(store, remote, PUSHED)
    snapshot = store.fresh()
    rows = [row for row in operations(snapshot, known) if target in own_targets(row)]
    deployed = {new.id for row in rows for new in on(row, target)}
    return Against(frozenset(deployed), frozenset(_counting(snapshot, target, rows) - deployed))


def _counting(snapshot: Snapshot, target: str, rows: Sequence[Recorded]) -> set[StatementId]:
    """Deployments that are retracted here, but not at a remote without the operations ``rows``."""
    numbers = {row.sequence for row in rows}

    # The remote also lacks earlier retractions of the deployment that were recorded here.
    def is_lacking(recorded: Recorded, until: int) -> bool:
        is_skipped = recorded.sequence < until and not recorded.entry.is_received
        return is_skipped or recorded.sequence in numbers

    return {
        StatementId(retraction.subject)
        for row in rows
        for retraction in _retractions(row)
        if retraction.target == target
        and all(is_lacking(r, row.sequence) for r in retracting(snapshot, retraction.subject))
    }


def _compared(
    snapshot: Snapshot, remote: str, target: str, rows: list[Recorded]
) -> Iterator[Unsent]:
    """Predicts which of the operations ``rows`` on a target a remote would accept."""
    deployed = {new.id for row in rows for new in on(row, target)}
    counting = _counting(snapshot, target, rows)
    standing = Standing(snapshot, target, Against(frozenset(deployed)))
    is_sent = False
    for recorded in rows:
        new, now_ns = next(on(recorded, target), None), recorded.entry.time_ns
        retractions = [row for row in _retractions(recorded) if row.target == target]
        ids = {StatementId(row.subject) for row in retractions}
        changes = (ids & counting) - deployed
        if new is None and not changes:
            continue
        at = None if new is None else new.time_ns
        live = standing.then(now_ns, at, Against(deployed, counting))
        expected = retractions[0].replaces if new is None else new.replaces
        if expected == (None if live is None else live.id):
            is_sent = True
            if new is not None:
                deployed.discard(new.id)
                standing.add(own := recorded_as(snapshot, target, recorded.sequence))
                if own.retracted and new.id not in counting:
                    standing.drop(own)
            counting -= changes
            for id_ in changes:
                if (deployment := deployment_with(snapshot, id_)) is not None:
                    standing.drop(recorded_as(snapshot, target, deployment[0].sequence))
    refused = {id_ for id_ in deployed if not retracting(snapshot, id_)}
    open_ = {id_ for id_ in counting if id_ not in deployed}
    against = Against(frozenset(deployed), frozenset(open_))
    live = standing.then(rows[-1].entry.time_ns, None, against)
    if refused or open_:
        yield Unsent(remote, target, "conflict", live, against=against)
    elif is_sent:
        yield Unsent(remote, target, "not sent", live)
