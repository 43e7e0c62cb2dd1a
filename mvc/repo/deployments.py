"""Records and lists deployments: which version went live on which target at which time.

Deployments are evidence: they are added and never erased (docs/decisions.md). A deployment's
*sequence* is the number of the journal entry that recorded it. A deployment is *dated* if its
time was given, that is, if its time differs from its entry's; otherwise it is *immediate*.
Which of them is live: ``live``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial

from msgspec import Struct

from mvc.errors import DamagedData, NoDeployment, UnknownTarget
from mvc.ids import CommitId
from mvc.model.names import check_ref, printable
from mvc.repo.context import Context, noting
from mvc.repo.lookup import availability, stamping
from mvc.repo.lookup.revisions import Rev, resolve
from mvc.repo.times import check_moment, datetime_of, format_time
from mvc.store.index import keys
from mvc.store.journal.entries import Deployment, Entry, Retraction
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot

_FEW = 4  # records among which an immediate one is searched first


_SECOND = 10**9


class Deployed(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns`` and was recorded at ``recorded_ns``.

    Times are in ns since 1970. ``clock_back``: at recording, the clock was earlier than the
    target's newest record. ``author`` and ``reason``: who recorded it, and why; empty where that is
    not known; ``retracted_by`` and ``retracted_reason``: the same of its retraction.
    ``returns_to``: of a rollback, the sequence of the deployment that it went back to.
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

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among the deployments of its target by time."""
        return self.time_ns, self.sequence


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
            availability.check_kept(context, commit)
        at = now if time_ns is None else time_ns
        made = deployment_for(snapshot, target, at, commit, now_ns=now)
        author = context.author
        return Entry("deploy", now, target, deployments=(made,), author=author, reason=reason)

    return recorded_as(snapshot, target, context.store.publish(make).sequence)


def recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""
    for deployed in newest_first(snapshot, target):
        if deployed.sequence == sequence:
            return deployed
    raise DamagedData(
        f"operation {sequence} recorded a deployment on {target}, but it is not found",
        hint="run 'mvc fsck' to see what is damaged",
    )


def deployment_for(
    snapshot: Snapshot, target: str, time_ns: int, commit_id: CommitId, *, now_ns: int
) -> Deployment:
    """The record of a deployment, for an entry of ``now_ns`` made under the journal's lock.

    An entry has at most one per target. Raises InvalidName, InvalidTime.
    """
    check_ref("deployment target", target)
    check_moment(time_ns)
    before = snapshot.newest_deployment(target)
    return Deployment(
        target,
        time_ns,
        commit_id,
        None if before is None else before.sequence,
        stamp=stamping.next_stamp(snapshot, target, now_ns),
    )


def retract(
    context: Context,
    rev: Rev | None,
    target: str,
    time_ns: int | None = None,
    *,
    reason: str = "",
) -> Deployed:
    """Records that a deployment does not count; its own record stays.

    It is the newest on the target, of ``rev`` if that is not None, and at ``time_ns`` (ns since
    1970) if given; if none was then, the newest within that second. Raises UnknownTarget,
    UnknownRevision, NoDeployment.
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
    newest = (
        newest_first(snapshot, target) if commit is None else reversed(of_commit(snapshot, commit))
    )
    then, second = list[Deployed](), list[Deployed]()
    for deployed in newest:
        if deployed.target != target:
            continue
        if time_ns in (None, deployed.time_ns):
            then.append(deployed)
            if not deployed.retracted:
                return deployed
        elif time_ns is not None and deployed.time_ns // _SECOND * _SECOND == time_ns:
            second.append(deployed)  # people are shown seconds
    there = next(iter(then), None)
    counting = next((deployed for deployed in second if not deployed.retracted), None)
    if there is None and counting is not None:
        return counting
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
        note_gaps(snapshot, name, incomplete)
        found += snapshot.retry_on_rewrite(partial(all_on, snapshot, name, incomplete))
    return sorted(found, key=lambda deployed: deployed.place)


def all_on(
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


def note_gaps(snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None) -> None:
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
    note_gaps(snapshot, "any target", incomplete)

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
    note_gaps(snapshot, target, incomplete)
    low = keys.DEPLOYED + keys.text(target)
    high = keys.after(low if until is None else low + keys.moment(check_moment(until)))
    return _down(snapshot, target, low, high, incomplete=incomplete)


def newest_first(snapshot: Snapshot, target: str) -> Iterator[Deployed]:
    """A target's deployments in reverse order of recording."""
    low = keys.TARGET + keys.text(target)
    return _down(snapshot, target, low, keys.after(low))


