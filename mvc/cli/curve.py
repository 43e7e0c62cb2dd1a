"""The storage/recovery curve: in plain characters, and as a picture drawn by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.cli.tables import Column, numbers, show
from mvc.cli.text import seconds, size
from mvc.errors import NotInstalled, WrongUsage, how_to_install
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.maintenance.repack.plan import RepackCurve

__all__ = ["POINT", "chart", "show_curve"]

POINT = "bytes recovery_worst=worst_seconds recovery_mean=mean_seconds"

_FORMATS = {".svg": "svg", ".png": "png"}


def show_curve(session: Session, picture: Path | None, *, force: bool) -> None:
    """Prints or draws what each bound of recovery would cost; nothing is changed."""
    if picture is not None:
        session.check_output(picture, force=force)
    with session.progress("planning", counted=True) as progress:
        curve = session.repository.storage.curve(progress=progress)
    if picture is not None:
        session.write_output(picture, _draw(curve, picture))
        session.out.note(f"drew the curve in {printable(str(picture))}")
    if session.as_json:
        found = {"points": curve.points, "now": fields(curve.today, POINT)}
        session.out.json("mvc.repack/1", {"curve": found})
    else:
        _print_curve(session, curve)


def _print_curve(session: Session, curve: RepackCurve) -> None:
    out = session.out
    if not curve.points:
        out.line("There is no version yet")
        return
    out.line("Worst recovery against bytes of packs: * possible, @ stored now")
    out.line()
    points = [(point.bytes, point.worst_seconds) for point in (*curve.points, curve.today)]
    for line in chart(points[:-1], points[-1], width=min(80, out.width or 80)):
        out.line(line)
    out.line()
    rows = [
        (name, size(point.bytes), seconds(point.worst_seconds), seconds(point.mean_seconds))
        for name, point in [*(("", point) for point in curve.points), ("now", curve.today)]
    ]
    show(out, [Column(""), *numbers("packs, worst, mean")], rows)


def chart(
    points: Sequence[tuple[float, float]],
    today: tuple[float, float],
    *,
    width: int = 72,
    height: int = 15,
) -> list[str]:
    """Lines of at most ``width`` columns: ``*`` possible layouts, ``@`` the stored one.

    A point is bytes and seconds. Bytes grow to the right, seconds upwards by ratio.
    """
    every = [*points, today]
    left = max(len(seconds(s)) for _, s in every) + 2
    columns = width - left - 1
    low, high = min(b for b, _ in every), max(b for b, _ in every)
    bottom, top = (math.log(f(max(s, 1e-9) for _, s in every)) for f in (min, max))
    grid = [[" "] * columns for _ in range(height)]
    for mark, (nbytes, time) in [*(("*", p) for p in points), ("@", today)]:
        x = _place(nbytes, low, high, columns)
        grid[-1 - _place(math.log(max(time, 1e-9)), bottom, top, height)][x] = mark
    labels = {
        i: seconds(math.exp(at))
        for i, at in ((0, top), (height // 2, (top + bottom) / 2), (height - 1, bottom))
    }
    first, last = size(round(low)), size(round(high))
    gap = max(1, columns - len(first) - len(last))
    return [
        *(f"{labels.get(i, ''):>{left - 1}} |{''.join(r).rstrip()}" for i, r in enumerate(grid)),
        " " * left + "+" + "-" * columns,
        " " * (left + 1) + first + " " * gap + last,
    ]


def _place(value: float, low: float, high: float, count: int) -> int:
    return 0 if high <= low else round((value - low) / (high - low) * (count - 1))


def _draw(curve: RepackCurve, path: Path) -> bytes:
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
    stored = [curve.today.bytes / 1e6] * 2
    today = [curve.today.worst_seconds, curve.today.mean_seconds]
    axes.plot(stored, today, "k*", markersize=10, label="stored now")
    axes.set(yscale="log", xlabel="packs (MB)", ylabel="estimated recovery (s)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    out = io.BytesIO()
    plain = {"Date": None} if kind == "svg" else None  # equal curves are equal files
    figure.savefig(out, format=kind, metadata=plain)
    return out.getvalue()
