"""Deployments and retractions that were recorded here and that a remote lacks.

Whether the remote would accept them follows from what is known of it: all that is on record here
but these. It compares what each of them replaces with what is live there, in their order.
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
    """What ``remote`` lacks of this repository's record of ``target``.

    ``conflict``: others deployed there meanwhile, and ``there`` is live at the remote, as far as is
    known here. ``against``: what a new deployment has to retract to be accepted.
    """

    remote: str
    target: str
    state: Literal["not sent", "conflict"]
    there: Deployed | None
    against: Against = IN_STEP


def own_targets(recorded: Recorded) -> set[str]:
    """The targets of which an operation of this repository says something."""
    entry = recorded.entry
    if entry.is_received:
        return set()
    return {each.target for each in entry.statements if each.target}


def deployed_by(snapshot: Snapshot, recorded: Recorded) -> list[CommitId]:
    """The versions of an operation's deployments, and of those that it retracts."""
    mine = recorded.entry.statements
    return [
        version
        for each in mine
        if each.target and (version := version_of(snapshot, each, mine)) is not None
    ]


def operations(snapshot: Snapshot, known: KnownPlace | None, *due: Recorded) -> list[Recorded]:
    """Operations whose statements a remote lacks, by what is ``known`` of it, and those ``due``.

    As they are to be sent: without deployments and retractions in whose place a later operation is
    that goes by the remote's record. They are given up: their sending could only undo it.
    """
    dealt, left = (0, ()) if known is None else (known.dealt, known.left)
    rows = [
        *(each for each in map(snapshot.by_sequence, left) if each is not None),
        *(each for each in (*snapshot.from_sequence(dealt), *due) if own_targets(each)),
    ]
    own, immediate = dict[StatementId, StatementId | None](), set[StatementId]()
    given_up, found = set[StatementId](), list[Recorded]()
    numbers = {each.sequence for each in rows}
    for each in rows:
        for new in each.entry.deployments:
            gone = () if each.sequence >= dealt else retracting(snapshot, new.id)
            if any(there.sequence not in numbers for there in gone):  # which need not be sent
                given_up.add(new.id)
            own[new.id] = new.replaces
            immediate |= {new.id} if known and new.time_ns == new.recorded_ns else set()
    for each in reversed(rows):
        ends, firsts = set[StatementId](), set[StatementId]()
        deploys = {new.target for new in each.entry.deployments}
        for taken in _retractions(each):
            there, dropped = taken.replaces, StatementId(taken.subject)
            is_immediate = dropped in immediate
            while is_immediate and there is not None and there != dropped and there in own:
                there = own[there]
            is_first = all(r.sequence >= each.sequence for r in retracting(snapshot, dropped))
            is_past = is_immediate and there != dropped
            if not is_first or is_past or taken.target in deploys:
                ends.add(dropped)
                firsts |= {dropped} if is_first else set()
        found.append(without_deployed(each, given_up | firsts if firsts else given_up))
        given_up |= ends
    return found[::-1]


def _retractions(recorded: Recorded) -> list[Retraction]:
    return [each for each in recorded.entry.retractions if each.target]


def retracting(snapshot: Snapshot, deployment: bytes) -> list[Recorded]:
    """The operations that retract a deployment, in the order of the journal."""
    found = (recorded for recorded, _ in snapshot.about(Retraction, deployment))
    return sorted(found, key=lambda recorded: recorded.sequence)


def without_deployed(recorded: Recorded, gone: Container[StatementId]) -> Recorded:
    """An operation without these deployments, and without their retractions."""
    entry = recorded.entry
    ids = {
        *(each.id for each in entry.deployments if each.id in gone),
        *(each.id for each in _retractions(recorded) if StatementId(each.subject) in gone),
    }
    kept = without(entry.statements, ids)
    return replace(recorded, entry=replace(entry, statements=kept, previous=()))


