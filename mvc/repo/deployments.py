"""Lists deployments: which version went live on which target at which time.

Deployments are evidence: they are added and never erased (docs/decisions.md). A deployment's
*sequence* is the number of the journal entry that recorded it. A deployment is *dated* if its
time was given, that is, if its time differs from the one at which it was recorded; otherwise it is
*immediate*. Which of them is live: ``live``.

The deployments of a target are in one order in every repository: by hybrid time, then by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from mvc.errors import DamagedData, InvalidName, UnknownTarget
from mvc.ids import CommitId, StatementId
from mvc.model.statement import Deployment, Retraction
from mvc.names import check_ref, is_report, printable
from mvc.repo.context import Context, noting
from mvc.store.index import keys
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.text import html_table
from mvc.times import check_moment, datetime_of, format_time

_TICKS = 10**6  # ns: records of one moment of a coarse clock are less apart


class Deployed(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns`` and was recorded at ``recorded_ns``.

    Times are in ns since 1970. ``author`` and ``reason``: who recorded it, and why; empty where
    that is not known; ``retracted_by`` and ``retracted_reason``: the same of its retraction.
    ``sent_by``: the token or account that pushed it here. ``returns_to``: of a rollback, the
    sequence of the deployment that it went back to. ``id`` names it in every repository, and
    ``hybrid_ns`` orders it. ``replaces``: the id of the deployment that was live when this one was
    recorded (of a dated one, at its time); None if none was.
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
    def clock_back(self) -> bool:
        """Whether, at recording, the clock was behind the newest record of the target."""
        return self.hybrid_ns - self.recorded_ns > _TICKS

    @property
    def time(self) -> datetime:
        """When it went live, in the system's time zone, to the microsecond."""
        return datetime_of(self.time_ns)

    def _repr_html_(self) -> str:
        return Deployments([self])._repr_html_()

    @property
    def order(self) -> tuple[int, bytes]:
        """Where it stands among the deployments of its target in the order of recording."""
        return self.hybrid_ns, self.id

    @property
    def place(self) -> tuple[int, int, bytes]:
        """Where it stands among the deployments of its target by time."""
        return self.time_ns, *self.order


class Deployments(list[Deployed]):
    """Deployments; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        names = ("version", "target", "live from", "by", "why", "")
        return html_table(names, map(_row, self))


def _row(deployed: Deployed) -> Sequence[str]:
    return (
        deployed.commit.short,
        deployed.target,
        format_time(deployed.time_ns),
        deployed.author,
        deployed.reason,
        "retracted" if deployed.retracted else "",
    )


def check_deployment(target: str, time_ns: int) -> None:
    """Raises InvalidName, InvalidTime for a deployment that cannot be recorded."""
    check_ref("deployment target", target)
    if is_report(target):
        raise InvalidName(
            f"{printable(target)} is where a node reports what it serves: not deployed by hand",
            hint="deploy to the target that the node follows: 'mvc follow' sends its report",
        )
    check_moment(time_ns)


def list_deployments(
    context: Context, target: str | None = None, *, incomplete: list[DamagedData] | None = None
) -> Deployments:
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
    return Deployments(sorted(found, key=lambda deployed: deployed.place))


def all_on(
    snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """A target's deployments in the order of recording."""
    found: list[Deployed] = []
    before = None
    for offset in snapshot.offsets_on(target):
        with noting(incomplete):
            recorded = snapshot.entry(offset)
            for made in on(recorded, target):
                found.append(_deployed(snapshot, recorded, made, before))
        before = offset
    return sorted(found, key=lambda deployed: deployed.order)


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
    return _each(snapshot, target, low, high, read=_read, incomplete=incomplete)


def newest_first(snapshot: Snapshot, target: str) -> Iterator[Deployed]:
    """A target's deployments in reverse order of recording."""
    low = keys.ordered(Deployment.code, target)
    return _each(snapshot, target, low, keys.after(low), read=_read)


def immediate(snapshot: Snapshot, target: str, count: int) -> Iterator[Deployed]:
    """The immediate ones of a target's ``count`` newest records, in reverse order of recording."""

    def read(snapshot: Snapshot, recorded: Recorded, made: Deployment) -> Deployed | None:
        return _read(snapshot, recorded, made) if made.time_ns == made.recorded_ns else None

    low = keys.ordered(Deployment.code, target)
    newest = islice(_each(snapshot, target, low, keys.after(low), read=read), count)
    return (deployed for deployed in newest if deployed is not None)


def upwards(snapshot: Snapshot, target: str, since: int) -> Iterator[Deployed]:
    """A target's deployments by time, earliest first, from ``since`` (ns since 1970) on.

    The iterator reads only what is taken.
    """
    low = keys.DEPLOYED + keys.text(target)
    return _each(
        snapshot, target, low + keys.moment(since), keys.after(low), read=_read, down=False
    )


def recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""

    def look() -> Deployed:
        recorded = snapshot.by_sequence(sequence)
        if recorded is None:  # deployments are never collected
            raise _bad_index(target)
        return _read(snapshot, recorded, _in_entry(recorded, target))

    return snapshot.retry_on_rewrite(look)


def _read(snapshot: Snapshot, recorded: Recorded, made: Deployment) -> Deployed:
    return _deployed(snapshot, recorded, made, snapshot.before_on(made.target, recorded.offset))


_T = TypeVar("_T")


def _each(
    snapshot: Snapshot,
    target: str,
    low: bytes,
    high: bytes,
    *,
    read: Callable[[Snapshot, Recorded, Deployment], _T],
    down: bool = True,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[_T]:
    """The deployments of a range of keys, from its end on if ``down``; those of one moment in the
    order of recording, each as ``read``.

    Between two moments gc may move entries; only the offset in a key changes then.
    """

    def look(lost: list[DamagedData] | None = None) -> tuple[bytes, list[_T]] | None:
        key = snapshot.last(low, high) if down else snapshot.first(low, high)
        if key is None:
            return None
        moment, rows, found = keys.without_offset(key), list[tuple[Recorded, Deployment]](), []
        for each in snapshot.under(moment):
            with noting(lost):
                recorded = snapshot.entry(keys.offset_of(each))
                rows.append((recorded, _in_entry(recorded, target)))
        for recorded, made in sorted(rows, key=lambda row: row[1].order, reverse=down):
            with noting(lost):
                found.append(read(snapshot, recorded, made))
        return moment, found

    while True:
        try:
            group = snapshot.retry_on_rewrite(look)
        except DamagedData:
            if incomplete is None:
                raise
            group = look(incomplete)
        if group is None:
            return
        yield from group[1]
        low, high = (low, group[0]) if down else (keys.after(group[0]), high)


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
