"""Deployments: which version went live on which target and when. Finds the live version.

Deployments are never erased (docs/decisions.md). The journal is the file to which each operation is
appended. A deployment's *sequence* is the number of its journal entry. A deployment is *dated* if
its time differs from the time of recording, because the user gave the time. Otherwise the
deployment is *immediate*. The deployments of a target have the same order in every repository: by
``hybrid_ns``, then by id. ``hybrid_ns`` is the time of recording, but at least 1 more than that of
all older deployments and retractions on the target.

Retracted deployments do not count. The version that was live at a past moment follows from the
times of the deployments. The version that is live now follows from the order of recording, so that
a wrong clock does no harm. A deployment that is dated before the newest immediate deployment is not
live now. A deployment that is dated in the future becomes live at its time.

A *stretch* is the time from a deployment until another deployment replaces this deployment. If
several deployments have the same time, only the last recorded deployment has a stretch.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct

from mvc.errors import (
    DamagedData,
    InvalidName,
    MvcWarning,
    NoDeployment,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId, StatementId
from mvc.model.commit import Commit
from mvc.model.statement import Deployment, Retraction
from mvc.names import check_ref, is_report, printable
from mvc.repo.damage import noting
from mvc.repo.lookup import commits
from mvc.repo.statements.annotations import Annotation, Annotations, merged
from mvc.store.index import keys
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.text import did_you_mean
from mvc.times import check_moment, datetime_of, format_time, nearest, whole_second

_TICKS = 10**6  # ns; longer than the tick of a coarse clock


class Deployed(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns``. ``recorded_ns``: time of recording.

    Times are in ns since 1970. ``author``, ``reason``: who recorded the deployment and why, or
    empty. ``retracted_by``, ``retracted_reason``: who retracted the deployment and why, or empty.
    ``sent_by``: the token or account that pushed the deployment to this repository. ``returns_to``:
    in a rollback, the sequence of the deployment that the rollback repeats. ``id``: identifies the
    deployment in every repository. ``hybrid_ns``: orders the deployments of a target. ``replaces``:
    the id of the deployment that this deployment replaced, or None.
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
        """Whether the user gave the time. Otherwise the deployment went live when recorded."""
        return self.time_ns != self.recorded_ns

    @property
    def clock_back(self) -> bool:
        """Whether the clock was set back: an older record of the target has a later time."""
        return self.hybrid_ns - self.recorded_ns > _TICKS

    @property
    def time(self) -> datetime:
        """When the deployment went live, in the system's time zone, in whole microseconds."""
        return datetime_of(self.time_ns)

    @property
    def order(self) -> tuple[int, bytes]:
        """Key to sort a target's deployments in the order of recording."""
        return self.hybrid_ns, self.id

    @property
    def place(self) -> tuple[int, int, bytes]:
        """Key to sort a target's deployments by time, then in the order of recording."""
        return self.time_ns, *self.order


def check_deployment(target: str, time_ns: int) -> None:
    """Raises InvalidName or InvalidTime if a deployment cannot be recorded."""
    check_ref("deployment target", target)
    if is_report(target):
        raise InvalidName(
            f"{printable(target)} is reserved for reports of a node",
            hint="deploy to the target that the node follows; 'mvc follow' sends its report",
        )
    check_moment(time_ns)


def warned_if_older(store: Store, deployed: Deployed) -> Deployed:
    """Warns if a new deployment is dated a minute or more before the commit of its version.

    Returns the deployment.
    """
    if deployed.dated and deployed.time_ns + 60 * 10**9 <= (
        committed_ns := commits.get(store.fresh(), deployed.commit).time_ns
    ):
        warnings.warn(
            f"the deployment is dated {format_time(whole_second(deployed.time_ns))}, but "
            f"{deployed.commit.short} is newer: {format_time(whole_second(committed_ns))}",
            MvcWarning,
            stacklevel=3,
        )
    return deployed


