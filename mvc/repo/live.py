"""What was live on a target, and from when until when (docs/format.md, "Deployments").

Retracted deployments are skipped (``deployments`` says what *dated* and *immediate* mean). Recorded
times are taken as they stand: deployments that were recorded while a clock was set back stand where
it said. Live now goes by the order of recording, so that this does no harm; a dated deployment of
an earlier time does not take over, and one of a future time takes over at that time.

A *stretch* is the time from a deployment to the next one by these rules, whose beginning is the
first moment that no longer belongs to it. Of deployments of one time the last has it all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from itertools import chain
from operator import attrgetter

from msgspec import Struct

from mvc.errors import DamagedData, NoDeployment, UnknownTarget, WrongUsage
from mvc.ids import CommitId, StatementId
from mvc.model.commit import Commit
from mvc.model.statement import Deployment, Retraction
from mvc.names import is_report, printable
from mvc.repo.annotations import Annotation, Annotations, merged
from mvc.repo.context import Context
from mvc.repo.deployments import (
    Deployed,
    check_target,
    deployment_with,
    immediate,
    newest_first,
    note_gaps,
    on_target,
    recorded_as,
    targets,
    upwards,
)
from mvc.repo.lookup import commits
from mvc.store.snapshot import Snapshot
from mvc.text import html_table, measured
from mvc.times import check_moment, datetime_of, format_time, nearest

RECENT = 256
"""How many of a target's newest records are searched for an immediate one."""
_NEVER = 1 << 64  # ns, later than every time that can be recorded


class Against(Struct, frozen=True):
    """How a remote's record of a target differs: it lacks the deployments ``without``, and the
    retractions of the deployments ``counting``.
    """

    without: Set[StatementId] = frozenset()
    counting: Set[StatementId] = frozenset()

    def retractions(self, snapshot: Snapshot, new: Deployment) -> tuple[Retraction, ...]:
        """What a new deployment retracts, so that both records agree once it is accepted."""
        dropped = (id_ for id_ in self.without if not snapshot.is_subject(Retraction, id_))
        return tuple(
            Retraction(
                subject=id_,
                author=new.author,
                reason=new.reason,
                target=new.target,
                replaces=new.replaces,
            )
            for id_ in sorted({*dropped, *self.counting})
        )


IN_STEP = Against()


class Live(Struct, frozen=True):
    """A stretch of time in which a version was live on a target.

    It begins with ``deployment`` and ends before ``until_ns`` (ns since 1970), when the next
    deployment on record begins; None if none does. ``annotations``: what was found out about the
    version later.
    """

    deployment: Deployed
    version: Commit
    until_ns: int | None
    annotations: tuple[Annotation, ...] = ()

    @property
    def target(self) -> str:
        return self.deployment.target

    @property
    def commit(self) -> CommitId:
        return self.deployment.commit

    @property
    def since_ns(self) -> int:
        return self.deployment.time_ns

    @property
    def since(self) -> datetime:
        return datetime_of(self.since_ns)

    @property
    def until(self) -> datetime | None:
        return None if self.until_ns is None else datetime_of(self.until_ns)

    @property
    def message(self) -> str:
        return self.version.message

    @property
    def metrics(self) -> Mapping[str, float]:
        """The version's metrics and those of its annotations, of which the last counts."""
        return merged(self.version, self.annotations)[0]

    @property
    def params(self) -> Mapping[str, str]:
        """The version's params and those of its annotations, in the same way."""
        return merged(self.version, self.annotations)[1]

    @property
    def who(self) -> str:
        """Who deployed it; empty where that is not on record."""
        return self.deployment.author

    @property
    def why(self) -> str:
        return self.deployment.reason

    def _repr_html_(self) -> str:
        return LiveVersions([self])._repr_html_()


