"""Records and looks up deployments: which version was live on which target at which time.

Deployments are evidence: they are added and never erased (docs/decisions.md). A deployment's
*sequence* is the number of the journal entry that recorded it. A deployment is *dated* if its
time was given, that is, if its time differs from its entry's; otherwise it is *immediate*.
Retracted deployments are skipped.

- Live at T: the last deployment at or before T by (time, sequence). Recorded times are taken as
  they stand: deployments that were recorded while a clock was set back stand where it said.
- Live now: the immediate deployment with the highest sequence, so that a clock set back does no
  harm. But if dated deployments that are not in the future come after it by (time, sequence),
  the last of those. So a dated deployment of an earlier time does not take over, and one of a
  future time takes over at that time.

The immediate deployment is searched among the ``RECENT`` newest records of the target. If there
is none, as after the import of a long history, live now is live at the current time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData, NoDeployment, UnknownTarget
from mvc.ids import CommitId
from mvc.model.names import check_ref, printable
from mvc.repo.context import Context, noting
from mvc.repo.lookup import manifests
from mvc.repo.lookup.revisions import Rev, resolve
from mvc.repo.times import check_moment, datetime_of, format_time, nearest
from mvc.store.index import keys
from mvc.store.journal.entries import Deployment, Entry, Retraction
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot

RECENT = 256
"""How many of a target's newest records are searched for an immediate one."""


