"""plot: metrics, sizes, distances and deployments as charts in a terminal or a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct

from mvc.errors import NotInstalled, WrongUsage, how_to_install
from mvc.repo import deployments
from mvc.repo.arguments import check_seconds, checked
from mvc.repo.context import Context
from mvc.repo.lookup.commits import unknown_metric
from mvc.repo.times import datetime_of
from mvc.report import figure
from mvc.report.axis import Axis
from mvc.report.charts import Charts, metrics_of
from mvc.report.figure import Bars, Lanes, Legend, Line, Panel
from mvc.report.overview import Excerpt, changes, overview
from mvc.report.stats import by_version

_FIRST, _CHANGES = 6, 1000  # metrics if none is named; versions whose distances are measured


@checked
class Plot(Struct, frozen=True):
    """Charts below each other on one axis; ``notes`` say what is not in them.

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

    def _repr_html_(self) -> str:
        return self.svg()


def plot(
    context: Context, metrics: Sequence[str], options: Mapping[str, Any], view: Excerpt
) -> Plot:
    """``Repository.plot``; ``options`` by the names of ``PlotOptions``."""
    seconds, target = options.get("seconds", 10.0), options.get("target")
    stored, distance = options.get("stored", False), options.get("distance", False)
    check_seconds("seconds", seconds)
    found, notes = overview(context, view), []
    charts, spans = Charts(found), found.spans
    if target is not None:
        spans = {target: spans.get(deployments.check_target(context, target), ())}
    there = metrics_of(found)
    for name in metrics:
        if name not in there:
            raise unknown_metric(name, (found.metrics[c.id] for c in found.versions))
    if not (metrics or stored or distance):
        metrics, stored = there[:_FIRST], not there
    panels: list[Panel] = [*charts.legend, *(charts.metric(name) for name in metrics)]
    if stored:
        panels.append(charts.stored(by_version(context)[1]))
    if distance:
        measured, count = changes(context, found, seconds=seconds, most=_CHANGES)
        by_id = {change.commit.id: change.l2 for change in measured}
        panels.append(charts.line("distance (L2)", lambda commit: by_id.get(commit.id)))
        if len(measured) < count:
            notes.append(f"distances of the last {len(measured):,} of {count:,} versions")
    if any(spans.values()):
        panels.append(charts.live(spans))
    return Plot(charts.axis, panels, [*notes, *filter(None, [charts.note])])


def _png(drawn: Plot) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotInstalled(
            "a plot as .png needs matplotlib; .svg needs nothing", hint=how_to_install("plots")
        ) from None
    panels = [panel for panel in drawn.panels if not isinstance(panel, Legend)]
    made = Figure(figsize=(9, 1.8 * len(panels)), layout="constrained")
    every = made.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    axis = drawn.axis
    zone = datetime_of(axis.low).tzinfo  # of the other charts, too
    scale = 86_400 * 10**9 if axis.by == "time" else 1  # matplotlib counts days
    for axes, panel in zip(every, panels, strict=True):
        axes.set_xlim(axis.low / scale, axis.high / scale)
        if axis.by == "time":
            axes.xaxis.axis_date(zone)
        if isinstance(panel, Line):
            unit = _unit(panel)
            for curve in panel.curves:
                places = [place / scale for place, _ in curve.points]
                axes.plot(places, [v / unit for _, v in curve.points], ".-", label=curve.name)
            if panel.best is not None:
                axes.plot(panel.best.place / scale, panel.best.value / unit, "ok", fillstyle="none")
            if len(panel.curves) > 1:
                axes.legend()
            axes.set_ylabel(panel.title if unit == 1 else f"{panel.title} / {unit:g}")
        elif isinstance(panel, Bars):
            for name, points in panel.kinds.items():
                axes.plot(*zip(*((x / scale, v) for x, v in points), strict=True), ".", label=name)
            axes.set_ylabel(panel.title)
            axes.legend()
        elif isinstance(panel, Lanes):
            for row, lanes in enumerate(panel.targets.values()):
                for i, lane in enumerate(lanes):
                    width = (lane.end - lane.start) / scale
                    axes.barh(row, width, left=lane.start / scale, color=f"C{i % 2}")
            axes.set_yticks(range(len(panel.targets)), list(panel.targets))
    out = io.BytesIO()
    made.savefig(out, format="png")
    return out.getvalue()


def _unit(line: Line) -> float:
    """What values are divided by: matplotlib computes differences, which must stay finite."""
    return 1e300 if max(map(abs, line.range())) > 1e300 else 1.0
