"""Deployments and retractions that were recorded here and that a remote lacks.

Whether the remote would accept them follows from what is known of it: all that is on record here
but these. It compares what each of them replaces with what is live there, in their order.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mvc.ids import CommitId, DeploymentId
from mvc.names import is_report
from mvc.remote.merging import Truths
from mvc.remote.places import PUSHED, KnownPlace, known_place
from mvc.remote.remotes import Remote, remotes
from mvc.repo.context import Context
from mvc.repo.deployments import Deployed, recorded_as
from mvc.repo.live import IN_STEP, Against, Standing
from mvc.repo.lookup import stamping
from mvc.store.journal.entries import Retraction
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot


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
    if entry.origin_ns is not None:
        return set()
    made = {each.target for each in entry.deployments if not is_report(each.target)}
    return made | {each.target for each in entry.retractions}


def own_keys(truths: Truths) -> set[tuple[DeploymentId, bool]]:
    """Names of deployments, and of retractions (True), without reports."""
    made = {(each.id, False) for each in truths.deployments if not is_report(each.target)}
    return made | {(DeploymentId(each.id), True) for each in truths.retractions}


def deployed_by(snapshot: Snapshot, recorded: Recorded) -> list[CommitId]:
    """The versions of an operation's deployments, and of those that it retracts."""
    found = [each.commit for each in recorded.entry.deployments]
    for taken in recorded.entry.retractions:
        there = snapshot.by_sequence(taken.sequence)
        made = None if there is None else stamping.on(there, taken.target)
        found += [] if made is None else [made.commit]
    return found


def operations(context: Context, known: KnownPlace | None, *due: Recorded) -> list[Recorded]:
    """Operations whose statements a remote lacks, by what is ``known`` of it, and those ``due``.

    As they are to be sent: without deployments and retractions in whose place a later operation is
    that goes by the remote's record. They are given up: their sending could only undo it.
    """
    snapshot = context.fresh()
    dealt, left = (0, ()) if known is None else (known.dealt, known.left)
    rows = [each for number in left if (each := snapshot.by_sequence(number)) is not None]
    rows += [each for each in (*snapshot.from_sequence(dealt), *due) if own_targets(each)]
    own, made = dict[DeploymentId, DeploymentId | None](), dict[Retraction, DeploymentId]()
    given_up, found = set[Retraction](), list[Recorded]()
    numbers = {each.sequence for each in rows}
    for each in rows:
        for new in each.entry.deployments:
            gone = () if each.sequence >= dealt else snapshot.retractions(new.target, each.sequence)
            if any(there.sequence not in numbers for there in gone):  # which need not be sent
                given_up.add(Retraction(new.target, each.sequence))
            id_ = new.id(snapshot.stamp_of(each, new))
            own[id_] = dict(each.entry.replaces).get(new.target)
            if new.time_ns == each.entry.time_ns:
                made[Retraction(new.target, each.sequence)] = id_
    for each in reversed(rows):
        given, ends, firsts = dict(each.entry.replaces), set[Retraction](), set[Retraction]()
        for taken in each.entry.retractions:
            there, dropped = given.get(taken.target), made.get(taken) if known else None
            while dropped is not None and there != dropped and there in own:
                there = own[there]
            is_first = _is_first(snapshot, each, taken)
            if not is_first or dropped not in (None, there) or stamping.on(each, taken.target):
                ends.add(taken)
                firsts |= {taken} if is_first else set()
        found.append(without(each, given_up | firsts if firsts else given_up))
        given_up |= ends
    return found[::-1]


def _is_first(snapshot: Snapshot, recorded: Recorded, taken: Retraction) -> bool:
    """Whether no operation before this one retracts the same."""
    there = snapshot.retractions(taken.target, taken.sequence)
    return not there or there[0].sequence == recorded.sequence


def without(recorded: Recorded, gone: Container[Retraction]) -> Recorded:
    """An operation without these retractions, and without the deployments that they retract."""
    entry, number = recorded.entry, recorded.sequence
    made = tuple(d for d in entry.deployments if Retraction(d.target, number) not in gone)
    taken = tuple(each for each in entry.retractions if each not in gone)
    targets = {"", *(d.target for d in made), *(t.target for t in taken)}
    signed = tuple(each for each in entry.signatures if each.target in targets)
    entry = replace(entry, deployments=made, retractions=taken, signatures=signed)
    return replace(recorded, entry=entry)


