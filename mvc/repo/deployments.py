"""Lists deployments: which version went live on which target at which time.

Deployments are evidence: they are added and never erased (docs/decisions.md). A deployment's
*sequence* is the number of the journal entry that recorded it. A deployment is *dated* if its
time was given, that is, if its time differs from the one at which it was recorded; otherwise it is
*immediate*. Which of them is live: ``live``.

The deployments of a target are in one order in every repository: by hybrid time, then by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import DamagedData, InvalidName, UnknownTarget
from mvc.ids import CommitId, StatementId
from mvc.model.statement import Deployment, Retraction
from mvc.names import check_ref, is_report, printable
from mvc.repo.context import Context, noting
from mvc.store.index import keys
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.times import check_moment, datetime_of

_FEW = 4  # records among which an immediate one is searched first


class Deployed(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns`` and was recorded at ``recorded_ns``.

    Times are in ns since 1970. ``clock_back``: at recording, the clock was earlier than the
    target's newest record. ``author`` and ``reason``: who recorded it, and why; empty where that is
    not known; ``retracted_by`` and ``retracted_reason``: the same of its retraction. ``sent_by``:
    the token or account that pushed it here.
    ``returns_to``: of a rollback, the sequence of the deployment that it went back to. ``id`` names
    it in every repository, and ``hybrid_ns`` orders it. ``replaces``: the id of the deployment that
    was live when this one was recorded (of a dated one, at its time); None if none was.
    """

    target: str
    time_ns: int
    recorded_ns: int
    sequence: int
    commit: CommitId
    id: StatementId
    hybrid_ns: int
    retracted: bool = False
    retracted_ns: int | None = None
    clock_back: bool = False
    author: str = ""
    reason: str = ""
    returns_to: int | None = None
    retracted_by: str = ""
    retracted_reason: str = ""
    sent_by: str = ""
    replaces: StatementId | None = None

    @property
    def dated(self) -> bool:
        """Whether its time was given; otherwise it went live when it was recorded."""
        return self.time_ns != self.recorded_ns

    @property
    def time(self) -> datetime:
        """When it went live, in the system's time zone, to the microsecond."""
        return datetime_of(self.time_ns)

    def _repr_html_(self) -> str:
        from mvc.repo.display import Deployments

        return Deployments([self])._repr_html_()

    @property
    def order(self) -> tuple[int, bytes]:
        """Where it stands among the deployments of its target in the order of recording."""
        return self.hybrid_ns, self.id

    @property
    def place(self) -> tuple[int, int, bytes]:
        """Where it stands among the deployments of its target by time."""
        return self.time_ns, *self.order


def check_deployment(target: str, time_ns: int) -> None:
    """Raises InvalidName, InvalidTime for a deployment that cannot be recorded."""
    check_ref("deployment target", target)
    if is_report(target):
        raise InvalidName(
            f"{printable(target)} is where a node reports what it serves: not deployed by hand",
            hint="deploy to the target that the node follows: 'mvc follow' sends its report",
        )
    check_moment(time_ns)


def recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""
    return snapshot.retry_on_rewrite(partial(_with_sequence, snapshot, target, sequence))