class LiveVersions(tuple[Live, ...]):
    """What was live; a notebook shows it as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        names = ("target", "version", "since", "until", "message", "metrics", "by", "why")
        return html_table(names, map(_row, self))


def _row(live: Live) -> Sequence[str]:
    return (
        live.target,
        live.commit.short,
        format_time(live.since_ns),
        "" if live.until_ns is None else format_time(live.until_ns),
        live.message.strip().partition("\n")[0],
        measured(live.metrics),
        live.who,
        live.why,
    )


# -- stretches ---------------------------------------------------------------------------


def live(context: Context, target: str, time_ns: int | None = None) -> Live:
    """The stretch that holds a moment, by default now, in a few look-ups.

    Raises UnknownTarget, NoDeployment, InvalidTime, and DamagedData if a lost entry of the
    journal may change the answer, or the version's commit is lost.
    """
    now, snapshot = nearest(context.store.clock.now_ns()), context.store.snapshot
    found = live_at(context, time_ns, target)
    if time_ns is None:
        return _stretch(context, found, _until_from_now(snapshot, found, now))
    return _stretch(context, found, _next_time(snapshot, target, found.time_ns))


def all_live(context: Context, time_ns: int | None = None) -> LiveVersions:
    """The stretch of every target that has one at a moment, by the names of the targets."""
    found = []
    for target in targets(context):
        with suppress(NoDeployment):
            found.append(live(context, target, time_ns))
    return LiveVersions(found)


def live_between(
    context: Context, since: int, until: int, target: str | None = None
) -> LiveVersions:
    """``Repository.live_between``: stretches by target, then by time.

    Reads the deployments of the interval, and one before and after it.
    """
    check_moment(since), check_moment(until)
    if until < since:
        raise WrongUsage(
            f"the time ends before it begins: {format_time(until)} is before {format_time(since)}",
            hint="name the earlier moment first",
        )
    context.fresh()
    names = targets(context) if target is None else [check_target(context, target)]
    return LiveVersions(each for name in names for each in _between(context, name, since, until))


def _between(context: Context, target: str, since: int, until: int) -> list[Live]:
    snapshot = context.store.snapshot
    found: list[Live] = []
    end = _next_time(snapshot, target, until)
    for deployed in on_target(snapshot, target, until=until):
        if not deployed.retracted and deployed.time_ns != end:
            found.append(_stretch(context, deployed, end))
            end = deployed.time_ns
            if end <= since:
                break
    return found[::-1]


def _stretch(context: Context, deployed: Deployed, until: int | None) -> Live:
    try:
        version = commits.get(context, deployed.commit)
        found = Annotations(context.store.snapshot).of(deployed.commit)
        return Live(deployed, version, until, annotations=found)
    except DamagedData as error:
        since = format_time(deployed.time_ns)
        what = f"{deployed.commit.short} is live on {printable(deployed.target)} from {since}"
        raise DamagedData(f"{what}, but {error.message}", hint=error.hint) from error


def _next_time(snapshot: Snapshot, target: str, after: int) -> int | None:
    later = upwards(snapshot, target, after)
    return next((d.time_ns for d in later if not d.retracted and d.time_ns > after), None)


def _until_from_now(snapshot: Snapshot, deployed: Deployed, now: int) -> int | None:
    """When what is live now will be replaced, as far as that is on record."""
    overtaken = next(_immediate(snapshot, deployed.target), None) is not None
    for later in upwards(snapshot, deployed.target, max(now, deployed.time_ns)):
        counts = later.dated or not overtaken
        if counts and not later.retracted and later.time_ns > now and later.place > deployed.place:
            return later.time_ns
    return None


# -- which deployment --------------------------------------------------------------------


def live_at(context: Context, time_ns: int | None = None, target: str | None = None) -> Deployed:
    """The deployment that was live on a target at a moment, by default now.

    ``target`` may be None if there is only one. Takes a few look-ups, whatever the length of the
    history. Raises as ``live``.
    """
    snapshot = context.fresh()
    name = _only_target(context) if target is None else check_target(context, target)
    note_gaps(snapshot, name, None)
    now = nearest(context.store.clock.now_ns())
    if (deployed := live_among(snapshot, name, now, time_ns)) is None:
        raise _none_live(snapshot, name, now if time_ns is None else time_ns)
    return deployed


def live_among(
    snapshot: Snapshot,
    target: str,
    now_ns: int,
    time_ns: int | None = None,
    *,
    against: Against = IN_STEP,
) -> Deployed | None:
    """What is live now, or at a time, as the remote sees it that ``against`` describes."""
    if time_ns is None:
        found = succession(snapshot, target, now_ns, against.counting)
    else:
        every = on_target(snapshot, target, until=time_ns)
        found = (d for d in every if not d.retracted or d.id in against.counting)
    return next((d for d in found if d.id not in against.without), None)


def replaced(
    snapshot: Snapshot,
    target: str,
    now_ns: int,
    time_ns: int | None = None,
    *,
    against: Against = IN_STEP,
) -> StatementId | None:
    """What a statement of now replaces on a target; ``time_ns``: of a deployment.

    Valid only under the journal's lock.
    """
    at = None if time_ns == now_ns else time_ns
    live = live_among(snapshot, target, now_ns, at, against=against)
    return None if live is None else live.id


class Standing:
    """What is live on a target whose record grows: most of it without a look-up.

    ``_rows``: all that counts from its first deployment on until ``_until``, by place. The newest
    immediate one is the last of them, or before it: so the last one is live.
    """

    def __init__(self, snapshot: Snapshot, target: str, against: Against = IN_STEP) -> None:
        self._snapshot, self._target = snapshot, target
        every = newest_first(snapshot, target)
        self._newest = next((d for d in every if d.id not in against.without), None)
        self._rows, self._until = list[Deployed](), 0

    def then(self, now_ns: int, time_ns: int | None, against: Against = IN_STEP) -> Deployed | None:
        """What an operation of ``now_ns`` has to replace, to be accepted.

        That includes what took over since by a time that was given. ``time_ns``: of its deployment.
        ``against``: with all that was told by ``add`` and ``drop``.
        """
        is_now, at = time_ns in (None, now_ns), now_ns if time_ns is None else time_ns
        if is_now and self._newest is not None:
            at = max(at, self._newest.recorded_ns)
        if self._rows and self._rows[-1 if is_now else 0].time_ns <= at < self._until:
            return self._rows[bisect_right(self._rows, at, key=attrgetter("time_ns")) - 1]
        live = live_among(self._snapshot, self._target, at, against=against)
        last = live_among(self._snapshot, self._target, at, at, against=against)
        self._rows = [] if last is None or last != live else [last]
        later = (d for d in upwards(self._snapshot, self._target, at) if d.time_ns > at)
        times = (d.time_ns for d in later if d.id not in against.without)
        self._until = next(times, _NEVER)
        return live if is_now else last

    def add(self, made: Deployed) -> None:
        """It is on record now, and counts."""
        is_newest = self._newest is None or made.order > self._newest.order
        self._newest = made if is_newest else self._newest
        above = self._rows[0 if made.dated else -1].place if self._rows else made.place
        if above < made.place and made.time_ns < self._until and (made.dated or is_newest):
            insort(self._rows, made, key=attrgetter("place"))
        elif not made.dated:
            self._rows.clear()

    def drop(self, made: Deployed) -> None:
        """It does not count any more."""
        at = bisect_left(self._rows, made.place, key=attrgetter("place"))
        is_among = self._rows[at : at + 1] and self._rows[at].id == made.id
        if is_among and (at or made.dated):
            del self._rows[at]
        elif not made.dated:
            self._rows.clear()


class Standings:
    """``Standing`` of each target that is asked for, as the journal grows."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._next = snapshot, snapshot.position.sequence
        self._on = dict[str, Standing]()
        self._dropped = set[bytes]()

    def on(self, target: str) -> Standing:
        """Valid only under the journal's lock."""
        for recorded in self._snapshot.from_sequence(self._next):
            self._next, number = recorded.sequence + 1, recorded.sequence
            for made in recorded.entry.deployments:
                if made.target in self._on:
                    self._on[made.target].add(recorded_as(self._snapshot, made.target, number))
            for taken in recorded.entry.retractions:
                if taken.target in self._on:
                    self._drop(taken)
        if target not in self._on:
            self._on[target] = Standing(self._snapshot, target)
        return self._on[target]

    def _drop(self, taken: Retraction) -> None:
        found = deployment_with(self._snapshot, StatementId(taken.subject))
        if found is not None and taken.subject not in self._dropped:
            self._dropped.add(taken.subject)
            gone = recorded_as(self._snapshot, taken.target, found[0].sequence)
            self._on[taken.target].drop(gone)


