"""Plots: ratio against accuracy, and accuracy over the drift."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mvc.errors import NotInstalled, how_to_install
from mvc.evaluation.drift.scoring import normalised
from mvc.evaluation.drift.tables import Compared
from mvc.evaluation.drift.thesis.tables import Figures

__all__ = ["accuracy_curves", "ratio_against_accuracy"]


def ratio_against_accuracy(compared: Compared) -> bytes:
    """A PNG with a row for each network: accuracy over ratio, and over bytes of deltas.

    Right and up is better. Numbers name pipelines, in the order of the table; hollow points
    are the thesis's own figures. The second panel leaves reset points out.
    """
    pyplot = _pyplot()
    roles = list(compared.setting)
    figure, panels = pyplot.subplots(
        len(roles), 2, figsize=(16, 6 * len(roles)), squeeze=False, layout="constrained"
    )
    for (whole, deltas), role in zip(panels, roles, strict=True):
        setting = compared.setting[role][0]
        lines = [(n, line) for n, line in enumerate(compared.lines, start=1) if line.cells]
        cells = [(n, line.cells[role]) for n, line in lines]
        _points(whole, [(n, cell.ratio, cell.accuracy) for n, cell in cells])
        coded = [(n, cell) for n, cell in cells if cell.delta_bytes]
        _points(deltas, [(n, cell.delta_bytes / 1e6, cell.accuracy) for n, cell in coded])
        for _, line in lines:
            stated = line.stated.get(role, Figures())
            if stated.ratio is not None and stated.accuracy is not None:
                whole.plot(stated.ratio, stated.accuracy, "o", color="grey", fillstyle="none")
        whole.set(
            xlabel=f"ratio to {compared.lines[0].name}",
            ylabel="accuracy against lossless, points",
            title=f"{setting['model']} on {setting['data']}",
        )
        deltas.set(xlabel="MB of deltas", title="without reset points")
        deltas.invert_xaxis()
    names = "\n".join(f"{n}  {line.name}" for n, line in enumerate(compared.lines, start=1))
    figure.text(1.005, 0.98, names, va="top", size=8)
    figure.suptitle(f"Table {compared.number}: {compared.title}")
    return _png(pyplot, figure)


def _points(panel: Any, points: Sequence[tuple[int, float, float]]) -> None:
    """Points with their numbers; those that print at one place share a label."""
    panel.set_xscale("log")
    panel.grid(alpha=0.3, which="both")
    places: dict[tuple[float, float], list[int]] = {}
    for number, x, y in points:
        panel.plot(x, y, "o", color="tab:blue")
        place = (float(f"{math.log10(x):.2f}"), float(f"{y:.2f}"))
        places.setdefault(place, []).append(number)
    for (x, y), numbers in places.items():
        text = ", ".join(map(str, numbers))
        panel.annotate(text, (10**x, y), xytext=(5, 4), textcoords="offset points", size=8)


def accuracy_curves(curves: Mapping[str, Sequence[float]]) -> bytes:
    """A PNG: accuracy on the last batch after each batch, as it is and normalised."""
    pyplot = _pyplot()
    figure, (plain, scaled) = pyplot.subplots(1, 2, figsize=(14, 5), layout="constrained")
    for name, curve in curves.items():
        batches = range(1, len(curve) + 1)
        plain.plot(batches, curve, label=name)
        scaled.plot(batches, normalised(curve), label=name)
    plain.set(xlabel="batch", ylabel="accuracy on the last batch")
    scaled.set(xlabel="batch", ylabel="normalised")
    plain.legend(fontsize=7)
    for panel in (plain, scaled):
        panel.grid(alpha=0.3)
    return _png(pyplot, figure)


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise NotInstalled(
            "plots need matplotlib, which is not installed",
            hint=f"{how_to_install('plots')}, or leave them out with --no-plot",
        ) from None
    return pyplot


def _png(pyplot: Any, figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return buffer.getvalue()