def list_deployments(
    context: Context, target: str | None = None, *, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """Every deployment, retracted ones included, by time and order of recording, oldest first.

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
    for offset in snapshot.offsets_on(target):
        with noting(incomplete):
            recorded = snapshot.entry(offset)
            for made in on(recorded, target):
                found.append(_deployed(snapshot, recorded, made, before))
        before = offset
    return list(_in_order(found))


def _in_order(found: list[Deployed]) -> Iterator[Deployed]:
    """All deployments of a target by their stamps, each compared with those before it."""
    earlier_ns: int | None = None
    by_hybrid = sorted(found, key=lambda deployed: deployed.order)
    for _, equal in groupby(by_hybrid, lambda deployed: deployed.order[0]):
        group = list(equal)
        for each in group:
            back = earlier_ns is not None and each.recorded_ns < earlier_ns
            yield replace(each, clock_back=True) if back else each
        earlier_ns = max(each.recorded_ns for each in group)


def note_gaps(snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None) -> None:
    """Raises or notes DamagedData if lost entries may have changed what was live on a target."""
    with noting(incomplete):
        snapshot.check_gaps(-1, f"what was live on {printable(target)}")


def targets(context: Context, *, reports: bool = False) -> list[str]:
    """Every target, by name, or every one on which a node reports; one look-up each."""
    return context.fresh().targets(reports=reports)


def of_commit(
    snapshot: Snapshot, commit: CommitId, incomplete: list[DamagedData] | None = None
) -> tuple[Deployed, ...]:
    """A commit's deployments on all targets, in the order they were recorded, without reports.

    ``incomplete``: see ``list_deployments``.
    """
    note_gaps(snapshot, "any target", incomplete)

    def look() -> tuple[Deployed, ...]:
        found: list[Deployed] = []
        for offset in snapshot.deployments_of(commit):
            with noting(incomplete):
                recorded = snapshot.entry(offset)
                found += [
                    _read(snapshot, recorded, each)
                    for each in recorded.entry.deployments
                    if each.subject == commit and not is_report(each.target)
                ]
        return tuple(sorted(found, key=lambda deployed: (*deployed.order, deployed.target)))

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
    lost = list[int]()
    found = _down(snapshot, target, low, high, incomplete=incomplete, lost=lost)
    return _settled(found, lambda deployed: deployed.time_ns, down=True, lost=lost)


def newest_first(snapshot: Snapshot, target: str) -> Iterator[Deployed]:
    """A target's deployments in reverse order of recording."""
    low = keys.ordered(Deployment.code, target)
    found = _down(snapshot, target, low, keys.after(low))
    return _settled(found, lambda deployed: deployed.order[0], down=True)


def _settled(
    found: Iterator[Deployed],
    key: Callable[[Deployed], int],
    *,
    down: bool,
    lost: Sequence[int] = (),
) -> Iterator[Deployed]:
    """Deployments in the order of ``key``, equal ones by place, as in every repository.

    If one cannot be read, those before it are still in order unless the key ``lost`` is theirs.
    """

    def ordered(equal: Iterable[Deployed]) -> list[Deployed]:
        return sorted(equal, key=lambda deployed: deployed.place, reverse=down)

    group = list[Deployed]()
    try:
        for each in found:
            if group and key(each) != key(group[0]):
                yield from ordered(group)
                group.clear()
            group.append(each)
    except DamagedData:
        if lost and group and key(group[0]) not in lost:
            yield from ordered(group)
        raise
    yield from ordered(group)


def immediate(snapshot: Snapshot, target: str, count: int) -> Iterator[Deployed]:
    """The immediate ones of a target's ``count`` newest records, in reverse order of recording.

    Dated ones are passed over in memory: a Recorder makes nothing else.
    """
    yielded: set[int] = set()
    for size in (min(_FEW, count), count):
        found, damage = snapshot.retry_on_rewrite(partial(_immediate, snapshot, target, size))
        for sequence in found:
            if sequence not in yielded:
                yielded.add(sequence)
                yield snapshot.retry_on_rewrite(partial(_with_sequence, snapshot, target, sequence))
        if damage is not None:
            raise damage


def _immediate(snapshot: Snapshot, target: str, size: int) -> tuple[list[int], DamagedData | None]:
    """The numbers of the entries of the immediate ones among a target's newest, newest first.

    With the damage at which the search ended.
    """
    found: list[int] = []
    newest = reversed(snapshot.newest_ordered(target, size))
    try:
        for _, equal in groupby(newest, keys.moment_of):
            rows = [snapshot.ordered_at(key, target) for key in equal]
            rows.sort(key=lambda row: row[1].order, reverse=True)
            for recorded, made in rows[:size]:
                size -= 1
                if made.time_ns == made.recorded_ns:
                    found.append(recorded.sequence)
    except DamagedData as error:
        return found, error
    return found, None


def _with_sequence(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    recorded = snapshot.by_sequence(sequence)
    if recorded is None:  # deployments are never collected
        raise DamagedData(
            f"operation {sequence} recorded a deployment on {target}, but it is not found",
            hint="run 'mvc fsck' to see what is damaged",
        )
    return _read(snapshot, recorded, _in_entry(recorded, target))


def _read(snapshot: Snapshot, recorded: Recorded, made: Deployment) -> Deployed:
    before = snapshot.before_on(made.target, recorded.offset)
    deployed = _deployed(snapshot, recorded, made, before)
    earlier_ns = None
    with suppress(DamagedData):  # a lost entry before it does not change when it was recorded
        earlier_ns = _recorded_before(snapshot, made)
    back = earlier_ns is not None and deployed.recorded_ns < earlier_ns
    return replace(deployed, clock_back=True) if back else deployed


def _recorded_before(snapshot: Snapshot, made: Deployment) -> int | None:
    """When the deployment before this one was recorded; of several of one hybrid time the last."""

    def look() -> int | None:
        before = snapshot.hybrid_before(made.target, made.hybrid_ns)
        rows = [] if before is None else snapshot.at_hybrid(made.target, before)
        return max((each.recorded_ns for _, each in rows), default=None)

    return snapshot.retry_on_rewrite(look)


def upwards(snapshot: Snapshot, target: str, since: int) -> Iterator[Deployed]:
    """A target's deployments by time, earliest first, from ``since`` (ns since 1970) on.

    The iterator reads only what is taken.
    """
    found = _up(snapshot, target, since)
    return _settled(found, lambda deployed: deployed.time_ns, down=False)


def _up(snapshot: Snapshot, target: str, since: int) -> Iterator[Deployed]:
    low = keys.DEPLOYED + keys.text(target)
    start, high = low + keys.moment(since), keys.after(low)
    last: tuple[bytes, int] | None = None  # of the previous key, because gc moves entries

    def look() -> tuple[bytes, int, Deployed] | None:
        there = None if last is None else snapshot.by_sequence(last[1])
        bound = start
        if last is not None:
            bound = last[0] + (b"\xff" * 8 if there is None else keys.number(there.offset) + b"\0")
        key = snapshot.first(bound, high)
        return None if key is None else _at_key(snapshot, target, key)

    while (found := snapshot.retry_on_rewrite(look)) is not None:
        yield found[2]
        last = found[:2]


def _down(
    snapshot: Snapshot,
    target: str,
    low: bytes,
    high: bytes,
    incomplete: list[DamagedData] | None = None,
    lost: list[int] | None = None,
) -> Iterator[Deployed]:
    """``lost``: gets the moment of the key whose entry cannot be read."""
    last: tuple[bytes, int] | None = None  # of the previous key, because gc moves entries

    def key() -> bytes | None:
        bound = high
        if last is not None:
            there = snapshot.by_sequence(last[1])
            bound = high if there is None else last[0] + keys.number(there.offset)
        return snapshot.last(low, bound)

    def look() -> tuple[bytes, int, Deployed] | None:
        return None if (at := key()) is None else _at_key(snapshot, target, at)

    while True:
        try:
            found = snapshot.retry_on_rewrite(look)
        except DamagedData as error:
            there = key()
            if incomplete is None or there is None:
                if lost is not None and there is not None:
                    lost.append(keys.moment_of(there))
                raise
            incomplete.append(error)
            high, last = there, None  # entries are not moved while one is lost
            continue
        if found is None:
            return
        yield found[2]
        last = found[:2]


def _at_key(snapshot: Snapshot, target: str, key: bytes) -> tuple[bytes, int, Deployed]:
    """The deployment that a key leads to, after the key up to its offset and its entry's number."""
    recorded = snapshot.entry(keys.offset_of(key))
    deployed = _read(snapshot, recorded, _in_entry(recorded, target))
    return keys.without_offset(key), recorded.sequence, deployed


def on(recorded: Recorded, target: str) -> Iterator[Deployment]:
    """The deployments on a target in an entry: one at most."""
    return (each for each in recorded.entry.deployments if each.target == target)


def _in_entry(recorded: Recorded, target: str) -> Deployment:
    found = next(on(recorded, target), None)
    if found is None:
        raise _bad_index(target)
    return found


def deployment_with(snapshot: Snapshot, id_: StatementId) -> tuple[Recorded, Deployment] | None:
    """A deployment, and its entry; None if it is not here."""
    found = snapshot.statement(id_)
    if found is None or not isinstance(found[1], Deployment):
        return None
    return found[0], found[1]


def _deployed(
    snapshot: Snapshot, recorded: Recorded, made: Deployment, before: int | None
) -> Deployed:
    """The deployment, after a check that its predecessor is in the entry at byte ``before``.

    The check detects a look-up that skipped a statement. Raises DamagedData.
    """
    target, there = made.target, None
    if before is not None:
        with suppress(DamagedData):
            there = snapshot.entry(before)
    if not _follows(snapshot, recorded.entry.before(made), before, there):
        raise _bad_index(target)
    _, retraction = next(iter(snapshot.about(Retraction, made.id)), (None, None))
    back = None
    with suppress(DamagedData):
        back = None if made.returned_to is None else deployment_with(snapshot, made.returned_to)
    return Deployed(
        target,
        made.time_ns,
        made.recorded_ns,
        recorded.sequence,
        commit=CommitId(made.subject),
        id=made.id,
        hybrid_ns=made.hybrid_ns,
        retracted=retraction is not None,
        retracted_ns=None if retraction is None else retraction.recorded_ns,
        author=made.author,
        reason=made.reason,
        returns_to=None if back is None else back[0].sequence,
        retracted_by="" if retraction is None else retraction.author,
        retracted_reason="" if retraction is None else retraction.reason,
        sent_by=recorded.entry.sender,
        replaces=made.replaces,
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
    if context.store.snapshot.newest_hybrid(target) is not None:
        return target
    if is_report(target):
        raise UnknownTarget(
            f"no node has reported on {printable(target[:100])}, as far as is known here",
            hint="'mvc live --nodes' lists the nodes; 'mvc fetch --nodes' brings later reports",
        )
    names = targets(context)
    from difflib import get_close_matches

    close = get_close_matches(target, names, n=3, cutoff=0.5) or names[:10]
    raise UnknownTarget(
        f"nothing was ever deployed on {printable(target[:100])}",
        hint=f"there is: {', '.join(close)}" if close else "nothing was deployed anywhere yet",
    )
