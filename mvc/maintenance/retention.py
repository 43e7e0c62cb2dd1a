"""Retention rules: which versions they select for forgetting. Nothing is changed here.

Rules consider versions that are reachable from a ref, HEAD or a deployment and still have
their state. Versions that undo left behind are not among them: ``gc`` collects those.
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
"""The metrics of a version."""


class Best(Struct, frozen=True):
    """Keep the ``count`` best versions by a metric; ``lowest``: lower is better."""

    metric: str
    count: int
    lowest: bool = False

    @classmethod
    def parse(cls, text: str) -> Best:
        """From ``acc:3``, or ``-loss:3`` where lower is better. WrongUsage otherwise."""
        name, _, count = text.rpartition(":")
        lowest = name.startswith("-")
        name = name.removeprefix("-")
        if not name or not (count.isascii() and count.isdigit()) or not 0 < int(count) < 10**9:
            raise WrongUsage(
                f"this names no metric with a count: {printable(text[:100])!r}",
                hint="write METRIC:N, or -METRIC:N where lower is better",
            )
        return cls(name, int(count), lowest)

    @property
    def text(self) -> str:
        return f"{'-' if self.lowest else ''}{self.metric}:{self.count}"

    def measured(self, versions: Iterable[Commit], metrics: Metrics) -> list[Commit]:
        """The ``versions`` that have the metric, in the same order."""
        return [c for c in versions if not math.isnan(metrics(c).get(self.metric, math.nan))]


class Retention(Struct, frozen=True):
    """Rules. A version stays if any of ``last``, ``hourly``, ``daily``, ``best`` keeps it.

    ``unused``: a target; only versions that no deployment there served are forgotten.
    ``unqueried``: only versions that nobody asked for are, as far as that is recorded. Raises
    WrongUsage if a rule keeps less than one version.
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
        """Whether there is a rule other than ``unused`` and ``unqueried``."""
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
        said = [f"{name} {value}" for name, value in rules if value is not None]
        return " ".join([*said, *(["--unqueried"] if self.unqueried else [])])


def select(store: Store, rules: Retention) -> list[Commit]:
    """The versions that ``rules`` select for forgetting, in the order of publication.

    Versions named by a ref or HEAD, or live on a target now or later, are never selected.
    Raises UnknownTarget; UnknownMetric if no version has a metric of a ``best`` rule; WrongUsage
    for ``unqueried`` where no queries are recorded.
    """
    versions, metrics = stored_versions(store), Annotations(store.fresh()).metrics
    _check_metrics(versions, rules, metrics)
    stay = protected(store, rules)
    if rules.unqueried:
        stay |= _older(store.snapshot, recorded_since(store))
    if rules.keeps:
        stay |= kept(versions, rules, metrics)
    return [commit for commit in versions if commit.id not in stay]


class Short(Struct, frozen=True):
    """A ``best`` rule whose metric only ``have`` versions have, fewer than it keeps.

    ``without``: selected versions without the metric.
    """

    best: Best
    have: int
    without: tuple[CommitId, ...]


def too_few(store: Store, rules: Retention, going: Iterable[Commit]) -> tuple[Short, ...]:
    """The ``best`` rules that keep fewer than they say, if ``going`` has others."""
    if not rules.best:
        return ()
    versions, going = stored_versions(store), list(going)
    found, metrics = [], Annotations(store.fresh()).metrics
    for best in rules.best:
        having = {commit.id for commit in best.measured(versions, metrics)}
        without = tuple(commit.id for commit in going if commit.id not in having)
        if len(having) < best.count and without:
            found.append(Short(best, len(having), without))
    return tuple(found)


def _check_metrics(versions: Sequence[Commit], rules: Retention, metrics: Metrics) -> None:
    for best in rules.best:
        if versions and not best.measured(versions, metrics):
            raise commits.unknown_metric(best.metric, map(metrics, versions))


def kept(versions: Sequence[Commit], rules: Retention, metrics: Metrics) -> set[CommitId]:
    """The ``versions`` (in the order of publication) that the rules keep."""
    places = {commit.id: i for i, commit in enumerate(versions)}
    newest_first = sorted(versions, key=lambda c: (c.time_ns, places[c.id]), reverse=True)
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
    """The newest version of each of the ``count`` newest non-empty spans of local time."""
    newest: dict[tuple[int, int], CommitId] = {}
    for commit in newest_first:
        minutes = local_zone_minutes(commit.time_ns)
        span = (commit.time_ns // _SECOND + 60 * minutes) // seconds
        # An hour that a clock change repeats counts as two.
        newest.setdefault((span, minutes if seconds == _HOUR else 0), commit.id)
    return set(islice(newest.values(), count))


def stored_versions(store: Store) -> list[Commit]:
    """Reachable versions that still have their state, in the order of publication."""
    history, versions = read_versions(store.fresh())
    stored = history.stored()
    return [commit for id_, commit in versions.items() if id_ in stored]


def recorded_since(store: Store) -> int:
    """From when on queries are recorded, in ns since 1970. Raises WrongUsage if none are."""
    since = queries(store).since_ns
    if since is None:
        raise WrongUsage(
            "no query of a version is recorded here, so every version may have been asked for",
            hint="recording begins with the first checkout; name versions, or use --unused TARGET",
        )
    return since


def _older(snapshot: Snapshot, since_ns: int) -> set[CommitId]:
    """The versions published before queries were recorded: nobody knows who asked for them."""
    entries = (recorded.entry for recorded in snapshot.entries())
    return {c.id for entry in entries if entry.time_ns < since_ns for c in entry.commits}


def protected(store: Store, rules: Retention) -> set[CommitId]:
    """Versions named by refs or HEAD, live on any target now or later, or served by a node now.

    With ``unused`` also those of all deployments on that target that are not retracted, with
    ``unqueried`` those that were asked for. Raises UnknownTarget.
    """
    stay = {ref.commit for ref in (*refs.branches(store.fresh()), *refs.tags(store.fresh()))}
    at = refs.head(store.fresh()).commit
    if at is not None:
        stay.add(at)
    now = store.now_ns()
    for target in store.fresh().targets():
        for deployed in on_target(store.snapshot, target):
            if deployed.time_ns <= now:
                break
            if not deployed.retracted:
                stay.add(deployed.commit)
    if rules.unused is not None:
        check_target(store.fresh(), rules.unused)
        found = on_target(store.snapshot, rules.unused)
        stay |= {deployed.commit for deployed in found if not deployed.retracted}
    if rules.unqueried:
        stay |= queries(store).asked.keys()
    return stay | live_now(store, reports=True).keys()
