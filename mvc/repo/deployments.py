"""What was live where and when: evidence that is added to and never erased (docs/architecture.md).

A deployment's *sequence* is the number of the journal entry that recorded it. It is
*dated* if its time was given: if it is not that of its entry; else it is *immediate*.
Retracted ones are passed over.

- Live at T: the last one at or before T by (time, sequence).
- Live now: the newest immediate one by sequence, so that a clock set back does no harm,
  or, where one lies behind it in (time, sequence), the last dated one that is not in the
  future: a record made later of an earlier time takes nothing over, and one of a time to
  come counts from then on.

An immediate one is looked for among the ``RECENT`` newest records of the target. Without
one there, as after the import of a long history, now is a moment like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from mvc.errors import DamagedData, NoDeployment, UnknownTarget
from mvc.ids import CommitId
from mvc.model.names import check_ref, printable
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.revisions import resolve
from mvc.repo.times import check_moment, format_time, nearest
from mvc.store.index import keys
from mvc.store.journal.entries import Deployment, Entry, Relink, Retraction
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot

__all__ = [
    "RECENT",
    "Deployed",
    "check_target",
    "deploy",
    "deployment_for",
    "list_deployments",
    "live_at",
    "newest",
    "of_commit",
    "on_target",
    "retract",
    "targets",
]

RECENT = 256
"""Records of a target looked at, newest first, for an immediate one: what bounds a look-up."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """``commit`` went live on ``target`` at ``time_ns``; recorded at ``recorded_ns``.

    ``clock_back``: the clock was behind the target's newest record when this was made.
    """

    target: str
    time_ns: int
    recorded_ns: int
    sequence: int
    commit: CommitId
    retracted: bool = False
    retracted_ns: int | None = None
    clock_back: bool = False

    @property
    def dated(self) -> bool:
        """Whether its time was given; otherwise it went live as it was recorded."""
        return self.time_ns != self.recorded_ns


# -- recording -----------------------------------------------------------------------


def deploy(
    context: Context, rev: str | CommitId, target: str, time_ns: int | None = None
) -> Deployed:
    """Records that a version went live, now if no time is given; durable on return.

    What was forgotten goes live no more, but that it was live earlier may be recorded.
    Raises InvalidName, InvalidTime, UnknownRevision, StateForgotten.
    """
    snapshot = context.fresh()
    commit = resolve(context, rev)

    def make() -> Entry:
        now = context.store.now_ns()
        if time_ns is None or time_ns > now:
            manifests.check_kept(context, commit)
        made = deployment_for(snapshot, target, now if time_ns is None else time_ns, commit)
        return Entry("deploy", now, target, deployments=(made,))

    return _recorded_as(snapshot, target, context.store.publish(make).sequence)


def _recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""
    for deployed in _newest_first(snapshot, target):
        if deployed.sequence == sequence:
            return deployed
    raise DamagedData(
        f"operation {sequence} recorded a deployment on {target}, but it is not found",
        hint="run 'mvc fsck' to see what is damaged",
    )


def deployment_for(
    snapshot: Snapshot, target: str, time_ns: int, commit_id: CommitId
) -> Deployment:
    """The record of a deployment, for an entry made under the journal's lock.

    An entry holds at most one a target. Raises InvalidName, InvalidTime.
    """
    check_ref("deployment target", target)
    check_moment(time_ns)
    before = snapshot.newest_deployment(target)
    return Deployment(target, time_ns, commit_id, None if before is None else before.sequence)


def retract(
    context: Context,
    target: str,
    rev: str | CommitId | None = None,
    time_ns: int | None = None,
) -> Deployed:
    """Records that a deployment does not count: the newest, or the newest of ``rev``, at
    exactly ``time_ns`` if given. What was recorded stays on record.

    Raises UnknownTarget, NoDeployment.
    """
    snapshot = context.fresh()
    check_target(context, target)
    commit = None if rev is None else resolve(context, rev)

    def make() -> Entry:
        sequence = _to_retract(snapshot, target, commit, time_ns).sequence
        now = context.store.clock.now_ns()
        return Entry("retract", now, target, retractions=(Retraction(target, sequence),))

    sequence = context.store.publish(make).entry.retractions[0].sequence
    return _recorded_as(snapshot, target, sequence)


def _to_retract(
    snapshot: Snapshot, target: str, commit: CommitId | None, time_ns: int | None
) -> Deployed:
    found = (
        _newest_first(snapshot, target) if commit is None else reversed(of_commit(snapshot, commit))
    )
    there = None
    for deployed in found:
        if deployed.target != target or time_ns not in (None, deployed.time_ns):
            continue
        if not deployed.retracted:
            return deployed
        there = there or deployed
    what = "a deployment" if commit is None else f"a deployment of {commit.short}"
    when = "" if time_ns is None else f" at {format_time(time_ns)}"
    if there is not None:
        raise NoDeployment(
            f"{what} on {target}{when} was retracted already, "
            f"at {format_time(there.retracted_ns or 0)}"
        )
    raise NoDeployment(
        f"there is no record of {what} on {target}{when}",
        hint=f"'mvc deployments {target}' lists what was recorded, with exact times",
    )


# -- asking --------------------------------------------------------------------------


def live_at(context: Context, time_ns: int | None = None, target: str | None = None) -> Deployed:
    """What was live on a target at a moment; None is now, and the only target there is.

    A few look-ups, however long the history. Raises UnknownTarget, NoDeployment, DamagedData
    where a lost entry of the journal may say otherwise.
    """
    snapshot = context.fresh()
    name = _only_target(context) if target is None else check_target(context, target)
    _note_gaps(snapshot, name, None)
    moment = nearest(context.store.clock.now_ns()) if time_ns is None else time_ns
    recorded = _newest_immediate(snapshot, name) if time_ns is None else None
    for deployed in on_target(snapshot, name, until=moment):
        if recorded is not None and _place(deployed) <= _place(recorded):
            break
        if not deployed.retracted and (recorded is None or deployed.dated):
            return deployed
    if recorded is not None:
        return recorded
    raise _none_live(snapshot, name, moment)


def _newest_immediate(snapshot: Snapshot, target: str) -> Deployed | None:
    recent = islice(_newest_first(snapshot, target), RECENT)
    return next((d for d in recent if not d.dated and not d.retracted), None)


def _place(deployed: Deployed) -> tuple[int, int]:
    return deployed.time_ns, deployed.sequence


def newest(context: Context, target: str) -> Deployed | None:
    """The deployment recorded last on a target, retracted or not."""
    return next(_newest_first(context.fresh(), target), None)


def list_deployments(
    context: Context,
    target: str | None = None,
    *,
    incomplete: list[DamagedData] | None = None,
) -> list[Deployed]:
    """Every deployment, retracted ones included, by time and sequence, oldest first.

    Raises UnknownTarget; DamagedData where a record's predecessor is missing, or entries of
    the journal are lost that may have recorded more. With ``incomplete`` the latter is noted
    there, and what can be read is returned.
    """
    snapshot = context.fresh()
    names = targets(context) if target is None else [check_target(context, target)]
    for name in names:
        _note_gaps(snapshot, name, incomplete)
    found = [
        each
        for name in names
        for each in snapshot.retry_on_rewrite(partial(_all_on, snapshot, name, incomplete))
    ]
    return sorted(found, key=_place)


def _all_on(
    snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """A target's deployments in the order they were recorded."""
    found: list[Deployed] = []
    before = None
    for offset in snapshot.deployments_on(target):
        try:
            recorded = snapshot.entry(offset)
            found.append(_deployed(snapshot, recorded, _in_entry(recorded, target), before))
        except DamagedData as error:
            if incomplete is None:
                raise
            incomplete.append(error)
        before = offset
    return found