def unsent(context: Context, target: str | None = None) -> tuple[Unsent, ...]:
    """What each remote lacks, by remote and target; nothing for what is in step.

    A remote to which nothing was pushed, if there is another one, has no conflict: what others
    deployed after this repository has pushed it elsewhere would look like one.
    """
    found, known = list[Unsent](), _pushed(context)
    for remote in remotes(context):
        rows = operations(context, known[remote])
        names = {name for recorded in rows for name in own_targets(recorded)}
        for name in sorted(names if target is None else names & {target}):
            mine = [recorded for recorded in rows if name in own_targets(recorded)]
            for each in _compared(context.store.snapshot, remote, name, mine):
                is_sure = known[remote] is not None or not any(known.values())
                found.append(each if is_sure else replace(each, state="not sent", against=IN_STEP))
    return tuple(found)


def against(context: Context, target: str) -> Against:
    """What a deployment on a target has to drop, because a remote would refuse it.

    Nothing, if another remote has accepted it or would: it stays on record there.
    """
    conflicts = {u.remote: u.against for u in unsent(context, target) if u.state == "conflict"}
    if any(name not in conflicts for name, known in _pushed(context).items() if known is not None):
        return IN_STEP
    return next(iter(conflicts.values()), IN_STEP)


def _pushed(context: Context) -> dict[str, KnownPlace | None]:
    return {name: known_place(context, remote, PUSHED) for name, remote in remotes(context).items()}


def apart_from(context: Context, remote: Remote, target: str) -> Against:
    """All that the remote lacks of this repository's record of a target."""
    snapshot = context.fresh()
    known = known_place(context, remote, PUSHED)
    rows = [each for each in operations(context, known) if target in own_targets(each)]
    made = {each.sequence for each in rows if stamping.on(each, target) is not None}
    return Against(frozenset(made), frozenset(_counting(snapshot, target, rows) - made))


def _counting(snapshot: Snapshot, target: str, rows: Sequence[Recorded]) -> set[int]:
    """Deployments that are retracted here and not at a remote that lacks these operations."""
    numbers = {each.sequence for each in rows}

    def is_lacking(recorded: Recorded, until: int) -> bool:  # or one in its place is
        is_given_up = recorded.sequence < until and recorded.entry.origin_ns is None
        return is_given_up or recorded.sequence in numbers

    return {
        number
        for each in rows
        for number in _retracted(each, target)
        if all(is_lacking(r, each.sequence) for r in snapshot.retractions(target, number))
    }


def _compared(
    snapshot: Snapshot, remote: str, target: str, rows: list[Recorded]
) -> Iterator[Unsent]:
    """What the remote would do with operations on a target."""
    deployed = {each.sequence for each in rows if stamping.on(each, target) is not None}
    taken = {each.sequence: _retracted(each, target) for each in rows}
    counting = _counting(snapshot, target, rows)
    standing = Standing(snapshot, target, Against(frozenset(deployed)))
    is_sent = False
    for recorded in rows:
        made, now_ns = stamping.on(recorded, target), recorded.entry.time_ns
        changes = {n for n in taken[recorded.sequence] if n in counting and n not in deployed}
        if made is None and not changes:
            continue
        at = None if made is None else made.time_ns
        live = standing.then(now_ns, at, Against(deployed, counting))
        expected = dict(recorded.entry.replaces).get(target)
        if expected == (None if live is None else live.id):
            is_sent = True
            deployed.discard(recorded.sequence)
            if made is not None:
                standing.add(own := recorded_as(snapshot, target, recorded.sequence))
                if own.retracted and recorded.sequence not in counting:
                    standing.drop(own)
            counting -= changes
            for number in changes:
                standing.drop(recorded_as(snapshot, target, number))
    refused = {n for n in deployed if not snapshot.retractions(target, n)}
    open_ = {n for n in counting if n not in deployed}
    against = Against(frozenset(deployed), frozenset(open_))
    there = standing.then(rows[-1].entry.time_ns, None, against)
    if refused or open_:
        yield Unsent(remote, target, "conflict", there, against=against)
    elif is_sent:
        yield Unsent(remote, target, "not sent", there)


def _retracted(recorded: Recorded, target: str) -> list[int]:
    return [each.sequence for each in recorded.entry.retractions if each.target == target]