def list_deployments(
    snapshot: Snapshot, target: str | None = None, *, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """All deployments, including retracted deployments, sorted by time, oldest first.

    Raises UnknownTarget; DamagedData if a deployment may be lost. With ``incomplete``, errors about
    lost journal entries are appended to this list, and the readable deployments are returned.
    """
    deployments: list[Deployed] = []
    for name in chosen_targets(snapshot, target):
        note_gaps(snapshot, name, incomplete)
        deployments += snapshot.retry_on_rewrite(partial(all_on, snapshot, name, incomplete))
    return sorted(deployments, key=lambda deployed: deployed.place)


def all_on(
    snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None = None
) -> list[Deployed]:
    """A target's deployments in the order of recording."""
    deployments: list[Deployed] = []
    before = None
    for offset in snapshot.offsets_on(target):
        with noting(incomplete):
            recorded = snapshot.entry(offset)
            deployments += [_deployed(snapshot, recorded, d, before) for d in on(recorded, target)]
        before = offset
    return sorted(deployments, key=lambda deployed: deployed.order)


def note_gaps(snapshot: Snapshot, target: str, incomplete: list[DamagedData] | None) -> None:
    """Raises DamagedData if lost journal entries may contain records of a target.

    If ``incomplete`` is not None, the error is appended to this list instead.
    """
    with noting(incomplete):
        snapshot.check_gaps(-1, f"what was live on {printable(target)}")


def of_commit(
    snapshot: Snapshot, commit: CommitId, incomplete: list[DamagedData] | None = None
) -> tuple[Deployed, ...]:
    """A version's deployments on all targets in the order of recording, without reports of nodes.

    ``incomplete``: see ``list_deployments``.
    """
    note_gaps(snapshot, "any target", incomplete)

    def read_all() -> tuple[Deployed, ...]:
        deployments: list[Deployed] = []
        for offset in snapshot.deployments_of(commit):
            with noting(incomplete):
                recorded = snapshot.entry(offset)
                deployments += [
                    _read(snapshot, recorded, deployment)
                    for deployment in recorded.entry.deployments
                    if deployment.subject == commit and not is_report(deployment.target)
                ]
        return tuple(sorted(deployments, key=lambda deployed: (*deployed.order, deployed.target)))

    return snapshot.retry_on_rewrite(read_all)


def on_target(
    snapshot: Snapshot,
    target: str,
    *,
    until: int | None = None,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[Deployed]:
    """Yields a target's deployments sorted by time, latest first.

    ``until``: only deployments at this time (in ns) or earlier. ``incomplete``: see
    ``list_deployments``.
    """
    note_gaps(snapshot, target, incomplete)
    low = keys.DEPLOYED + keys.text(target)
    high = keys.after(low if until is None else low + keys.moment(check_moment(until)))
    return _in_range(snapshot, target, low, high, read=_read, incomplete=incomplete)


def newest_first(snapshot: Snapshot, target: str) -> Iterator[Deployed]:
    """Yields a target's deployments in reverse order of recording."""
    low = keys.ordered(Deployment.code, target)
    return _in_range(snapshot, target, low, keys.after(low), read=_read)


def upwards(snapshot: Snapshot, target: str, since: int) -> Iterator[Deployed]:
    """Yields a target's deployments from ``since`` (ns) on, sorted by time, earliest first."""
    low = keys.DEPLOYED + keys.text(target)
    return _in_range(
        snapshot, target, low + keys.moment(since), keys.after(low), read=_read, down=False
    )


def recorded_as(snapshot: Snapshot, target: str, sequence: int) -> Deployed:
    """The deployment that entry ``sequence`` recorded on a target."""

    def read() -> Deployed:
        recorded = snapshot.by_sequence(sequence)
        if recorded is None:  # gc deletes no deployments, so the index must be wrong
            raise _bad_index(target)
        return _read(snapshot, recorded, _in_entry(recorded, target))

    return snapshot.retry_on_rewrite(read)


def _read(snapshot: Snapshot, recorded: Recorded, deployment: Deployment) -> Deployed:
    return _deployed(
        snapshot, recorded, deployment, snapshot.before_on(deployment.target, recorded.offset)
    )


_T = TypeVar("_T")


def _in_range(
    snapshot: Snapshot,
    target: str,
    low: bytes,
    high: bytes,
    *,
    read: Callable[[Snapshot, Recorded, Deployment], _T],
    down: bool = True,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[_T]:
    """Yields the result of ``read`` for each deployment in a range of keys of the index.

    ``down``: begin at the end of the range. Deployments of one moment are in the order of
    recording. While the caller uses a result, gc may move journal entries to other offsets. So the
    next key is found without the offset of the previous key.
    """

    def at_next(lost: list[DamagedData] | None = None) -> tuple[bytes, list[_T]] | None:
        key = snapshot.last(low, high) if down else snapshot.first(low, high)
        if key is None:
            return None
        moment, rows, values = keys.without_offset(key), list[tuple[Recorded, Deployment]](), []
        for full_key in snapshot.under(moment):
            with noting(lost):
                recorded = snapshot.entry(keys.offset_of(full_key))
                rows.append((recorded, _in_entry(recorded, target)))
        for recorded, deployment in sorted(rows, key=lambda row: row[1].order, reverse=down):
            with noting(lost):
                values.append(read(snapshot, recorded, deployment))
        return moment, values

    while True:
        try:
            group = snapshot.retry_on_rewrite(at_next)
        except DamagedData:
            if incomplete is None:
                raise
            group = at_next(incomplete)
        if group is None:
            return
        yield from group[1]
        low, high = (low, group[0]) if down else (keys.after(group[0]), high)


def on(recorded: Recorded, target: str) -> Iterator[Deployment]:
    """Yields the deployment on a target in a journal entry, if the entry has one."""
    return (d for d in recorded.entry.deployments if d.target == target)


def _in_entry(recorded: Recorded, target: str) -> Deployment:
    deployment = next(on(recorded, target), None)
    if deployment is None:
        raise _bad_index(target)
    return deployment


def deployment_with(snapshot: Snapshot, id_: StatementId) -> tuple[Recorded, Deployment] | None:
    """The deployment with this id and its journal entry, or None."""
    pair = snapshot.statement(id_)
    if pair is None or not isinstance(pair[1], Deployment):
        return None
    return pair[0], pair[1]


def _deployed(
    snapshot: Snapshot, recorded: Recorded, deployment: Deployment, before: int | None
) -> Deployed:
    """The deployment, with its retraction and all other data about the deployment.

    ``before``: the offset of the target's previous record in the index. Raises DamagedData if the
    deployment itself names another previous record, because the index would then skip records.
    """
    target, previous = deployment.target, recorded.entry.before(deployment)
    if not snapshot.is_lost(previous) and before != (
        None if previous is None else snapshot.offset_of(previous)
    ):
        raise _bad_index(target)
    _, retraction = next(iter(snapshot.about(Retraction, deployment.id)), (None, None))
    back = None
    with suppress(DamagedData):
        back = None if (to := deployment.returned_to) is None else deployment_with(snapshot, to)
    return Deployed(
        target,
        deployment.time_ns,
        deployment.recorded_ns,
        recorded.sequence,
        commit=CommitId(deployment.subject),
        id=deployment.id,
        hybrid_ns=deployment.hybrid_ns,
        retracted=retraction is not None,
        retracted_ns=None if retraction is None else retraction.recorded_ns,
        author=deployment.author,
        reason=deployment.reason,
        returns_to=None if back is None else back[0].sequence,
        retracted_by="" if retraction is None else retraction.author,
        retracted_reason="" if retraction is None else retraction.reason,
        sent_by=recorded.entry.sender,
        replaces=deployment.replaces,
    )


def _bad_index(target: str) -> DamagedData:
    return DamagedData(
        f"the index and the journal differ on the deployments of {target}",
        hint="run 'mvc fsck --rebuild-index'; if the error remains, run 'mvc fsck --repair'",
    )


def chosen_targets(snapshot: Snapshot, target: str | None) -> list[str]:
    """``target``, or all targets. Raises UnknownTarget."""
    return snapshot.targets() if target is None else [check_target(snapshot, target)]


def check_target(snapshot: Snapshot, target: str) -> str:
    """Returns ``target`` if it has a deployment; otherwise raises UnknownTarget."""
    if snapshot.newest_hybrid(target) is not None:
        return target
    if is_report(target):
        raise UnknownTarget(
            f"no known report of a node on {printable(target[:100])}",
            hint="'mvc live --nodes' lists the nodes; 'mvc fetch --nodes' fetches later reports",
        )
    names = snapshot.targets()
    available = (
        f"available: {', '.join(names[:10])}"
        if names
        else "'mvc deploy REV TARGET' records a deployment"
    )
    raise UnknownTarget(
        f"nothing was ever deployed on {printable(target[:100])}",
        hint=did_you_mean(target, names, available),
    )


RECENT = 256
"""How many of a target's newest records are searched for an immediate deployment."""
_NEVER = 1 << 64  # ns; later than any recorded time


class Against(Struct, frozen=True):
    """How the deployments of a target at a remote differ from the local deployments.

    ``without``: ids of deployments that the remote lacks. ``counting``: ids of deployments whose
    retraction the remote lacks.
    """

    without: Set[StatementId] = frozenset()
    counting: Set[StatementId] = frozenset()

    def retractions(self, snapshot: Snapshot, new: Deployment) -> tuple[Retraction, ...]:
        """The retractions to record with a new deployment. After a push, both sides then agree."""
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

    ``until_ns``: when the next deployment went live or will go live (ns since 1970). None if no
    next deployment is recorded. ``annotations``: the annotations of the version.
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
        """The version's metrics, updated by its annotations."""
        return merged(self.version, self.annotations)[0]

    @property
    def params(self) -> Mapping[str, str]:
        """The version's params, updated by its annotations."""
        return merged(self.version, self.annotations)[1]


# -- stretches ---------------------------------------------------------------------------


def live(store: Store, target: str, time_ns: int | None = None) -> Live:
    """The stretch that contains a moment (default: now).

    Raises UnknownTarget, NoDeployment, InvalidTime; DamagedData if a lost journal entry may change
    the result, or if the version's commit is lost.
    """
    now, snapshot = nearest(store.clock.now_ns()), store.snapshot
    deployed = live_at(store, time_ns, target)
    if time_ns is None:
        return _stretch(snapshot, deployed, _until_from_now(snapshot, deployed, now))
    return _stretch(snapshot, deployed, _next_time(snapshot, target, deployed.time_ns))


def all_live(store: Store, time_ns: int | None = None) -> tuple[Live, ...]:
    """The stretches that contain a moment, sorted by target.

    Targets without a live version at this moment are omitted.
    """
    stretches = []
    for target in store.fresh().targets():
        with suppress(NoDeployment):
            stretches.append(live(store, target, time_ns))
    return tuple(stretches)


def live_between(
    snapshot: Snapshot, since: int, until: int, target: str | None = None
) -> tuple[Live, ...]:
    """The stretches that overlap an interval, sorted by target, then by time."""
    check_moment(since), check_moment(until)
    if until < since:
        raise WrongUsage(
            "the interval ends before it begins: "
            f"{format_time(until, precise=False)} < {format_time(whole_second(since))}",
            hint="name the earlier moment first",
        )
    names = chosen_targets(snapshot, target)
    return tuple(stretch for name in names for stretch in _between(snapshot, name, since, until))


def _between(snapshot: Snapshot, target: str, since: int, until: int) -> list[Live]:
    stretches: list[Live] = []
    end = _next_time(snapshot, target, until)
    for deployed in on_target(snapshot, target, until=until):
        if not deployed.retracted and deployed.time_ns != end:
            stretches.append(_stretch(snapshot, deployed, end))
            end = deployed.time_ns
            if end <= since:
                break
    return stretches[::-1]


def _stretch(snapshot: Snapshot, deployed: Deployed, until: int | None) -> Live:
    try:
        version = commits.get(snapshot, deployed.commit)
        annotations = Annotations(snapshot).of(deployed.commit)
        return Live(deployed, version, until, annotations=annotations)
    except DamagedData as error:
        since = format_time(whole_second(deployed.time_ns))
        fact = f"{deployed.commit.short} is live on {printable(deployed.target)} from {since}"
        raise DamagedData(f"{fact}, but {error.message}", hint=error.hint) from error


def _next_time(snapshot: Snapshot, target: str, after: int) -> int | None:
    later = upwards(snapshot, target, after)
    return next((d.time_ns for d in later if not d.retracted and d.time_ns > after), None)


def _until_from_now(snapshot: Snapshot, deployed: Deployed, now: int) -> int | None:
    """When a recorded deployment will replace the live deployment; None if none will."""
    overtaken = next(_immediate(snapshot, deployed.target), None) is not None
    for later in upwards(snapshot, deployed.target, max(now, deployed.time_ns)):
        counts = later.dated or not overtaken
        if counts and not later.retracted and later.time_ns > now and later.place > deployed.place:
            return later.time_ns
    return None


# -- which deployment --------------------------------------------------------------------


def live_at(store: Store, time_ns: int | None = None, target: str | None = None) -> Deployed:
    """The deployment that is live on a target at a moment (default: now).

    ``target`` may be None if there is only one target. Raises the errors of ``live``.
    """
    snapshot = store.fresh()
    name = _only_target(snapshot) if target is None else check_target(snapshot, target)
    note_gaps(snapshot, name, None)
    now = nearest(store.clock.now_ns())
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
    """The deployment that is live now, or at ``time_ns``. None if no deployment is live.

    With ``against``, the result is the deployment that is live at a remote with these differences.
    """
    if time_ns is None:
        candidates = succession(snapshot, target, now_ns, against.counting)
    else:
        every = on_target(snapshot, target, until=time_ns)
        candidates = (d for d in every if not d.retracted or d.id in against.counting)
    return next((d for d in candidates if d.id not in against.without), None)


def replaced(
    snapshot: Snapshot,
    target: str,
    now_ns: int,
    time_ns: int | None = None,
    *,
    against: Against = IN_STEP,
) -> StatementId | None:
    """The id of the deployment that a new deployment or retraction on a target replaces.

    ``time_ns``: the time of the new deployment. Without the journal's lock, the result may become
    wrong.
    """
    at = None if time_ns == now_ns else time_ns
    live = live_among(snapshot, target, now_ns, at, against=against)
    return None if live is None else live.id


class Standing:
    """Finds the live deployment of a target while deployments are added, with a cache.

    ``_rows``: the cache. It has all deployments from its first deployment until the time
    ``_until``, sorted by ``place``, without deployments that do not count. The newest immediate
    deployment is never after the last row, so the last row is live.
    """

    def __init__(self, snapshot: Snapshot, target: str, against: Against = IN_STEP) -> None:
        self._snapshot, self._target = snapshot, target
        every = newest_first(snapshot, target)
        self._newest = next((d for d in every if d.id not in against.without), None)
        self._rows, self._until = list[Deployed](), 0

    def then(self, now_ns: int, time_ns: int | None, against: Against = IN_STEP) -> Deployed | None:
        """The deployment that is replaced by a deployment or retraction at ``now_ns``.

        ``time_ns``: the time of the new deployment, or None. ``against``: the present differences
        to the remote. It must include all changes that were passed to ``add`` and ``drop``.
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

    def add(self, deployed: Deployed) -> None:
        """Adds a new deployment."""
        is_newest = self._newest is None or deployed.order > self._newest.order
        self._newest = deployed if is_newest else self._newest
        above = self._rows[0 if deployed.dated else -1].place if self._rows else deployed.place
        if (
            above < deployed.place
            and deployed.time_ns < self._until
            and (deployed.dated or is_newest)
        ):
            insort(self._rows, deployed, key=attrgetter("place"))
        elif not deployed.dated:
            self._rows.clear()

    def drop(self, deployed: Deployed) -> None:
        """Removes a deployment that was retracted."""
        at = bisect_left(self._rows, deployed.place, key=attrgetter("place"))
        is_among = self._rows[at : at + 1] and self._rows[at].id == deployed.id
        if is_among and (at or deployed.dated):
            del self._rows[at]
        elif not deployed.dated:
            self._rows.clear()


class Standings:
    """One ``Standing`` for each target, updated when the journal grows."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._next = snapshot, snapshot.position.sequence
        self._on = dict[str, Standing]()
        self._dropped = set[bytes]()

    def on(self, target: str) -> Standing:
        """The ``Standing`` of a target. It is valid only under the journal's lock."""
        for recorded in self._snapshot.from_sequence(self._next):
            self._next, number = recorded.sequence + 1, recorded.sequence
            for deployment in recorded.entry.deployments:
                if (name := deployment.target) in self._on:
                    self._on[name].add(recorded_as(self._snapshot, name, number))
            for retraction in recorded.entry.retractions:
                if retraction.target in self._on:
                    self._drop(retraction)
        if target not in self._on:
            self._on[target] = Standing(self._snapshot, target)
        return self._on[target]

    def _drop(self, retraction: Retraction) -> None:
        target, subject = retraction.target, retraction.subject
        pair = deployment_with(self._snapshot, StatementId(subject))
        if pair is not None and subject not in self._dropped:
            self._dropped.add(subject)
            self._on[target].drop(recorded_as(self._snapshot, target, pair[0].sequence))


def same_until(snapshot: Snapshot, target: str, now_ns: int) -> range:
    """The time from ``now_ns`` until a recorded deployment goes live.

    In this time, the live version changes only if an operation is recorded.
    """
    due = snapshot.next_deployment(target, now_ns)
    return range(now_ns, _NEVER if due is None else due)


def live_now(store: Store, *, reports: bool = False) -> dict[CommitId, list[str]]:
    """Maps live versions to their targets. ``reports``: include the versions that nodes serve."""
    snapshot, now_ns = store.fresh(), nearest(store.clock.now_ns())
    by_version: dict[CommitId, list[str]] = {}
    for target in [*snapshot.targets(), *(snapshot.targets(reports=True) if reports else ())]:
        if (live := live_among(snapshot, target, now_ns)) is not None:
            by_version.setdefault(live.commit, []).append(target)
    return by_version


def succession(
    snapshot: Snapshot, target: str, now_ns: int, counting: Collection[StatementId] = ()
) -> Iterator[Deployed]:
    """Yields the live deployment, then the deployment that would be live instead, and so on.

    Each deployment would be live if all deployments before it in the result were retracted.
    ``counting``: ids of retracted deployments that count nevertheless. For reports of a node (a
    serving machine), the report with the latest time is live, even if this time is in the future.
    """

    def counts(deployed: Deployed) -> bool:
        return not deployed.retracted or deployed.id in counting

    by_time = filter(
        counts, on_target(snapshot, target, until=None if is_report(target) else now_ns)
    )
    yielded: set[StatementId] = set()
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
        yielded.add(recorded.id)
    rest = chain(passed, () if later is None else (later,), by_time)
    yield from (deployed for deployed in rest if deployed.id not in yielded)


def _immediate(
    snapshot: Snapshot, target: str, counting: Collection[StatementId] = ()
) -> Iterator[Deployed]:
    """Yields the immediate deployments among the ``RECENT`` newest deployments, newest first."""

    def read(snapshot: Snapshot, recorded: Recorded, new: Deployment) -> Deployed | None:
        return _read(snapshot, recorded, new) if new.time_ns == new.recorded_ns else None

    low = keys.ordered(Deployment.code, target)
    for deployed in islice(_in_range(snapshot, target, low, keys.after(low), read=read), RECENT):
        if deployed is not None and (not deployed.retracted or deployed.id in counting):
            yield deployed


def _only_target(snapshot: Snapshot) -> str:
    every = snapshot.targets()
    names = [t for t in every if any(not d.retracted for d in newest_first(snapshot, t))] or every
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
    first = next((d for d in upwards(snapshot, target, -_NEVER >> 1) if not d.retracted), None)
    problem = f"nothing is live on {target}: every deployment was retracted"
    if first is not None:
        problem = (
            f"nothing was live on {target} at {format_time(time_ns, precise=False)}: its first "
            f"deployment is {first.commit.short} at {format_time(whole_second(first.time_ns))}"
        )
    return NoDeployment(problem, hint=f"'mvc deploy --list {target}' lists them")