def same_until(snapshot: Snapshot, target: str, now_ns: int) -> range:
    """The moments from ``now_ns`` on at which the same is live, as long as nothing is recorded."""
    due = snapshot.next_deployment(target, now_ns)
    return range(now_ns, _NEVER if due is None else due)


def live_now(context: Context, *, reports: bool = False) -> dict[CommitId, list[str]]:
    """The live versions with their targets; with ``reports`` also what nodes serve."""
    found: dict[CommitId, list[str]] = {}
    for target in [*targets(context), *(targets(context, reports=True) if reports else ())]:
        with suppress(NoDeployment):
            now = live_at(context, None, target)
            found.setdefault(now.commit, []).append(target)
    return found


def succession(
    snapshot: Snapshot, target: str, now_ns: int, counting: Collection[StatementId] = ()
) -> Iterator[Deployed]:
    """What is live now, then what would be if that had never been deployed, and so on.

    The deployments ``counting`` are among them even if they are retracted. Of a node's report the
    newest time answers, by its clock, which may be ahead. The iterator reads only what is taken.
    """

    def counts(deployed: Deployed) -> bool:
        return not deployed.retracted or deployed.id in counting

    by_time = filter(
        counts, on_target(snapshot, target, until=None if is_report(target) else now_ns)
    )
    taken: set[StatementId] = set()
    passed: list[Deployed] = []
    later: Deployed | None = None
    for recorded in () if is_report(target) else _immediate(snapshot, target, counting):
        later = later or next(by_time, None)
        while later is not None and later.place > recorded.place:
            if later.dated:
                yield later
            else:
                passed.append(later)
            later = next(by_time, None)
        yield recorded
        taken.add(recorded.id)
    rest = chain(passed, () if later is None else (later,), by_time)
    yield from (deployed for deployed in rest if deployed.id not in taken)


def _immediate(
    snapshot: Snapshot, target: str, counting: Collection[StatementId] = ()
) -> Iterator[Deployed]:
    """The immediate ones among the newest records, in reverse order of recording."""
    for deployed in immediate(snapshot, target, RECENT):
        if not deployed.retracted or deployed.id in counting:
            yield deployed


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


def _none_live(snapshot: Snapshot, target: str, time_ns: int) -> NoDeployment:
    first = next(
        (each for each in upwards(snapshot, target, -_NEVER >> 1) if not each.retracted), None
    )
    what = f"nothing is live on {target}: every deployment was retracted"
    if first is not None:
        what = (
            f"nothing was live on {target} at {format_time(time_ns)}: its first "
            f"deployment is {first.commit.short} at {format_time(first.time_ns)}"
        )
    return NoDeployment(what, hint=f"'mvc deploy --list {target}' lists them")
