"""plot: metrics, sizes, distances and deployments as charts in a terminal or a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from msgspec import Struct

from mvc.errors import NotInstalled, WrongUsage, how_to_install
from mvc.repo import deployments
from mvc.repo.arguments import check_seconds, checked
from mvc.repo.context import Context
from mvc.repo.lookup.commits import unknown_metric
from mvc.report import figure
from mvc.report.figure import Axis, Bars, Lanes, Line, Panel, Point
from mvc.report.overview import changes, overview
from mvc.report.page import bytes_panel, metric_panel, metrics_of
from mvc.report.stats import by_version

_FIRST, _CHANGES = 6, 1000  # metrics if none is named; versions whose distances are measured


@checked
class Plot(Struct, frozen=True):
    """Charts below each other on one time axis; ``notes`` say what is not in them.

    A notebook shows it as a picture, a console as characters.
    """

    axis: Axis
    panels: Sequence[Panel]
    notes: Sequence[str] = ()

    def text(self, width: int = 80) -> list[str]:
        """Lines of at most ``width`` characters, at least 40."""
        return figure.text(self.axis, self.panels, max(width, 40))

    def svg(self) -> str:
        """A document of its own."""
        return figure.svg(self.axis, self.panels, "Plot", alone=True)

    def picture(self, file: str | PathLike[str]) -> bytes:
        """The bytes of a file with this name; ``.svg`` or ``.png``, which needs matplotlib."""
        kind = Path(file).suffix.lower()
        if kind == ".svg":
            return self.svg().encode()
        if kind == ".png":
            return _png(self)
        raise WrongUsage(f"a plot is drawn as .svg or .png, not as {Path(file).name}")

    def __repr__(self) -> str:
        return "\n".join([*self.text(), *self.notes])

    def _repr_svg_(self) -> str:
        return self.svg()


def plot(
    context: Context,
    metrics: Sequence[str],
    *,
    target: str | None,
    stored: bool,
    distance: bool,
    seconds: float,
) -> Plot:
    """``Repository.plot``."""
    check_seconds("seconds", seconds)
    found, notes = overview(context), []
    spans = found.spans
    if target is not None:
        spans = {target: spans.get(deployments.check_target(context, target), ())}
    there = metrics_of(found.versions)
    for name in metrics:
        if name not in there:
            raise unknown_metric(name, (c.metrics for c in found.versions))
    if not (metrics or stored or distance):
        metrics, stored = there[:_FIRST], not there
    panels = [metric_panel(found, name) for name in metrics]
    if stored:
        panels.append(bytes_panel(found, by_version(context)[1]))
    if distance:
        measured, count = changes(context, found, seconds=seconds, most=_CHANGES)
        points = [(change.commit.time_ns, change.l2) for change in measured]
        panels.append(Line("distance (L2)", points))
        if len(measured) < count:
            notes.append(f"distances of the last {len(measured):,} of {count:,} versions")
    if any(spans.values()):
        panels.append(Lanes("live on", spans))
    return Plot(Axis.of([*(c.time_ns for c in found.versions), found.now_ns]), panels, notes)


def _png(drawn: Plot) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotInstalled(
            "a plot as .png needs matplotlib; .svg needs nothing", hint=how_to_install("plots")
        ) from None
    made = Figure(figsize=(9, 1.8 * len(drawn.panels)), layout="constrained")
    every = made.subplots(len(drawn.panels), 1, sharex=True, squeeze=False)[:, 0]
    axis, day = drawn.axis, 86_400 * 10**9
    for axes, panel in zip(every, drawn.panels, strict=True):
        axes.set_xlim(axis.low / day, axis.high / day)
        axes.xaxis.axis_date()
        if isinstance(panel, Line):
            unit = _unit(panel.points)
            axes.plot([t / day for t, _ in panel.points], [v / unit for _, v in panel.points], ".-")
            axes.set_ylabel(panel.title if unit == 1 else f"{panel.title} / {unit:g}")
        elif isinstance(panel, Bars):
            for name, points in panel.kinds.items():
                axes.plot(*zip(*((t / day, v) for t, v in points), strict=True), ".", label=name)
            axes.set_ylabel(panel.title)
            axes.legend()
        elif isinstance(panel, Lanes):
            for row, spans in enumerate(panel.spans.values()):
                for i, span in enumerate(spans):
                    width = (span.end_ns - span.start_ns) / day
                    axes.barh(row, width, left=span.start_ns / day, color=f"C{i % 2}")
            axes.set_yticks(range(len(panel.spans)), list(panel.spans))
    out = io.BytesIO()
    made.savefig(out, format="png")
    return out.getvalue()


def _unit(points: Sequence[Point]) -> float:
    """What values are divided by: matplotlib computes differences, which must stay finite."""
    highest = max((abs(value) for _, value in points if math.isfinite(value)), default=0.0)
    return 1e300 if highest > 1e300 else 1.0
