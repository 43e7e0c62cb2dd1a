"""Plots of what was measured: ratio against accuracy, and how accuracy follows the drift."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from mvc.errors import NotInstalled
from mvc.evaluation.scoring import normalised
from mvc.evaluation.tables import Compared, Line

__all__ = ["accuracy_curves", "ratio_against_accuracy"]


def ratio_against_accuracy(compared: Compared) -> bytes:
    """A PNG: each pipeline of a table as a point, a panel for each network.

    Right and up is better. Hollow points are the thesis's own figures for the same pipeline.
    """
    pyplot = _pyplot()
    roles = list(compared.setting)
    figure, panels = pyplot.subplots(
        1, len(roles), figsize=(8 * len(roles), 6), squeeze=False, layout="constrained"
    )
    for panel, role in zip(panels[0], roles, strict=True):
        lines = [line for line in compared.lines if role in line.cells]
        for line in lines:
            _point(panel, line, role)
        setting = compared.setting[role][0]
        panel.set(
            xscale="log",
            xlabel=f"ratio to {compared.lines[0].name}",
            ylabel="accuracy against lossless, points",
            title=f"{setting['model']} on {setting['data']}",
        )
        panel.grid(alpha=0.3, which="both")
    figure.suptitle(f"Table {compared.number}: {compared.title}")
    return _png(pyplot, figure)


def _point(panel: Any, line: Line, role: str) -> None:
    cell, stated = line.cells[role], line.stated.get(role)
    colour = "tab:red" if not line.stated else "tab:blue"
    panel.plot(cell.ratio, cell.accuracy, "o", color=colour)
    panel.annotate(
        line.name, (cell.ratio, cell.accuracy), xytext=(4, 4), textcoords="offset points", size=6
    )
    if stated is not None and stated.ratio is not None and stated.accuracy is not None:
        panel.plot(stated.ratio, stated.accuracy, "o", color=colour, fillstyle="none", alpha=0.5)


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
            hint="pip install 'mvc-weights[plots]', or leave them out with --no-plot",
        ) from None
    return pyplot


def _png(pyplot: Any, figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()