class Deployed(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns`` and was recorded at ``recorded_ns``.

    Times are in ns since 1970. ``clock_back``: at recording, the clock was earlier than the
    target's newest record. ``author`` and ``reason``: who recorded it, and why; empty where that is
    not known. ``returns_to``: of a rollback, the sequence of the deployment that it went back to.
    """

    target: str
    time_ns: int
    recorded_ns: int
    sequence: int
    commit: CommitId
    retracted: bool = False
    retracted_ns: int | None = None
    clock_back: bool = False
    author: str = ""
    reason: str = ""
    returns_to: int | None = None
    retracted_by: str = ""
    retracted_reason: str = ""

    @property
    def dated(self) -> bool:
        """Whether its time was given; otherwise it went live when it was recorded."""
        return self.time_ns != self.recorded_ns

    @property
    def time(self) -> datetime:
        """When it went live, in the system's time zone, to the microsecond."""
        return datetime_of(self.time_ns)

    def _repr_html_(self) -> str:
        from mvc.repo.display import deployed_html

        return deployed_html(self)


# -- recording -----------------------------------------------------------------------


def deploy(
    context: Context, rev: Rev, target: str, time_ns: int | None = None, *, reason: str = ""
) -> Deployed:
    """Records that a version went live, by default now; durable on return.

    A forgotten version can be recorded only for a time in the past. Raises InvalidName,
    InvalidTime, UnknownRevision, StateForgotten.
    """
    snapshot = context.fresh()
    commit = resolve(context, rev)

    def make() -> Entry:
        now = context.store.now_ns()
        if time_ns is None or time_ns > now:
            manifests.check_kept(context, commit)
        made = deployment_for(snapshot, target, now if time_ns is None else time_ns, commit)
        author = context.author
        return Entry("deploy", now, target, deployments=(made,), author=author, reason=reason)

    return recorded_as(snapshot, target, context.store.publish(make).sequence)


def rollback(
    context: Context, target: str, rev: Rev | None = None, *, reason: str = ""
) -> Deployed:
    """Records that the version before the live one went live again; durable on return.

    That is what would be live if the live version had never been deployed. With ``rev`` it is that
    version, which was live on the target before. Raises UnknownTarget, UnknownRevision,
    StateForgotten, and NoDeployment if nothing else was live.
    """
    snapshot = context.fresh()
    wanted = None if rev is None else resolve(context, rev)

    def make() -> Entry:
        now, live = context.store.now_ns(), live_at(context, None, target).commit
        commit = live_at(context, None, target, besides=live).commit if wanted is None else wanted
        if commit == live:
            raise NoDeployment(f"{commit.short} is live on {printable(target)} already")
        before = [
            deployed
            for deployed in of_commit(snapshot, commit)
            if deployed.target == target and deployed.time_ns <= now and not deployed.retracted
        ]
        if not before:
            raise NoDeployment(
                f"{commit.short} was never live on {printable(target)}",
                hint=f"'mvc deploy {commit.short} {printable(target)}' makes it live",
            )
        manifests.check_kept(context, commit)
        made = replace(
            deployment_for(snapshot, target, now, commit),
            returns_to=max(before, key=_place).sequence,
        )
        author = context.author
        return Entry("deploy", now, target, deployments=(made,), author=author, reason=reason)

    return recorded_as(snapshot, target, context.store.publish(make).sequence)


def recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
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

    An entry has at most one per target. Raises InvalidName, InvalidTime.
    """
    check_ref("deployment target", target)
    check_moment(time_ns)
    before = snapshot.newest_deployment(target)
    return Deployment(target, time_ns, commit_id, None if before is None else before.sequence)


def retract(
    context: Context,
    rev: Rev | None,
    target: str,
    time_ns: int | None = None,
    *,
    reason: str = "",
) -> Deployed:
    """Records that a deployment does not count; its own record stays.

    It is the newest on the target, of ``rev`` if that is not None, and at exactly ``time_ns``
    (ns since 1970) if given. Raises UnknownTarget, UnknownRevision, NoDeployment.
    """
    snapshot = context.fresh()
    check_target(context, target)
    commit = None if rev is None else resolve(context, rev)

    def make() -> Entry:
        sequence = _to_retract(snapshot, target, commit, time_ns).sequence
        return Entry(
            "retract",
            context.store.clock.now_ns(),
            target,
            retractions=(Retraction(target, sequence),),
            author=context.author,
            reason=reason,
        )

    sequence = context.store.publish(make).entry.retractions[0].sequence
    return recorded_as(snapshot, target, sequence)


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
    what += f" on {target}" + ("" if time_ns is None else f" at {format_time(time_ns)}")
    if there is not None:
        raise NoDeployment(
            f"{what} was retracted already, at {format_time(there.retracted_ns or 0)}"
        )
    raise NoDeployment(
        f"there is no record of {what}",
        hint=f"'mvc deploy --list {target}' lists what was recorded, with exact times",
    )


# -- looking up --------------------------------------------------------------------------


def live_at(
    context: Context,
    time_ns: int | None = None,
    target: str | None = None,
    *,
    besides: CommitId | None = None,
) -> Deployed:
    """The deployment that was live on a target at a moment, by default now.

    ``target`` may be None if there is only one. Those of ``besides`` do not count. Takes a few
    look-ups, whatever the length of the history. Raises UnknownTarget, NoDeployment, InvalidTime,
    and DamagedData if a lost entry of the journal may change the answer.
    """
    snapshot = context.fresh()
    name = _only_target(context) if target is None else check_target(context, target)
    _note_gaps(snapshot, name, None)
    moment = nearest(context.store.clock.now_ns()) if time_ns is None else time_ns
    recorded = None
    if time_ns is None:
        recent = islice(_newest_first(snapshot, name), RECENT)
        recorded = next((d for d in recent if not d.dated and _counts(d, besides)), None)
    for deployed in on_target(snapshot, name, until=moment):
        if recorded is not None and _place(deployed) <= _place(recorded):
            break
        if _counts(deployed, besides) and (recorded is None or deployed.dated):
            return deployed
    if recorded is not None:
        return recorded
    if besides is not None:
        raise NoDeployment(
            f"nothing but {besides.short} was live on {printable(name)}",
            hint=f"'mvc deploy REV {printable(name)}' deploys another version",
        )
    raise _none_live(snapshot, name, moment)


def _counts(deployed: Deployed, besides: CommitId | None) -> bool:
    return not deployed.retracted and deployed.commit != besides


def _place(deployed: Deployed) -> tuple[int, int]:
    return deployed.time_ns, deployed.sequence


def list_deployments(
    context: Context, target: str | None = None, *, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """Every deployment, retracted ones included, by time and sequence, oldest first.

    Raises UnknownTarget. Raises DamagedData if a record's predecessor is missing, or if lost
    entries of the journal may have recorded deployments; with ``incomplete``, errors of lost
    entries are appended to that list and the readable deployments are returned.
    """
    snapshot = context.fresh()
    names = targets(context) if target is None else [check_target(context, target)]
    found: list[Deployed] = []
    for name in names:
        _note_gaps(snapshot, name, incomplete)
        found += snapshot.retry_on_rewrite(partial(_all_on, snapshot, name, incomplete))
    return sorted(found, key=_place)


def _all_on(
    snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """A target's deployments in the order they were recorded."""
    found: list[Deployed] = []
    before = None
    for offset in snapshot.deployments_on(target):
        with noting(incomplete):
            recorded = snapshot.entry(offset)
            found.append(_deployed(snapshot, recorded, _in_entry(recorded, target), before))
        before = offset
    return found


def _note_gaps(snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None) -> None:
    """Raises or notes DamagedData if lost entries may have changed what was live on a target."""
    with noting(incomplete):
        snapshot.check_gaps(-1, f"what was live on {printable(target)}")


def targets(context: Context) -> list[str]:
    """Every target, by name; one look-up each."""
    return context.fresh().targets()


def of_commit(
    snapshot: Snapshot, commit: CommitId, incomplete: list[DamagedData] | None = None
) -> tuple[Deployed, ...]:
    """A commit's deployments on all targets, in the order they were recorded.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(snapshot, "any target", incomplete)

    def look() -> tuple[Deployed, ...]:
        found: list[Deployed] = []
        for offset in snapshot.deployments_of(commit):
            with noting(incomplete):
                recorded = snapshot.entry(offset)
                made = [each for each in recorded.entry.deployments if each.commit == commit]
                befores = [snapshot.deployment_before(each.target, offset) for each in made]
                pairs = zip(made, befores, strict=True)
                found += [_deployed(snapshot, recorded, *pair) for pair in pairs]
        return tuple(found)

    return snapshot.retry_on_rewrite(look)


def on_target(
    snapshot: Snapshot,
    target: str,
    *,
    until: int | None = None,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    """A target's deployments by time, latest first, from ``until`` (ns since 1970) back.

    The iterator reads only what is taken.

    ``incomplete``: see ``list_deployments``.
    """
    _note_gaps(snapshot, target, incomplete)
    low = keys.DEPLOYED + keys.text(target)
    high = keys.after(low if until is None else low + keys.moment(check_moment(until)))
    return _down(snapshot, target, low, high, incomplete=incomplete)


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
    last: tuple[bytes, int] | None = None  # of the previous key, because gc moves entries

    def key() -> bytes | None:
        bound = high
        if last is not None:
            there = snapshot.by_sequence(last[1])
            bound = high if there is None else last[0] + keys.number(there.offset)
        return snapshot.last(low, bound)

    def look() -> tuple[bytes, Deployed] | None:
        if (at := key()) is None:
            return None
        recorded = snapshot.entry(keys.offset_of(at))
        before = snapshot.deployment_before(target, recorded.offset)
        deployed = _deployed(snapshot, recorded, _in_entry(recorded, target), before)
        return keys.without_offset(at), deployed

    while True:
        try:
            found = snapshot.retry_on_rewrite(look)
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


def _in_entry(recorded: Recorded, target: str) -> Deployment:
    found = next((each for each in recorded.entry.deployments if each.target == target), None)
    if found is None:
        raise _bad_index(target)
    return found


def _deployed(
    snapshot: Snapshot, recorded: Recorded, deployment: Deployment, before: int | None
) -> Deployed:
    """The deployment, after a check that its predecessor is in the entry at byte ``before``.

    The check detects a look-up that skipped a deployment. Raises DamagedData.
    """
    target, sequence = deployment.target, recorded.sequence
    there = None
    if before is not None:
        with suppress(DamagedData):
            there = snapshot.entry(before)
    if not _follows(snapshot, deployment.previous, before, there):
        relink = snapshot.newest_relink(target, sequence)  # corrects the predecessor
        relinks = () if relink is None else relink.entry.relinks
        known = [r.previous for r in relinks if (r.target, r.sequence) == (target, sequence)]
        if not known or not _follows(snapshot, known[0], before, there):
            raise _bad_index(target)
    entry, retraction = recorded.entry, snapshot.retraction(target, sequence)
    return Deployed(
        target,
        deployment.time_ns,
        entry.time_ns,
        sequence,
        commit=deployment.commit,
        retracted=retraction is not None,
        retracted_ns=None if retraction is None else retraction.entry.time_ns,
        clock_back=there is not None and entry.time_ns < there.entry.time_ns,
        author=entry.done_by,
        reason=entry.reason,
        returns_to=deployment.returns_to,
        retracted_by="" if retraction is None else retraction.entry.done_by,
        retracted_reason="" if retraction is None else retraction.entry.reason,
    )


def _follows(
    snapshot: Snapshot, previous: int | None, before: int | None, there: Recorded | None
) -> bool:
    """Whether ``previous`` is the number of the entry at byte ``before``, or of a lost entry.

    ``there`` is that entry, None if it cannot be read.
    """
    if previous is None:
        return before is None
    if there is not None and there.sequence == previous:
        return True
    if any(previous in gap.numbers for gap in snapshot.gaps):
        return True
    # A damaged entry has no readable number, but the index has the offset of that number.
    return there is None and before is not None and snapshot.offset_of(previous) == before


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
    found = snapshot.retry_on_rewrite(partial(_all_on, snapshot, target))
    first = min((each for each in found if not each.retracted), key=_place, default=None)
    what = f"nothing is live on {target}: every deployment was retracted"
    if first is not None:
        what = (
            f"nothing was live on {target} at {format_time(time_ns)}: its first "
            f"deployment is {first.commit.short} at {format_time(first.time_ns)}"
        )
    return NoDeployment(what, hint=f"'mvc deploy --list {target}' lists them")


def live_now(context: Context) -> dict[CommitId, list[str]]:
    """The live versions with their targets."""
    live: dict[CommitId, list[str]] = {}
    for target in targets(context):
        with suppress(NoDeployment):
            now = live_at(context, None, target)
            live.setdefault(now.commit, []).append(target)
    return live