def _note_gaps(snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None) -> None:
    """Entries that are lost may have recorded, or taken back, what was live on a target."""
    try:
        snapshot.check_gaps(-1, f"what was live on {printable(target)}")
    except DamagedData as error:
        if incomplete is None:
            raise
        incomplete.append(error)


def targets(context: Context) -> list[str]:
    """Every target on record, by name; one look-up each."""
    return context.fresh().targets()


def of_commit(
    snapshot: Snapshot, commit: CommitId, incomplete: list[DamagedData] | None = None
) -> tuple[Deployed, ...]:
    """A commit's deployments on all targets, in the order they were recorded.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(snapshot, "any target", incomplete)

    def look() -> tuple[Deployed, ...]:
        found = []
        for offset in snapshot.deployments_of(commit):
            try:
                found += _of_entry(snapshot, snapshot.entry(offset), commit)
            except DamagedData as error:
                if incomplete is None:
                    raise
                incomplete.append(error)
        return tuple(found)

    return snapshot.retry_on_rewrite(look)


def _of_entry(snapshot: Snapshot, recorded: Recorded, commit: CommitId) -> list[Deployed]:
    return [
        _deployed(
            snapshot,
            recorded,
            deployment,
            snapshot.deployment_before(deployment.target, recorded.offset),
        )
        for deployment in recorded.entry.deployments
        if deployment.commit == commit
    ]


def on_target(
    snapshot: Snapshot,
    target: str,
    *,
    until: int | None = None,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    """A target's deployments by time, latest first, from ``until`` back; read as asked for.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(snapshot, target, incomplete)
    low = keys.DEPLOYED + keys.text(target)
    high = keys.after(low if until is None else low + keys.moment(check_moment(until)))
    return _down(snapshot, target, low, high, incomplete)


def _newest_first(snapshot: Snapshot, target: str) -> Iterator[Deployed]:
    """A target's deployments in reverse order of recording."""
    low = keys.TARGET + keys.text(target)
    return _down(snapshot, target, low, keys.after(low))