def unsent(store: Store, target: str | None = None) -> tuple[Unsent, ...]:
    """What each remote lacks, by remote and target; nothing for what is in step.

    A remote to which nothing was pushed, if there is another one, has no conflict: what others
    deployed after this repository has pushed it elsewhere would look like one.
    """
    found, known, snapshot = list[Unsent](), _pushed(store), store.fresh()
    names = [name for name in snapshot.targets() if target in (None, name)]
    for remote, pushed in known.items():
        dealt, left = (0, ()) if pushed is None else (pushed.dealt, pushed.left)
        since = {name: own for name in names if (own := snapshot.own_since(name, dealt))}
        is_sure = pushed is not None or not any(known.values())
        if is_sure and (left or not all(is_in_turn for _, is_in_turn in since.values())):
            rows = operations(snapshot, pushed)
            for name in names:
                mine = [recorded for recorded in rows if name in own_targets(recorded)]
                found += _compared(snapshot, remote, name, mine) if mine else ()
        else:
            for name, (last, _) in since.items():
                there = Standing(snapshot, name).then(last.entry.time_ns, None)
                found.append(Unsent(remote, name, "not sent", there))
    return tuple(found)


def against(store: Store, target: str) -> Against:
    """What a deployment on a target has to drop, because a remote would refuse it.

    Nothing, if another remote has accepted it or would: it stays on record there.
    """
    conflicts = {u.remote: u.against for u in unsent(store, target) if u.state == "conflict"}
    if any(name not in conflicts for name, known in _pushed(store).items() if known is not None):
        return IN_STEP
    return next(iter(conflicts.values()), IN_STEP)


def _pushed(store: Store) -> dict[str, KnownPlace | None]:
    return {name: known_place(store, remote, PUSHED) for name, remote in remotes(store).items()}


def apart_from(store: Store, remote: Remote, target: str) -> Against:
    """All that the remote lacks of this repository's record of a target."""
    known = known_place(store, remote, PUSHED)
    snapshot = store.fresh()
    rows = [each for each in operations(snapshot, known) if target in own_targets(each)]
    made = {new.id for each in rows for new in on(each, target)}
    return Against(frozenset(made), frozenset(_counting(snapshot, target, rows) - made))


def _counting(snapshot: Snapshot, target: str, rows: Sequence[Recorded]) -> set[StatementId]:
    """Deployments that are retracted here and not at a remote that lacks these operations."""
    numbers = {each.sequence for each in rows}

    def is_lacking(recorded: Recorded, until: int) -> bool:  # or one in its place is
        is_given_up = recorded.sequence < until and not recorded.entry.is_received
        return is_given_up or recorded.sequence in numbers

    return {
        StatementId(taken.subject)
        for each in rows
        for taken in _retractions(each)
        if taken.target == target
        and all(is_lacking(r, each.sequence) for r in retracting(snapshot, taken.subject))
    }


def _compared(
    snapshot: Snapshot, remote: str, target: str, rows: list[Recorded]
) -> Iterator[Unsent]:
    """What the remote would do with operations on a target."""
    deployed = {new.id for each in rows for new in on(each, target)}
    counting = _counting(snapshot, target, rows)
    standing = Standing(snapshot, target, Against(frozenset(deployed)))
    is_sent = False
    for recorded in rows:
        made, now_ns = next(on(recorded, target), None), recorded.entry.time_ns
        taken = [each for each in _retractions(recorded) if each.target == target]
        ids = {StatementId(each.subject) for each in taken}
        changes = (ids & counting) - deployed
        if made is None and not changes:
            continue
        at = None if made is None else made.time_ns
        live = standing.then(now_ns, at, Against(deployed, counting))
        expected = taken[0].replaces if made is None else made.replaces
        if expected == (None if live is None else live.id):
            is_sent = True
            if made is not None:
                deployed.discard(made.id)
                standing.add(own := recorded_as(snapshot, target, recorded.sequence))
                if own.retracted and made.id not in counting:
                    standing.drop(own)
            counting -= changes
            for id_ in changes:
                if (there := deployment_with(snapshot, id_)) is not None:
                    standing.drop(recorded_as(snapshot, target, there[0].sequence))
    refused = {id_ for id_ in deployed if not retracting(snapshot, id_)}
    open_ = {id_ for id_ in counting if id_ not in deployed}
    against = Against(frozenset(deployed), frozenset(open_))
    there_live = standing.then(rows[-1].entry.time_ns, None, against)
    if refused or open_:
        yield Unsent(remote, target, "conflict", there_live, against=against)
    elif is_sent:
        yield Unsent(remote, target, "not sent", there_live)
