"""Records and looks up deployments: which version was live on which target at which time.

Deployments are evidence: they are added and never erased (docs/architecture.md). A deployment's
*sequence* is the number of the journal entry that recorded it. A deployment is *dated* if its
time was given, that is, if its time differs from its entry's; otherwise it is *immediate*.
Retracted deployments are skipped.

- Live at T: the last deployment at or before T by (time, sequence).
- Live now: the immediate deployment with the highest sequence, so that a clock set back does no
  harm. But if dated deployments that are not in the future come after it by (time, sequence),
  the last of those. So a dated deployment of an earlier time does not take over, and one of a
  future time takes over at that time.

The immediate deployment is searched among the ``RECENT`` newest records of the target. If there
is none, as after the import of a long history, live now is live at the current time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
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
from mvc.store.snapshot.view import View

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
    "recorded_as",
    "retract",
    "targets",
]

RECENT = 256
"""How many of a target's newest records are searched for an immediate one."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """``commit`` went live on ``target`` at ``time_ns`` and was recorded at ``recorded_ns``.

    Times are in ns since 1970. ``clock_back``: at recording, the clock was earlier than the
    target's newest record.
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
        """Whether its time was given; otherwise it went live when it was recorded."""
        return self.time_ns != self.recorded_ns


# -- recording -----------------------------------------------------------------------


def deploy(
    context: Context, rev: str | CommitId, target: str, time_ns: int | None = None
) -> Deployed:
    """Records that a version went live, by default now; durable on return.

    A forgotten version can be recorded only for a time in the past. Raises InvalidName,
    InvalidTime, UnknownRevision, StateForgotten.
    """
    view = context.fresh()
    commit = resolve(context, rev)

    def make() -> Entry:
        now = context.store.now_ns()
        if time_ns is None or time_ns > now:
            manifests.check_kept(context, commit)
        made = deployment_for(view, target, now if time_ns is None else time_ns, commit)
        return Entry("deploy", now, target, deployments=(made,))

    return recorded_as(view, target, context.store.publish(make).sequence)