def _down(
    snapshot: Snapshot,
    target: str,
    low: bytes,
    high: bytes,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    last: tuple[bytes, int] | None = None  # of the key before; maintenance moves entries

    def key() -> bytes | None:
        bound = high
        if last is not None:
            there = snapshot.by_sequence(last[1])
            bound = high if there is None else last[0] + keys.number(there.offset)
        return snapshot.last(low, bound)

    def look() -> tuple[bytes, Deployed] | None:
        at = key()
        return None if at is None else (keys.without_offset(at), _at(snapshot, target, at))

    while True:
        try:
            found = snapshot.retry_on_rewrite(look)
        except DamagedData as error:
            there = key()
            if incomplete is None or there is None:
                raise
            incomplete.append(error)
            high, last = there, None  # nobody moves entries while one is lost
            continue
        if found is None:
            return
        yield found[1]
        last = (found[0], found[1].sequence)


def _at(snapshot: Snapshot, target: str, key: bytes) -> Deployed:
    recorded = snapshot.entry(keys.offset_of(key))
    before = snapshot.deployment_before(target, recorded.offset)
    return _deployed(snapshot, recorded, _in_entry(recorded, target), before)


def _in_entry(recorded: Recorded, target: str) -> Deployment:
    for deployment in recorded.entry.deployments:
        if deployment.target == target:
            return deployment
    raise _bad_index(target)


def _deployed(
    snapshot: Snapshot, recorded: Recorded, deployment: Deployment, before: int | None
) -> Deployed:
    """A deployment, once its predecessor is checked to be the one in the entry at byte ``before``.

    A look-up that has missed a deployment is noticed that way.
    """
    target, sequence = deployment.target, recorded.sequence
    if not _follows(snapshot, deployment.previous, before):
        corrected = _corrected(snapshot, target, sequence)
        if corrected is None or not _follows(snapshot, corrected.previous, before):
            raise _bad_index(target)
    taken_back = snapshot.retraction(target, sequence)
    there = None if before is None else _if_readable(snapshot, before)
    return Deployed(
        target,
        deployment.time_ns,
        recorded.entry.time_ns,
        sequence,
        deployment.commit,
        taken_back is not None,
        None if taken_back is None else taken_back.entry.time_ns,
        there is not None and recorded.entry.time_ns < there.entry.time_ns,
    )


def _follows(snapshot: Snapshot, previous: int | None, before: int | None) -> bool:
    """Whether ``previous`` is the number of the entry at byte ``before``, or of a lost one."""
    if previous is None:
        return before is None
    there = None if before is None else _if_readable(snapshot, before)
    if there is not None and there.sequence == previous:
        return True
    if any(previous in gap.numbers for gap in snapshot.gaps):
        return True
    # A damaged entry does not tell its number, but the index knows where that number stands.
    return there is None and before is not None and snapshot.offset_of(previous) == before


def _if_readable(snapshot: Snapshot, offset: int) -> Recorded | None:
    try:
        return snapshot.entry(offset)
    except DamagedData:
        return None


def _corrected(snapshot: Snapshot, target: str, sequence: int) -> Relink | None:
    """The newest correction of a deployment's predecessor."""
    found = snapshot.newest_relink(target, sequence)
    relinks = () if found is None else found.entry.relinks
    return next((r for r in relinks if (r.target, r.sequence) == (target, sequence)), None)


def _bad_index(target: str) -> DamagedData:
    return DamagedData(
        f"the index and the journal differ on the deployments of {target}",
        hint="run 'mvc fsck --rebuild-index', and if that does not help 'mvc fsck --repair'",
    )


def _only_target(context: Context) -> str:
    names = targets(context)
    if not names:
        raise NoDeployment(
            "nothing was deployed yet", hint="record it with 'mvc deploy REV TARGET'"
        )
    if len(names) > 1:
        raise UnknownTarget(
            f"there are several targets: {', '.join(names)}", hint="name one with --target"
        )
    return names[0]


def check_target(context: Context, target: str) -> str:
    """``target`` if anything was ever deployed there; UnknownTarget otherwise."""
    if context.store.snapshot.deployment_before(target) is not None:
        return target
    names = targets(context)
    from difflib import get_close_matches

    close = get_close_matches(target, names, n=3, cutoff=0.5) or names[:10]
    raise UnknownTarget(
        f"nothing was ever deployed on {printable(target[:100])}",
        hint=f"there is: {', '.join(close)}" if close else "nothing was deployed anywhere yet",
    )


def _none_live(snapshot: Snapshot, target: str, time_ns: int) -> NoDeployment:
    standing = [
        d for d in snapshot.retry_on_rewrite(partial(_all_on, snapshot, target)) if not d.retracted
    ]
    if standing:
        first = min(standing, key=_place)
        return NoDeployment(
            f"nothing was live on {target} at {format_time(time_ns)}: its first "
            f"deployment is {first.commit.short} at {format_time(first.time_ns)}",
            hint=f"'mvc deployments {target}' lists them",
        )
    return NoDeployment(
        f"nothing is live on {target}: every deployment was retracted",
        hint=f"'mvc deployments {target}' lists them",
    )
