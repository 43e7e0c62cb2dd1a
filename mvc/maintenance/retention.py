"""Retention rules: they select versions to forget, and change nothing.

Rules consider versions that a ref, HEAD or deployment reaches and that still have their state. They
ignore versions that an undo left unreachable, because ``gc`` deletes such versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from msgspec import Struct

from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.maintenance.history import read_versions
from mvc.model.commit import Commit
from mvc.names import printable
from mvc.repo.lookup import commits, refs
from mvc.repo.queries import queries
from mvc.repo.statements.annotations import Annotations
from mvc.repo.statements.live import check_target, live_now, on_target
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.times import local_zone_minutes

_SECOND, _HOUR, _DAY = 1_000_000_000, 3600, 86_400


Metrics: TypeAlias = Callable[[Commit], Mapping[str, float]]


class Best(Struct, frozen=True):
    """Keep the ``count`` best versions by a metric. ``lowest``: lower values are better."""

    metric: str
    count: int
    lowest: bool = False

    @classmethod
    def parse(cls, text: str) -> Best:
        """Parses ``acc:3``, or ``-loss:3`` if lower is better. Raises WrongUsage."""
        name, _, count = text.rpartition(":")
        lowest = name.startswith("-")
        name = name.removeprefix("-")
        if not name or not (count.isascii() and count.isdigit()) or not 0 < int(count) < 10**9:
            raise WrongUsage(
                f"not a metric with a count: {printable(text[:100])!r}",
                hint="write METRIC:N, or -METRIC:N if lower is better",
            )
        return cls(name, int(count), lowest)

    @property
    def text(self) -> str:
        return f"{'-' if self.lowest else ''}{self.metric}:{self.count}"

    def measured(self, versions: Iterable[Commit], metrics: Metrics) -> list[Commit]:
        """The ``versions`` that have the metric, in the same order."""
        return [c for c in versions if not math.isnan(metrics(c).get(self.metric, math.nan))]


class Retention(Struct, frozen=True):
    """Retention rules. Each rule keeps some versions. ``select`` selects all other versions.

    ``last``: keep so many of the newest versions. ``hourly``, ``daily``: keep the newest version of
    each of so many hours or days. ``unused``: keep every version that was live on this target.
    ``unqueried``: keep every version that a recorded query asked for. Raises WrongUsage if a number
    is below 1.
    """

    last: int | None = None
    hourly: int | None = None
    daily: int | None = None
    best: Sequence[Best] = ()
    unused: str | None = None
    unqueried: bool = False

    def __post_init__(self) -> None:
        if any(n is not None and n < 1 for n in (self.last, self.hourly, self.daily)):
            raise WrongUsage("a rule keeps at least one version")

    def __bool__(self) -> bool:
        return self.unused is not None or self.unqueried or self.keeps

    @property
    def keeps(self) -> bool:
        """Whether ``last``, ``hourly``, ``daily`` or ``best`` is set."""
        return any(n is not None for n in (self.last, self.hourly, self.daily)) or bool(self.best)

    @property
    def text(self) -> str:
        """The rules as options of the command."""
        rules = (
            ("--keep-last", self.last),
            ("--keep-hourly", self.hourly),
            ("--keep-daily", self.daily),
            *(("--keep-best", best.text) for best in self.best),
            ("--unused", self.unused),
        )
        options = [f"{name} {value}" for name, value in rules if value is not None]
        return " ".join([*options, *(["--unqueried"] if self.unqueried else [])])


def select(store: Store, rules: Retention) -> list[Commit]:
    """The versions that no rule keeps, in the order of publication.

    Never selects versions that a ref or HEAD names, or that are live on a target now or later.
    Raises UnknownTarget; UnknownMetric if no version has a metric of a ``best`` rule; WrongUsage
    for ``unqueried`` if no queries are recorded.
    """
    versions, metrics = stored_versions(store), Annotations(store.fresh()).metrics
    _check_metrics(versions, rules, metrics)
    stay = protected(store, rules)
    if rules.unqueried:
        stay |= _older(store.snapshot, recorded_since(store))
    if rules.keeps:
        stay |= retained(versions, rules, metrics)
    return [commit for commit in versions if commit.id not in stay]


class Short(Struct, frozen=True):
    """A ``best`` rule that keeps too few versions: only ``have`` versions have the metric.

    ``without``: versions selected for forgetting that do not have the metric.
    """

    best: Best
    have: int
    without: tuple[CommitId, ...]


def too_few(store: Store, rules: Retention, selected: Iterable[Commit]) -> tuple[Short, ...]:
    """The ``best`` rules that keep fewer versions than their count.

    Leaves out a rule if all ``selected`` versions have its metric.
    """
    if not rules.best:
        return ()
    versions, selected = stored_versions(store), list(selected)
    short, metrics = [], Annotations(store.fresh()).metrics
    for best in rules.best:
        having = {commit.id for commit in best.measured(versions, metrics)}
        without = tuple(commit.id for commit in selected if commit.id not in having)
        if len(having) < best.count and without:
            short.append(Short(best, len(having), without))
    return tuple(short)


def _check_metrics(versions: Sequence[Commit], rules: Retention, metrics: Metrics) -> None:
    for best in rules.best:
        if versions and not best.measured(versions, metrics):
            raise commits.unknown_metric(best.metric, map(metrics, versions))


def retained(versions: Sequence[Commit], rules: Retention, metrics: Metrics) -> set[CommitId]:
    """The ``versions`` (in the order of publication) that the rules keep."""
    positions = {commit.id: i for i, commit in enumerate(versions)}
    newest_first = sorted(versions, key=lambda c: (c.time_ns, positions[c.id]), reverse=True)
    stay = {
        *(commit.id for commit in newest_first[: rules.last or 0]),
        *_last_of_each(newest_first, _HOUR, rules.hourly or 0),
        *_last_of_each(newest_first, _DAY, rules.daily or 0),
    }
    for best in rules.best:
        measured = best.measured(newest_first, metrics)
        # The sort is stable: of equal values the newest version comes first.
        measured.sort(key=lambda c: metrics(c)[best.metric], reverse=not best.lowest)
        stay |= {commit.id for commit in measured[: best.count]}
    return stay


def _last_of_each(newest_first: Iterable[Commit], seconds: int, count: int) -> set[CommitId]:
    """The newest version of each of the ``count`` newest hours or days (local time)."""
    newest: dict[tuple[int, int], CommitId] = {}
    for commit in newest_first:
        minutes = local_zone_minutes(commit.time_ns)
        span = (commit.time_ns // _SECOND + 60 * minutes) // seconds
        # An hour that a clock change repeats counts as two hours.
        newest.setdefault((span, minutes if seconds == _HOUR else 0), commit.id)
    return set(islice(newest.values(), count))


def stored_versions(store: Store) -> list[Commit]:
    """Reachable versions that still have their state, in the order of publication."""
    history, versions = read_versions(store.fresh())
    stored = history.stored()
    return [commit for id_, commit in versions.items() if id_ in stored]


def recorded_since(store: Store) -> int:
    """The time since which queries are recorded, in ns since 1970.

    Raises WrongUsage if queries are not recorded.
    """
    since = queries(store).since_ns
    if since is None:
        raise WrongUsage(
            "no queries are recorded here, so any version may have been asked for",
            hint="recording begins with the first checkout; name versions, or use --unused TARGET",
        )
    return since


def _older(snapshot: Snapshot, since_ns: int) -> set[CommitId]:
    """The versions published before queries were recorded. A query may have used these versions."""
    entries = (recorded.entry for recorded in snapshot.entries())
    return {c.id for entry in entries if entry.time_ns < since_ns for c in entry.commits}


def protected(store: Store, rules: Retention) -> set[CommitId]:
    """Versions that rules never forget.

    These are versions that refs or HEAD name, that are live on a target now or later, or that a
    node (a machine that serves models) uses, and versions that ``unused`` and ``unqueried`` keep.
    Retracted deployments do not count. Raises UnknownTarget.
    """
    stay = {ref.commit for ref in (*refs.branches(store.fresh()), *refs.tags(store.fresh()))}
    head = refs.head(store.fresh()).commit
    if head is not None:
        stay.add(head)
    now = store.now_ns()
    for target in store.fresh().targets():
        for deployed in on_target(store.snapshot, target):
            if deployed.time_ns <= now:
                break
            if not deployed.retracted:
                stay.add(deployed.commit)
    if rules.unused is not None:
        check_target(store.fresh(), rules.unused)
        deployments = on_target(store.snapshot, rules.unused)
        stay |= {deployed.commit for deployed in deployments if not deployed.retracted}
    if rules.unqueried:
        stay |= queries(store).asked.keys()
    return stay | live_now(store, reports=True).keys()
