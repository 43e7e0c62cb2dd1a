"""The storage/recovery curve as a picture, drawn by matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import NotInstalled, WrongUsage, how_to_install

if TYPE_CHECKING:
    from mvc.repo.repack.repack import RepackCurve

__all__ = ["draw"]

_FORMATS = {".svg": "svg", ".png": "png"}


def draw(curve: RepackCurve, path: Path) -> bytes:
    """The picture's bytes, in the format that the name asks for."""
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise WrongUsage(f"a curve is drawn as .svg or .png, not as {path.name}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotInstalled(
            "drawing the curve needs matplotlib", hint=how_to_install("plots")
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [point.bytes / 1e6 for point in curve.points]
    for label, style, times in (
        ("worst recovery", "o-", [point.worst_seconds for point in curve.points]),
        ("mean recovery", "o--", [point.mean_seconds for point in curve.points]),
    ):
        axes.plot(sizes, times, style, markersize=3, label=label)
    today = curve.today
    stored = [today.bytes / 1e6] * 2
    axes.plot(
        stored, [today.worst_seconds, today.mean_seconds], "k*", markersize=10, label="stored now"
    )
    axes.set_yscale("log")
    axes.set_xlabel("packs (MB)")
    axes.set_ylabel("estimated recovery (s)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    out = io.BytesIO()
    plain = {"Date": None} if kind == "svg" else None  # equal curves are equal files
    figure.savefig(out, format=kind, metadata=plain)
    return out.getvalue()
