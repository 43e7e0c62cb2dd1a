"""Draws the charts of ``mvc report``, below each other and with a common axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TypeAlias

from msgspec import Struct

from mvc.ids import CommitId
from mvc.names import printable
from mvc.report.axis import Axis, Point
from mvc.text import number
from mvc.times import format_time, whole_second

_WIDTH, _LEFT, _RIGHT = 960, 170, 14  # width of a drawing and of its margins
_PLOT = _WIDTH - _LEFT - _RIGHT
_PANEL, _LANE, _GAP = 84, 20, 16  # heights
_COLUMNS, _BARS = 400, 120  # parts of the axis in line charts and bar charts
_LETTER = 6.6  # width of a letter
_NOISE = 0.01  # the least height of a scale, as a share of its greatest absolute value
NAMED = 7
"""How many lines have their own colour and name. All other lines share the last colour."""

STYLE = """
:root{--bg:#fff;--ink:#1b1f24;--dim:#57606a;--rule:#d0d7de;--c0:#0969da;--c1:#bc4c00;--c2:#6e7781;
--s0:#0969da;--s1:#54aeff;--l1:#bc4c00;--l2:#1a7f37;--l3:#8250df;--l4:#bf3989;--l5:#9a6700;--l6:#1b7c83}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--ink:#e6edf3;--dim:#9198a1;--rule:#3d444d;
--c0:#58a6ff;--c1:#f0883e;--c2:#9198a1;--s0:#1f6feb;--s1:#79c0ff;--l1:#f0883e;--l2:#3fb950;
--l3:#bc8cff;--l4:#ff7bc4;--l5:#e3b341;--l6:#39c5cf}}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .d{fill:var(--dim)}
svg .b{font-weight:600}svg .g{stroke:var(--rule)}svg .e{text-anchor:end}
svg .l{fill:none;stroke:var(--c0);stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
svg .p{stroke-width:5}svg .best{fill:var(--bg);stroke:var(--ink);stroke-width:2}
.k0{fill:var(--c0)}.k1{fill:var(--c1)}.k2{fill:var(--c2)}.s0{fill:var(--s0)}.s1{fill:var(--s1)}
svg .r{stroke:var(--c1);stroke-width:3}
""" + "".join(
    f"svg .l{i}{{stroke:var(--{f'l{i}' if i < NAMED else 'c2'})}}" for i in range(1, NAMED + 1)
)


class Curve(Struct, frozen=True):
    """The values of one branch or run.

    ``colour``: the number of the colour, from 0 to ``NAMED``. All lines without a colour of their
    own have the number ``NAMED``.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0


class BestVersion(Struct, frozen=True):
    """The version with the best value of a metric. ``kind``: ``highest`` or ``lowest``."""

    kind: str
    place: int
    value: float
    commit: CommitId


class Line(Struct, frozen=True):
    """A line chart of a value, with gaps for infinite and missing values.

    ``unit``: formats the value as text. ``links``: versions with an anchor on the page.
    """

    title: str
    curves: Sequence[Curve]
    unit: Callable[[float], str] = number
    best: BestVersion | None = None
    links: Collection[CommitId] = ()

    height = _PANEL

    def range(self) -> tuple[float, float]:
        """The lowest and the highest finite value, or 0 and 0 if there is no finite value."""
        points = (point for curve in self.curves for point in curve.points)
        values = [value for _, value in points if math.isfinite(value)] or [0.0]
        return min(values), max(values)

    def _labels(self) -> list[str]:
        finite = any(math.isfinite(value) for curve in self.curves for _, value in curve.points)
        if not finite:
            return [self.title, "no finite value"]
        low, high = map(self.unit, self.range())
        labels = [self.title, f"highest {high}", f"lowest {low}"]
        if self.best is not None:
            labels.append(f"best {self.best.commit.short}")
        return labels

    def svg(self, axis: Axis, top: int) -> str:
        low, high = self.range()

        def y_of(value: float) -> float:
            return round(top + _PANEL - 6 - (_PANEL - 12) * _part(value, low, high), 1)

        drawn = [_frame(top, self._labels())]
        drawn += [_drawn(curve, axis, y_of) for curve in self.curves]
        if self.best is not None:
            best, x = self.best, _x(axis, self.best.place)
            title = f"best {self.title}: {self.unit(best.value)}, {best.kind}, {best.commit.short}"
            mark = (
                f'<circle class="best" cx="{x}" cy="{y_of(best.value)}" r="5">'
                f"<title>{clipped(title, 300)}</title></circle>"
            )
            drawn.append(_linked(mark, best.commit, self.links))
        return "".join(drawn)


class Bars(Struct, frozen=True):
    """A chart with one bar for each part of the axis. A bar stacks the amounts of all kinds."""

    title: str
    kinds: Mapping[str, Sequence[Point]]
    unit: Callable[[float], str] = number

    height = _PANEL

    def _sums(self, axis: Axis, count: int) -> tuple[list[list[float]], float]:
        """The sums of all kinds for each part of the axis, and the highest total."""
        sums = [[0.0] * len(self.kinds) for _ in range(count)]
        for kind, points in enumerate(self.kinds.values()):
            for place, values in axis.bins(points, count).items():
                sums[place][kind] = sum(values)
        return sums, max(map(sum, sums))

    def svg(self, axis: Axis, top: int) -> str:
        sums, highest = self._sums(axis, _BARS)
        drawn = [_frame(top, (self.title, f"highest bar {self.unit(highest)}"))]
        for kind, name in enumerate(self.kinds):
            y = top + 42 + 14 * kind
            drawn += (
                f'<rect class="k{kind}" x="0" y="{y - 9}" width="10" height="10"/>',
                f'<text x="15" y="{y}">{clipped(name)}</text>',
            )
        width = _PLOT / _BARS
        for place, parts in enumerate(sums):
            bottom = top + _PANEL - 6.0
            for kind, amount in enumerate(parts):
                height = round((_PANEL - 12) * amount / (highest or 1), 1)
                bottom -= height
                if height:
                    drawn.append(
                        f'<rect class="k{kind}" x="{_LEFT + width * place:.1f}" y="{bottom:.1f}" '
                        f'width="{width - 1:.1f}" height="{height}"/>'
                    )
        return "".join(drawn)


class Lane(Struct, frozen=True):
    """A period in which a version was live, as two positions on the axis.

    ``since_ns``: the time of the deployment. ``rollback``: whether the deployment was a rollback.
    """

    start: int
    end: int
    commit: CommitId
    since_ns: int
    rollback: bool = False


class Lanes(Struct, frozen=True):
    """The live versions over time, one row per target.

    ``links``: versions with an anchor on the page.
    """

    title: str
    targets: Mapping[str, Sequence[Lane]]
    links: Collection[CommitId] = ()

    @property
    def height(self) -> int:
        return _LANE * (1 + len(self.targets))

    def svg(self, axis: Axis, top: int) -> str:
        drawn = [f'<text class="b" x="0" y="{top + 12}">{clipped(self.title)}</text>']
        legend = f'{_rollback(_LEFT + 2, top)}<text x="{_LEFT + 10}" y="{top + 12}">rollback</text>'
        drawn += [legend] * any(lane.rollback for row in self.targets.values() for lane in row)
        for row, (target, lanes) in enumerate(self.targets.items(), 1):
            y = top + _LANE * row
            drawn.append(f'<text x="0" y="{y + 12}">{clipped(target)}</text>')
            for i, group in enumerate(_groups(axis, lanes)):
                x, first = _x(axis, group[0].start), group[0]
                since = format_time(whole_second(first.since_ns))
                back = "rolled back to " if first.rollback else ""
                title = f"{back}{first.commit.short} on {target} from {since}"
                if group[1:]:
                    title = f"{len(group):,} deployments on {target}"
                box = (
                    f'<rect class="s{i % 2}" x="{x}" y="{y}" height="{_LANE - 5}" '
                    f'width="{max(1.0, _x(axis, group[-1].end) - x):.1f}">'
                    f"<title>{clipped(title, 300)}</title></rect>"
                )
                drawn.append(box if group[1:] else _linked(box, first.commit, self.links))
            drawn += [
                _rollback(x, y)
                for x in sorted({_x(axis, lane.start) for lane in lanes if lane.rollback})
            ]
        return "".join(drawn)


class Legend(Struct, frozen=True):
    """The names of the lines in all charts, in the order of their colours."""

    names: Sequence[str]

    height = _LANE

    def svg(self, _axis: Axis, top: int) -> str:
        drawn, x = list[str](), float(_LEFT)
        for colour, name in enumerate(self.names):
            drawn += (
                f'<path class="l l{colour}" d="M{x:.0f} {top + 8}h16"/>',
                f'<text x="{x + 22:.0f}" y="{top + 12}">{clipped(name, 16)}</text>',
            )
            x += 36 + _LETTER * min(len(printable(name)), 16)
        return "".join(drawn)


Panel: TypeAlias = Line | Bars | Lanes | Legend
"""A chart. Its method ``svg`` draws the chart below the height ``top``."""


def svg(axis: Axis, panels: Sequence[Panel], title: str) -> str:
    """The charts below each other, in the colours of ``STYLE``."""
    top, drawn = 4, []
    for panel in panels:
        drawn.append(panel.svg(axis, top))
        top += panel.height + _GAP
    for share, label in axis.ticks(5):
        x = round(_LEFT + _PLOT * share, 1)
        anchor = "start" if share == 0 else "end" if x > _WIDTH - 60 else "middle"
        drawn += (
            f'<path class="g" d="M{x} {top - _GAP}v5"/>',
            f'<text class="d" text-anchor="{anchor}" x="{x}" y="{top + 4}">{clipped(label)}</text>',
        )
    drawn.append(f'<text class="d" x="0" y="{top + 4}">{clipped(axis.title)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 12}" role="group" '
        f'aria-label="{clipped(title, 200)}">{"".join(drawn)}</svg>'
    )


def _drawn(curve: Curve, axis: Axis, y_of: Callable[[float], float]) -> str:
    """The line of a curve. If the curve has few points, draws the points, too."""
    path: list[str] = []
    dots: list[str] = []
    bins = axis.bins(curve.points, _COLUMNS)
    to = "M{} {}h0"
    for place, values in bins.items():
        x = round(_LEFT + _PLOT * (place + 0.5) / _COLUMNS, 1)
        for value in dict.fromkeys((min(values), max(values)) if values else ()):
            y = y_of(value)
            path.append(to.format(x, y))
            dots.append(f"M{x} {y}h0")
            to = "L{} {}"
        to = to if values else "M{} {}h0"  # a gap
    if not path:
        return ""
    drawn = f'<path class="l l{curve.colour}" d="{"".join(path)}"/>'
    if len(bins) <= 60:
        drawn += f'<path class="l p l{curve.colour}" d="{"".join(dots)}"/>'
    return drawn


def _groups(axis: Axis, lanes: Iterable[Lane]) -> list[list[Lane]]:
    """Groups narrow adjacent lanes. A wide lane is a group of its own."""

    def place(lane: Lane) -> tuple[bool, float]:
        start = _x(axis, lane.start)
        is_narrow = _x(axis, lane.end) - start < 1.5
        return is_narrow, start // 3 if is_narrow else lane.start

    return [list(group) for _, group in groupby(lanes, place)]


def _x(axis: Axis, place: int) -> float:
    return round(_LEFT + _PLOT * axis.share(place), 1)


def _rollback(x: float, y: float) -> str:
    return f'<path class="r" d="M{x} {y - 2}v{_LANE - 1}"/>'


def _linked(drawn: str, commit: CommitId, links: Collection[CommitId]) -> str:
    return f'<a href="#v{commit.short}">{drawn}</a>' if commit in links else drawn


def _part(value: float, low: float, high: float) -> float:
    """The position of a value on a scale, from 0 to 1.

    If ``low`` and ``high`` hardly differ, the scale is longer than the range between them.
    """
    half = max(high / 2 - low / 2, _NOISE / 2 * max(abs(low), abs(high)))
    return 0.5 + (value / 2 - (low / 4 + high / 4)) / half if half else 0.5


def _frame(top: int, labels: Sequence[str]) -> str:
    lines = "".join(
        f'<text class="{"d" if i else "b"}" x="0" y="{top + 12 + 15 * i}">{clipped(label)}</text>'
        for i, label in enumerate(labels)
    )
    return lines + f'<path class="g" d="M{_LEFT} {top + _PANEL}h{_PLOT}"/>'


def cut(shown: str, most: int = 60) -> str:
    """The text, truncated to at most ``most`` characters."""
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def clipped(value: str, most: int = 24) -> str:
    """The text, truncated to at most ``most`` characters and escaped for HTML."""
    return escape(cut(printable(value), most))
