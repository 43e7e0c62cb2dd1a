"""A chart in plain characters: storage against recovery."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mvc.cli.text import seconds, size

__all__ = ["chart"]

Point = tuple[float, float]
"""Bytes and seconds."""


def chart(points: Sequence[Point], today: Point, *, width: int = 72, height: int = 15) -> list[str]:
    """Lines of at most ``width`` columns: ``*`` what could be, ``@`` what is stored now.

    Bytes grow to the right, seconds upwards by ratio.
    """
    every = [*points, today]
    left = max(len(seconds(s)) for _, s in every) + 2
    columns, rows = width - left - 1, height
    low, high = min(b for b, _ in every), max(b for b, _ in every)
    bottom, top = (math.log(f(max(s, 1e-9) for _, s in every)) for f in (min, max))
    grid = [[" "] * columns for _ in range(rows)]
    for mark, (nbytes, time) in [*(("*", p) for p in points), ("@", today)]:
        x = _place(nbytes, low, high, columns)
        y = _place(math.log(max(time, 1e-9)), bottom, top, rows)
        grid[rows - 1 - y][x] = mark
    labels = {0: math.exp(top), rows // 2: math.exp((top + bottom) / 2), rows - 1: math.exp(bottom)}
    lines = [
        f"{seconds(labels[i]) if i in labels else '':>{left - 1}} |{''.join(row).rstrip()}"
        for i, row in enumerate(grid)
    ]
    lines.append(" " * left + "+" + "-" * columns)
    first, last = size(round(low)), size(round(high))
    gap = max(1, columns - len(first) - len(last))
    lines.append(" " * (left + 1) + first + " " * gap + last)
    return lines


def _place(value: float, low: float, high: float, count: int) -> int:
    return 0 if high <= low else round((value - low) / (high - low) * (count - 1))
