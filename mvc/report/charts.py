"""The charts of an overview: metrics, bytes, deployments, each version in its place on the axis."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from mvc.api import Commit, Live, VersionStats
from mvc.ids import CommitId
from mvc.names import printable
from mvc.report.axis import Axis, By, Point
from mvc.report.figure import NAMED, Bars, BestVersion, Curve, Lane, Lanes, Legend, Line
from mvc.report.overview import Overview
from mvc.text import number, size

KINDS = {"full": "full records", "delta": "deltas", "metadata": "manifests, headers"}
_LESS_IS_BETTER = {
    "cer", "err", "error", "errors", "fid", "loss", "losses", "mae", "mse", "nll", "perplexity",
    "ppl", "rmse", "wer",
}  # fmt: skip
_PLACES, _FEW, _CROWDED = 400, 5, 4  # so many versions at each taken place are a crowd


class Charts(Struct, frozen=True, dict=True):
    """Makes the charts of ``found``; ``links``: versions that have an anchor on the page."""

    found: Overview
    links: Collection[CommitId] = ()

    @cached_property
    def by(self) -> By:
        """What the axis shows: if that was not chosen, time unless versions crowd on it."""
        return self.found.view.by or ("version" if self._crowded() else "time")

    @cached_property
    def axis(self) -> Axis:
        """From the first to the last version or deployment of the time that is looked at."""
        places = [self._place(commit) for commit in self.found.versions]
        return Axis.of([*places, *map(self._moment, self._starts())], self.by)

    @property
    def note(self) -> str | None:
        """Which axis was taken, where that was not chosen and is not time."""
        if self.by == "time" or self.found.view.by is not None:
            return None
        return "versions lie close together in time: they are placed by number (--by time: by time)"

    @cached_property
    def legend(self) -> list[Legend]:
        """The names of the lines, if there are several."""
        colours = self._colours
        names: list[str] = []
        for name, colour in colours.items():
            if colour == len(names) < NAMED:
                names.append(name)
        rest = len(colours) - len(names)
        if rest:
            names.append(f"{rest:,} others")
        return [Legend(names)] if len(names) > 1 else []

    def line(
        self,
        title: str,
        value: Callable[[Commit], float | None],
        unit: Callable[[float], str] = number,
    ) -> Line:
        """A value of all versions that have it, a curve for every branch and run."""
        return Line(title, self._curves(value), unit, links=self.links)

    def metric(self, name: str) -> Line:
        """A metric of all versions that have it, and which has the best."""
        curves = self._curves(lambda commit: self.found.history.metrics[commit.id].get(name))
        return Line(printable(name), curves, best=self._best(name), links=self.links)

    def count(self, title: str) -> Line:
        points = [(self._place(c), float(i)) for i, c in enumerate(self.found.versions, 1)]
        return Line(title, [Curve("", points)], whole)

    def stored(self, stats: Mapping[CommitId, VersionStats]) -> Bars:
        """The bytes that came with the versions, by kind."""
        rows = [(self._place(c), stats[c.id].bytes) for c in self.found.versions if c.id in stats]
        kinds = {label: [(x, n[kind]) for x, n in rows] for kind, label in KINDS.items()}
        return Bars("stored bytes", kinds, lambda value: size(round(value)))

    def live(self, spans: Mapping[str, Sequence[Live]]) -> Lanes:
        lanes = {
            target: [
                Lane(
                    self._moment(s.since_ns),
                    self._moment(self.found.end(s)),
                    commit=s.commit,
                    since_ns=s.since_ns,
                )
                for s in each
            ]
            for target, each in spans.items()
        }
        return Lanes("live on", lanes, self.links)

    def _crowded(self) -> bool:
        """Whether far more versions than places of the time axis are taken."""
        times = [commit.time_ns for commit in self.found.versions]
        axis = Axis.of([*times, *self._starts()])
        taken = len(axis.bins([(time, 0.0) for time in times], _PLACES))
        return len(times) >= _FEW and taken * _CROWDED < min(len(times), _PLACES)

    def _starts(self) -> list[int]:
        since = self.found.view.since
        starts = [span.since_ns for spans in self.found.history.spans.values() for span in spans]
        return [start for start in starts if since is None or start >= since]

    def _place(self, commit: Commit) -> int:
        return commit.time_ns if self.by == "time" else self._numbers[commit.id]

    def _moment(self, time_ns: int) -> int:
        """The place of a moment: with version numbers, of the last version made until then; now is
        after the last one.
        """
        if self.by == "time":
            return time_ns
        if time_ns == self.found.history.now_ns:
            return 2 * len(self._times)  # beyond the axis, which cuts it off
        return max(1, bisect_right(self._times, time_ns))

    @cached_property
    def _numbers(self) -> dict[CommitId, int]:
        return {id_: i for i, id_ in enumerate(self.found.history.versions, 1)}

    @cached_property
    def _times(self) -> list[int]:
        return [commit.time_ns for commit in self.found.history.versions.values()]

    @cached_property
    def _colours(self) -> dict[str, int]:
        """By line its colour: the ones with the newest versions have one of their own."""
        names = [self.found.lines[c.id] for c in reversed(self.found.versions)]
        head = self.found.history.head.commit
        first = None if head is None else self.found.lines.get(head)
        order = dict.fromkeys([first, *names] if first in names else names)
        return {name: min(i, NAMED) for i, name in enumerate(order) if name is not None}

    def _curves(self, value: Callable[[Commit], float | None]) -> list[Curve]:
        points = dict[str, list[Point]]()
        for commit in self.found.versions:
            found = value(commit)
            if found is None:
                continue
            name = self.found.lines[commit.id]
            if name not in points:
                points[name] = self._fork(commit, value)
            points[name].append((self._place(commit), found))
        colours = self._colours
        curves = [Curve(printable(name), each, colours[name]) for name, each in points.items()]
        return sorted(curves, key=lambda curve: curve.colour)

    def _fork(self, commit: Commit, value: Callable[[Commit], float | None]) -> list[Point]:
        """Where a branch leaves another one: the value of the version that it begins at."""
        parent = self.found.history.versions.get(commit.parents[0]) if commit.parents else None
        if parent is None or commit.run or parent.run or not self.found.view.shows(parent):
            return []
        before = value(parent)
        return [] if before is None else [(self._place(parent), before)]

    def _best(self, name: str) -> BestVersion | None:
        metrics = self.found.history.metrics
        values = {c.id: metrics[c.id].get(name, math.nan) for c in self.found.versions}
        having = [c for c in self.found.versions if math.isfinite(values[c.id])]
        if len(having) < 2:
            return None
        lowest = less_is_better(name)
        choose = min if lowest else max
        best = choose(reversed(having), key=lambda c: values[c.id])  # of equals the newest
        kind = "lowest" if lowest else "highest"
        return BestVersion(kind, self._place(best), values[best.id], best.id)


def less_is_better(name: str) -> bool:
    """Whether the lowest value of a metric is the best: by its name, as ``val_loss``."""
    words = re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    return not _LESS_IS_BETTER.isdisjoint(words)


def metrics_of(found: Overview) -> list[str]:
    """The names of metrics, those that most versions have first."""
    counts = Counter(name for commit in found.versions for name in found.history.metrics[commit.id])
    return sorted(counts, key=lambda name: (-counts[name], name))


def whole(value: float) -> str:
    """A whole number."""
    return f"{round(value):,}"