def recorded_as(view: View, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""
    for deployed in _newest_first(view, target):
        if deployed.sequence == sequence:
            return deployed
    raise DamagedData(
        f"operation {sequence} recorded a deployment on {target}, but it is not found",
        hint="run 'mvc fsck' to see what is damaged",
    )


def deployment_for(view: View, target: str, time_ns: int, commit_id: CommitId) -> Deployment:
    """The record of a deployment, for an entry made under the journal's lock.

    An entry has at most one per target. Raises InvalidName, InvalidTime.
    """
    check_ref("deployment target", target)
    check_moment(time_ns)
    before = view.newest(keys.TARGET + keys.text(target))
    return Deployment(target, time_ns, commit_id, None if before is None else before.sequence)


def retract(
    context: Context,
    target: str,
    rev: str | CommitId | None = None,
    time_ns: int | None = None,
) -> Deployed:
    """Records that a deployment does not count; its own record stays.

    It is the newest on the target, of ``rev`` if given, and at exactly ``time_ns`` (ns since
    1970) if given. Raises UnknownTarget, UnknownRevision, NoDeployment.
    """
    view = context.fresh()
    check_target(context, target)
    commit = None if rev is None else resolve(context, rev)

    def make() -> Entry:
        sequence = _to_retract(view, target, commit, time_ns).sequence
        now = context.store.clock.now_ns()
        return Entry("retract", now, target, retractions=(Retraction(target, sequence),))

    sequence = context.store.publish(make).entry.retractions[0].sequence
    return recorded_as(view, target, sequence)


def _to_retract(view: View, target: str, commit: CommitId | None, time_ns: int | None) -> Deployed:
    found = _newest_first(view, target) if commit is None else reversed(of_commit(view, commit))
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


# -- looking up --------------------------------------------------------------------------


def live_at(context: Context, time_ns: int | None = None, target: str | None = None) -> Deployed:
    """The deployment that was live on a target at a moment, by default now.

    ``target`` may be None if there is only one. Takes a few look-ups, whatever the length of the
    history. Raises UnknownTarget, NoDeployment, InvalidTime, and DamagedData if a lost entry of
    the journal may change the answer.
    """
    view = context.fresh()
    name = _only_target(context) if target is None else check_target(context, target)
    _note_gaps(view, name, None)
    moment = nearest(context.store.clock.now_ns()) if time_ns is None else time_ns
    recorded = _newest_immediate(view, name) if time_ns is None else None
    for deployed in on_target(view, name, until=moment):
        if recorded is not None and _place(deployed) <= _place(recorded):
            break
        if not deployed.retracted and (recorded is None or deployed.dated):
            return deployed
    if recorded is not None:
        return recorded
    raise _none_live(view, name, moment)


def _newest_immediate(view: View, target: str) -> Deployed | None:
    recent = islice(_newest_first(view, target), RECENT)
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

    Raises UnknownTarget. Raises DamagedData if a record's predecessor is missing, or if lost
    entries of the journal may have recorded deployments; with ``incomplete``, errors of lost
    entries are appended to that list and the readable deployments are returned.
    """
    view = context.fresh()
    names = targets(context) if target is None else [check_target(context, target)]
    for name in names:
        _note_gaps(view, name, incomplete)
    found = [
        each for name in names for each in view.steady(partial(_all_on, view, name, incomplete))
    ]
    return sorted(found, key=_place)


def _all_on(view: View, target: str, incomplete: list[DamagedData] | None = None) -> list[Deployed]:
    """A target's deployments in the order they were recorded."""
    found: list[Deployed] = []
    before = None
    for key in view.under(keys.TARGET + keys.text(target)):
        try:
            recorded = view.entry(keys.offset_of(key))
            found.append(_deployed(view, recorded, _in_entry(recorded, target), before))
        except DamagedData as error:
            if incomplete is None:
                raise
            incomplete.append(error)
        before = key
    return found


def _note_gaps(view: View, target: str, incomplete: list[DamagedData] | None) -> None:
    """Raises or notes DamagedData if lost entries may have changed what was live on a target."""
    try:
        view.check_gaps(-1, f"what was live on {printable(target)}")
    except DamagedData as error:
        if incomplete is None:
            raise
        incomplete.append(error)


def targets(context: Context) -> list[str]:
    """Every target, by name; one look-up each."""
    view = context.fresh()
    names = []
    high = keys.after(keys.TARGET)
    while (key := view.last(keys.TARGET, high)) is not None:
        names.append(keys.name_of(key))
        high = keys.TARGET + keys.text(names[-1])
    return names[::-1]


def of_commit(
    view: View, commit: CommitId, incomplete: list[DamagedData] | None = None
) -> tuple[Deployed, ...]:
    """A commit's deployments on all targets, in the order they were recorded.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(view, "any target", incomplete)

    def look() -> tuple[Deployed, ...]:
        found = []
        for key in view.under(keys.LIVE + commit[: keys.ID_BYTES]):
            try:
                found += _of_entry(view, view.entry(keys.offset_of(key)), commit)
            except DamagedData as error:
                if incomplete is None:
                    raise
                incomplete.append(error)
        return tuple(found)

    return view.steady(look)


def _of_entry(view: View, recorded: Recorded, commit: CommitId) -> list[Deployed]:
    return [
        _deployed(view, recorded, deployment, _before(view, deployment.target, recorded.offset))
        for deployment in recorded.entry.deployments
        if deployment.commit == commit
    ]


def on_target(
    view: View,
    target: str,
    *,
    until: int | None = None,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    """A target's deployments by time, latest first, from ``until`` (ns since 1970) back.

    The iterator reads only what is taken.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(view, target, incomplete)
    low = keys.DEPLOYED + keys.text(target)
    high = keys.after(low if until is None else low + keys.moment(check_moment(until)))
    return _down(view, target, low, high, incomplete)


def _newest_first(view: View, target: str) -> Iterator[Deployed]:
    """A target's deployments in reverse order of recording."""
    low = keys.TARGET + keys.text(target)
    return _down(view, target, low, keys.after(low))


def _down(
    view: View,
    target: str,
    low: bytes,
    high: bytes,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    last: tuple[bytes, int] | None = None  # of the previous key, because gc moves entries

    def key() -> bytes | None:
        bound = high
        if last is not None:
            there = view.by_sequence(last[1])
            bound = high if there is None else last[0] + keys.number(there.offset)
        return view.last(low, bound)

    def look() -> tuple[bytes, Deployed] | None:
        at = key()
        return None if at is None else (keys.without_offset(at), _at(view, target, at))

    while True:
        try:
            found = view.steady(look)
        except DamagedData as error:
            there = key()
            if incomplete is None or there is None:
                raise
            incomplete.append(error)
            high, last = there, None  # entries are not moved while one is lost
            continue
        if found is None:
            return
        yield found[1]
        last = (found[0], found[1].sequence)


def _at(view: View, target: str, key: bytes) -> Deployed:
    recorded = view.entry(keys.offset_of(key))
    before = _before(view, target, recorded.offset)
    return _deployed(view, recorded, _in_entry(recorded, target), before)


def _in_entry(recorded: Recorded, target: str) -> Deployment:
    for deployment in recorded.entry.deployments:
        if deployment.target == target:
            return deployment
    raise _bad_index(target)


def _before(view: View, target: str, offset: int) -> bytes | None:
    """The key of the target's deployment recorded before the one at ``offset``."""
    low = keys.TARGET + keys.text(target)
    return view.last(low, low + keys.number(offset))


def _deployed(
    view: View, recorded: Recorded, deployment: Deployment, before: bytes | None
) -> Deployed:
    """The deployment, after a check that its predecessor is the one with the key ``before``.

    The check detects a look-up that skipped a deployment. Raises DamagedData.
    """
    target, sequence = deployment.target, recorded.sequence
    if not _follows(view, deployment.previous, before):
        corrected = _corrected(view, target, sequence)
        if corrected is None or not _follows(view, corrected.previous, before):
            raise _bad_index(target)
    retraction = _retraction(view, target, sequence)
    there = None if before is None else _if_readable(view, keys.offset_of(before))
    return Deployed(
        target,
        deployment.time_ns,
        recorded.entry.time_ns,
        sequence,
        deployment.commit,
        retraction is not None,
        None if retraction is None else retraction.entry.time_ns,
        there is not None and recorded.entry.time_ns < there.entry.time_ns,
    )


def _follows(view: View, previous: int | None, before: bytes | None) -> bool:
    """Whether ``previous`` is the number of the entry at the key ``before``, or of a lost entry."""
    if previous is None:
        return before is None
    offset = None if before is None else keys.offset_of(before)
    there = None if offset is None else _if_readable(view, offset)
    if there is not None and there.sequence == previous:
        return True
    if any(previous in gap.numbers for gap in view.gaps):
        return True
    # A damaged entry has no readable number, but the index has the offset of that number.
    low = keys.OPERATION + keys.number(previous)
    key = view.last(low, keys.after(low)) if there is None and offset is not None else None
    return key is not None and keys.offset_of(key) == offset


def _if_readable(view: View, offset: int) -> Recorded | None:
    try:
        return view.entry(offset)
    except DamagedData:
        return None


def _corrected(view: View, target: str, sequence: int) -> Relink | None:
    """The newest entry that corrected a deployment's predecessor."""
    low = keys.RELINKED + keys.text(target) + keys.number(sequence)
    key = view.last(low, keys.after(low))
    relinks = () if key is None else view.entry(keys.offset_of(key)).entry.relinks
    return next((r for r in relinks if (r.target, r.sequence) == (target, sequence)), None)


def _retraction(view: View, target: str, sequence: int) -> Recorded | None:
    """The entry that retracted a deployment; None if there is none."""
    low = keys.RETRACTED + keys.text(target) + keys.number(sequence)
    key = view.last(low, keys.after(low))
    return None if key is None else view.entry(keys.offset_of(key))


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
    """Returns ``target`` if it has a deployment; raises UnknownTarget otherwise."""
    low = keys.TARGET + keys.text(target)
    if context.store.view.last(low, keys.after(low)) is not None:
        return target
    names = targets(context)
    close = get_close_matches(target, names, n=3, cutoff=0.5) or names[:10]
    raise UnknownTarget(
        f"nothing was ever deployed on {printable(target[:100])}",
        hint=f"there is: {', '.join(close)}" if close else "nothing was deployed anywhere yet",
    )


def _none_live(view: View, target: str, time_ns: int) -> NoDeployment:
    standing = [d for d in view.steady(partial(_all_on, view, target)) if not d.retracted]
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