def immediate(snapshot: Snapshot, target: str, count: int) -> Iterator[Deployed]:
    """The immediate ones of a target's ``count`` newest records, in reverse order of recording.

    Dated ones are passed over in memory: a Recorder makes nothing else.
    """

    def look(size: int) -> tuple[list[int], DamagedData | None]:
        offsets = snapshot.newest_deployments(target, size + 1)
        found: list[int] = []
        try:
            for offset, before in zip(offsets[:size], [*offsets[1:], None], strict=False):
                found.extend(_if_immediate(snapshot, target, offset, before))
        except DamagedData as error:
            return found, error
        return found, None

    yielded: set[int] = set()
    for size in (min(_FEW, count), count):
        found, damage = snapshot.retry_on_rewrite(partial(look, size))
        for sequence in found:
            if sequence not in yielded:
                yielded.add(sequence)
                yield snapshot.retry_on_rewrite(partial(_with_sequence, snapshot, target, sequence))
        if damage is not None:
            raise damage


def _if_immediate(
    snapshot: Snapshot, target: str, offset: int, before: int | None
) -> Iterator[int]:
    """The number of the entry at byte ``offset``, if its deployment is immediate."""
    recorded = snapshot.entry(offset)
    made = _in_entry(recorded, target)
    if made.time_ns == recorded.entry.time_ns:
        yield recorded.sequence
    elif before is None or snapshot.entry(before).sequence != made.previous:
        _deployed(snapshot, recorded, made, before)  # a look-up may have passed over one


def _with_sequence(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    recorded = snapshot.by_sequence(sequence)
    assert recorded is not None  # it was just read, and deployments are never collected
    before = snapshot.deployment_before(target, recorded.offset)
    return _deployed(snapshot, recorded, _in_entry(recorded, target), before)


def upwards(snapshot: Snapshot, target: str, since: int) -> Iterator[Deployed]:
    """A target's deployments by time, earliest first, from ``since`` (ns since 1970) on.

    The iterator reads only what is taken.
    """
    low = keys.DEPLOYED + keys.text(target)
    start, high = low + keys.moment(since), keys.after(low)
    last: tuple[bytes, int] | None = None  # of the previous key, because gc moves entries

    def look() -> tuple[bytes, Deployed] | None:
        there = None if last is None else snapshot.by_sequence(last[1])
        bound = start
        if last is not None:
            bound = last[0] + (b"\xff" * 8 if there is None else keys.number(there.offset) + b"\0")
        key = snapshot.first(bound, high)
        return None if key is None else _at_key(snapshot, target, key)

    while (found := snapshot.retry_on_rewrite(look)) is not None:
        yield found[1]
        last = (found[0], found[1].sequence)


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
        return None if (at := key()) is None else _at_key(snapshot, target, at)

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


def _at_key(snapshot: Snapshot, target: str, key: bytes) -> tuple[bytes, Deployed]:
    """The deployment that a key leads to, and the key up to its offset."""
    recorded = snapshot.entry(keys.offset_of(key))
    before = snapshot.deployment_before(target, recorded.offset)
    deployed = _deployed(snapshot, recorded, _in_entry(recorded, target), before)
    return keys.without_offset(key), deployed


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
    entry = recorded.entry
    retraction = min(
        snapshot.retractions(target, sequence),
        key=lambda taken: (taken.entry.done_ns, taken.entry.done_by, taken.entry.reason),
        default=None,
    )
    return Deployed(
        target,
        deployment.time_ns,
        entry.time_ns,
        sequence,
        commit=deployment.commit,
        retracted=retraction is not None,
        retracted_ns=None if retraction is None else retraction.entry.done_ns,
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
