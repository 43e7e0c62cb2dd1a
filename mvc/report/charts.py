"""The charts of the page that ``mvc report`` writes: metrics, stored bytes and deployments.

All charts have the same x axis: times, or version numbers.
"""

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
    "brier", "cer", "ece", "eer", "entropy", "err", "error", "errors", "fid", "kl", "logloss",
    "loss", "losses", "mae", "mape", "mse", "msle", "nll", "perplexity", "ppl", "rmse", "rmsle",
    "smape", "wer",
}  # fmt: skip
# The time axis has _PLACES positions. It is too crowded if at least _FEW versions are shown, and if
# there are more than _CROWDED versions (at most _PLACES are counted) for each used position.
_PLACES, _FEW, _CROWDED = 400, 5, 4


class Charts(Struct, frozen=True, dict=True):
    """Draws the charts of ``shown``. ``links``: versions that have an anchor on the page."""

    shown: Overview
    links: Collection[CommitId] = ()

    @cached_property
    def by(self) -> By:
        """The x axis that the user chose. By default, the axis is time, or version numbers if too
        many versions would share a position in time.
        """
        return self.shown.view.by or ("version" if self._crowded() else "time")

    @cached_property
    def axis(self) -> Axis:
        """The x axis, from the first to the last version or deployment of the period."""
        return Axis.of(
            [*map(self._place, self.shown.versions), *map(self._moment, self._starts())], self.by
        )

    @property
    def note(self) -> str | None:
        """Says that the axis shows version numbers, unless the user chose this axis."""
        if self.by == "time" or self.shown.view.by is not None:
            return None
        return (
            "many versions are close in time, so the axis shows version numbers (or use --by time)"
        )

    @cached_property
    def legend(self) -> list[Legend]:
        """The names of the curves (branches and training runs), if there are several curves."""
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
        """A line chart of ``value``, over the versions for which ``value`` is not None.

        Each branch and each training run has a curve.
        """
        return Line(title, self._curves(value), unit, links=self.links)

    def metric(self, name: str) -> Line:
        """A line chart of a metric. The version with the best value is marked."""
        curves = self._curves(lambda commit: self.shown.history.metrics[commit.id].get(name))
        return Line(printable(name), curves, best=self._best(name), links=self.links)

    def count(self, title: str) -> Line:
        points = [(self._place(c), float(i)) for i, c in enumerate(self.shown.versions, 1)]
        return Line(title, [Curve("", points)], whole_number)

    def stored(self, stats: Mapping[CommitId, VersionStats]) -> Bars:
        """A bar chart of the bytes that each version added, by kind (``KINDS``)."""
        rows = [(self._place(c), stats[c.id].bytes) for c in self.shown.versions if c.id in stats]
        kinds = {label: [(x, n[kind]) for x, n in rows] for kind, label in KINDS.items()}
        return Bars("stored bytes", kinds, lambda value: size(round(value)))

    def live(self, spans: Mapping[str, Sequence[Live]]) -> Lanes:
        lanes = {
            target: [
                Lane(
                    self._moment(s.since_ns),
                    self._moment(self.shown.end(s)),
                    commit=s.commit,
                    since_ns=s.since_ns,
                    rollback=s.deployment.returns_to is not None,
                )
                for s in target_spans
            ]
            for target, target_spans in spans.items()
        }
        return Lanes("live on", lanes, self.links)

    def _crowded(self) -> bool:
        """Whether there are many more versions than used positions on the time axis."""
        times = [commit.time_ns for commit in self.shown.versions]
        axis = Axis.of([*times, *self._starts()])
        used = len(axis.bins([(time, 0.0) for time in times], _PLACES))
        return len(times) >= _FEW and used * _CROWDED < min(len(times), _PLACES)

    def _starts(self) -> list[int]:
        since = self.shown.view.since
        starts = [span.since_ns for spans in self.shown.history.spans.values() for span in spans]
        return [start for start in starts if since is None or start >= since]

    def _place(self, commit: Commit) -> int:
        return commit.time_ns if self.by == "time" else self._numbers[commit.id]

    def _moment(self, time_ns: int) -> int:
        """The position of a time on the axis.

        On an axis of version numbers, this is the number of the newest version at this time. The
        present has a position after all versions.
        """
        if self.by == "time":
            return time_ns
        if time_ns == self.shown.history.now_ns:
            return 2 * len(self._times)  # beyond the end of the axis
        return max(1, bisect_right(self._times, time_ns))

    @cached_property
    def _numbers(self) -> dict[CommitId, int]:
        return {id_: i for i, id_ in enumerate(self.shown.history.versions, 1)}

    @cached_property
    def _times(self) -> list[int]:
        return [commit.time_ns for commit in self.shown.history.versions.values()]

    @cached_property
    def _colours(self) -> dict[str, int]:
        """Maps the name of each curve to its colour. The curves with the newest versions have
        different colours. All older curves share one colour.
        """
        names = [self.shown.lines[c.id] for c in reversed(self.shown.versions)]
        head = self.shown.history.head.commit
        first = None if head is None else self.shown.lines.get(head)
        order = dict.fromkeys([first, *names] if first in names else names)
        return {name: min(i, NAMED) for i, name in enumerate(order) if name is not None}

    def _curves(self, value: Callable[[Commit], float | None]) -> list[Curve]:
        points = dict[str, list[Point]]()
        for commit in self.shown.versions:
            number_ = value(commit)
            if number_ is None:
                continue
            name = self.shown.lines[commit.id]
            if name not in points:
                points[name] = self._fork(commit, value)
            points[name].append((self._place(commit), number_))
        colours = self._colours
        curves = [Curve(printable(name), row, colours[name]) for name, row in points.items()]
        return sorted(curves, key=lambda curve: curve.colour)

    def _fork(self, commit: Commit, value: Callable[[Commit], float | None]) -> list[Point]:
        """The first point of a branch's curve: the value of the version from which the branch
        forks. Empty if there is no such value.
        """
        parent = self.shown.history.versions.get(commit.parents[0]) if commit.parents else None
        if parent is None or commit.run or parent.run or not self.shown.view.shows(parent):
            return []
        before = value(parent)
        return [] if before is None else [(self._place(parent), before)]

    def _best(self, name: str) -> BestVersion | None:
        metrics = self.shown.history.metrics
        values = {c.id: metrics[c.id].get(name, math.nan) for c in self.shown.versions}
        having = [c for c in self.shown.versions if math.isfinite(values[c.id])]
        if len({values[c.id] for c in having}) < 2:
            return None
        lowest = less_is_better(name)
        choose = min if lowest else max
        best = choose(reversed(having), key=lambda c: values[c.id])  # of equal values, the newest
        return BestVersion(
            "lowest" if lowest else "highest", self._place(best), values[best.id], best.id
        )


def less_is_better(name: str) -> bool:
    """Whether lower values of a metric are better, judged by its name (``val_loss``)."""
    words = re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    return not _LESS_IS_BETTER.isdisjoint(words)


def metrics_of(shown: Overview) -> list[str]:
    """The names of metrics, the most frequent first."""
    counts = Counter(name for commit in shown.versions for name in shown.history.metrics[commit.id])
    return sorted(counts, key=lambda name: (-counts[name], name))


def whole_number(value: float) -> str:
    """Formats a value of an axis of whole numbers."""
    return f"{round(value):,}"
