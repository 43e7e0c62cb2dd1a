"""Charts below each other on one time axis: as SVG, and as lines of plain characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

from msgspec import Struct

from mvc.ids import CommitId
from mvc.model.names import printable
from mvc.repo.display import number
from mvc.repo.times import format_time
from mvc.report.overview import Span

Point: TypeAlias = tuple[int, float]
"""A moment in ns since 1970, and a value."""

_WIDTH, _LEFT, _RIGHT = 960, 170, 14  # of a drawing; the labels stand left
_PLOT = _WIDTH - _LEFT - _RIGHT
_PANEL, _LANE, _GAP = 84, 20, 16  # heights
_COLUMNS, _BARS = 400, 120  # a line's extremes and a bar's sum are taken over one of so many
_ROWS = 6  # of characters
_DAY, _MINUTE = 86_400 * 10**9, 60 * 10**9

STYLE = """
:root{--bg:#fff;--ink:#1b1f24;--dim:#57606a;--rule:#d0d7de;--c0:#0969da;--c1:#bc4c00;--c2:#6e7781;
--s0:#0969da;--s1:#54aeff}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--ink:#e6edf3;--dim:#9198a1;--rule:#3d444d;
--c0:#58a6ff;--c1:#f0883e;--c2:#9198a1;--s0:#1f6feb;--s1:#79c0ff}}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .d{fill:var(--dim)}
svg .b{font-weight:600}svg .g{stroke:var(--rule)}svg .e{text-anchor:end}
svg .l{fill:none;stroke:var(--c0);stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
svg .p{fill:none;stroke:var(--c0);stroke-width:5;stroke-linecap:round}
.k0{fill:var(--c0)}.k1{fill:var(--c1)}.k2{fill:var(--c2)}.s0{fill:var(--s0)}.s1{fill:var(--s1)}
"""


class Axis(Struct, frozen=True):
    """The time from ``low`` to ``high``, in ns since 1970."""

    low: int
    high: int

    @classmethod
    def of(cls, times: Iterable[int]) -> Axis:
        """An axis that all these moments lie on."""
        known = list(times) or [0]
        return cls(min(known), max(max(known), min(known) + 10**9))

    def share(self, time_ns: int) -> float:
        """Where a moment lies, from 0 to 1."""
        return min(1.0, max(0.0, (time_ns - self.low) / (self.high - self.low)))

    def x(self, time_ns: int) -> float:
        """Where a moment lies in a drawing."""
        return round(_LEFT + _PLOT * self.share(time_ns), 1)

    def label(self, share: float) -> str:
        """The moment at a place, as far as the length of the axis tells moments apart."""
        span = self.high - self.low
        whole = format_time(self.low + round(span * share), precise=False).replace("T", " ")
        if span > 5 * _DAY:
            return whole[:10]
        return whole[5:16] if span > 10 * _MINUTE else whole[11:19]

    def bins(self, points: Iterable[Point], count: int) -> dict[int, list[float]]:
        """The values in each of ``count`` equal parts of the axis, in order; finite ones.

        A part that has others only is empty.
        """
        found: dict[int, list[float]] = {}
        for time_ns, value in points:
            place = min(count - 1, int(self.share(time_ns) * count))
            values = found.setdefault(place, [])
            if math.isfinite(value):
                values.append(value)
        return dict(sorted(found.items()))


class Line(Struct, frozen=True):
    """A value over time, with gaps where it is not finite; ``unit`` writes it."""

    title: str
    points: Sequence[Point]
    unit: Callable[[float], str] = number
    height: int = _PANEL

    def _range(self) -> tuple[float, float]:
        values = [value for _, value in self.points if math.isfinite(value)] or [0.0]
        return min(values), max(values)

    def _labels(self) -> tuple[str, ...]:
        if not any(math.isfinite(value) for _, value in self.points):
            return self.title, "no finite value"
        low, high = map(self.unit, self._range())
        return self.title, f"highest {high}", f"lowest {low}"

    def svg(self, axis: Axis, top: int) -> str:
        low, high = self._range()
        path: list[str] = []
        dots: list[str] = []
        bins = axis.bins(self.points, _COLUMNS)
        to = "M{} {}h0"
        for place, values in bins.items():
            x = round(_LEFT + _PLOT * (place + 0.5) / _COLUMNS, 1)
            for value in dict.fromkeys((min(values), max(values)) if values else ()):
                y = round(top + _PANEL - 6 - (_PANEL - 12) * _part(value, low, high), 1)
                path.append(to.format(x, y))
                dots.append(f"M{x} {y}h0")
                to = "L{} {}"
            to = to if values else "M{} {}h0"  # a gap
        drawn = f'<path class="l" d="{"".join(path)}"/>' if path else ""
        if len(bins) <= 60 and path:
            drawn += f'<path class="p" d="{"".join(dots)}"/>'
        return _frame(top, self._labels()) + drawn

    def text(self, axis: Axis, left: int, columns: int) -> list[str]:
        low, high = self._range()
        rows = [[" "] * columns for _ in range(_ROWS)]
        for place, values in axis.bins(self.points, columns).items():
            for value in values:
                rows[-1 - round(_part(value, low, high) * (_ROWS - 1))][place] = "*"
        return [", ".join(self._labels()), *_lines(rows, left)]


class Bars(Struct, frozen=True):
    """Amounts by kind, added up over parts of the time, on top of each other."""

    title: str
    kinds: Mapping[str, Sequence[Point]]
    unit: Callable[[float], str] = number
    height: int = _PANEL

    def _sums(self, axis: Axis, count: int) -> tuple[list[list[float]], float]:
        """For each part of the axis the sums of all kinds; and the highest total."""
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
            drawn.append(f'<rect class="k{kind}" x="0" y="{y - 9}" width="10" height="10"/>')
            drawn.append(f'<text x="15" y="{y}">{clipped(name)}</text>')
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

    def text(self, axis: Axis, left: int, columns: int) -> list[str]:
        sums, highest = self._sums(axis, columns)
        rows = [[" "] * columns for _ in range(_ROWS)]
        for place, parts in enumerate(sums):
            full = math.ceil(sum(parts) / (highest or 1) * _ROWS)
            for row in range(full):
                rows[-1 - row][place] = "#"
        return [f"{self.title}, highest bar {self.unit(highest)}", *_lines(rows, left)]


class Lanes(Struct, frozen=True):
    """What was live when, a row a target. ``links``: versions that have an anchor on the page."""

    title: str
    spans: Mapping[str, Sequence[Span]]
    links: Collection[CommitId] = ()

    @property
    def height(self) -> int:
        return _LANE * (1 + len(self.spans))

    def svg(self, axis: Axis, top: int) -> str:
        drawn = [f'<text class="b" x="0" y="{top + 12}">{clipped(self.title)}</text>']
        for row, (target, spans) in enumerate(self.spans.items(), 1):
            y = top + _LANE * row
            drawn.append(f'<text x="0" y="{y + 12}">{clipped(target)}</text>')
            for i, group in enumerate(_groups(axis, spans)):
                first, x = group[0], axis.x(group[0].start_ns)
                title = f"{first.commit.short} on {target} from {format_time(first.start_ns)}"
                if group[1:]:
                    title = f"{len(group):,} deployments on {target}"
                box = (
                    f'<rect class="s{i % 2}" x="{x}" y="{y}" height="{_LANE - 5}" '
                    f'width="{max(1.0, axis.x(group[-1].end_ns) - x):.1f}">'
                    f"<title>{clipped(title, 300)}</title></rect>"
                )
                linked = not group[1:] and first.commit in self.links
                drawn.append(f'<a href="#v{first.commit.short}">{box}</a>' if linked else box)
        return "".join(drawn)

    def text(self, axis: Axis, left: int, columns: int) -> list[str]:
        lines = [f"{self.title}, a new deployment at each change of sign"] if self.spans else []
        for target, spans in self.spans.items():
            row = [" "] * columns
            for i, span in enumerate(spans):
                start, end = (int(axis.share(t) * columns) for t in (span.start_ns, span.end_ns))
                row[start : max(end, start + 1)] = "=-"[i % 2] * max(end - start, 1)
            lines.append(f"{printable(target)[:left]:>{left}}|" + "".join(row[:columns]).rstrip())
        return lines


Panel: TypeAlias = Line | Bars | Lanes
"""A chart draws itself as SVG from a height on down, or as lines: a label of ``left`` characters,
a bar, and at most so many ``columns``.
"""


def svg(axis: Axis, panels: Sequence[Panel], title: str, *, alone: bool = False) -> str:
    """The charts below each other; ``alone``: with a style, as a file of its own."""
    top, drawn = 4, []
    for panel in panels:
        drawn.append(panel.svg(axis, top))
        top += panel.height + _GAP
    for i in range(5):
        x, anchor = _LEFT + _PLOT * i / 4, ("start", "middle", "middle", "middle", "end")[i]
        drawn.append(f'<path class="g" d="M{x} {top - _GAP}v5"/>')
        label = clipped(axis.label(i / 4))
        drawn.append(f'<text class="d" text-anchor="{anchor}" x="{x}" y="{top + 4}">{label}</text>')
    style = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="var(--bg)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 12}" role="group" '
        f'aria-label="{clipped(title, 200)}">{style if alone else ""}{"".join(drawn)}</svg>'
    )


def text(axis: Axis, panels: Sequence[Panel], width: int) -> list[str]:
    """The charts below each other, in lines of at most ``width`` characters (40 or more)."""
    names = [len(printable(t)) for p in panels if isinstance(p, Lanes) for t in p.spans]
    left = min(16, max(names, default=2))
    columns = width - left - 1
    lines = [line for panel in panels for line in (*panel.text(axis, left, columns), "")]
    low, high = axis.label(0), axis.label(1)
    return [
        *lines[:-1],
        " " * left + "+" + "-" * columns,
        " " * (left + 1) + low + high.rjust(columns - len(low)),
    ]


def _groups(axis: Axis, spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Each span alone; those too narrow to be seen together with the narrow ones after them."""
    held: list[Span] = []
    for span in spans:
        if held and axis.x(held[-1].end_ns) - axis.x(held[0].start_ns) >= 3:
            yield held
            held = []
        if axis.x(span.end_ns) - axis.x(span.start_ns) < 1.5:
            held.append(span)
            continue
        if held:
            yield held
            held = []
        yield [span]
    if held:
        yield held


def _part(value: float, low: float, high: float) -> float:
    """Where a value lies between two others, from 0 to 1; in the middle if they are equal."""
    return (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5


def _frame(top: int, labels: Sequence[str]) -> str:
    lines = "".join(
        f'<text class="{"d" if i else "b"}" x="0" y="{top + 12 + 15 * i}">{clipped(label)}</text>'
        for i, label in enumerate(labels)
    )
    return lines + f'<path class="g" d="M{_LEFT} {top + _PANEL}h{_PLOT}"/>'


def _lines(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    return [" " * left + "|" + "".join(row).rstrip() for row in rows]


def clipped(value: str, most: int = 24) -> str:
    """Text that may stand in a document, cut off after ``most`` characters."""
    shown = printable(value)
    return escape(shown if len(shown) <= most else shown[: most - 1] + "…")
