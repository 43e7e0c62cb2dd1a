"""Markdown tables, and pictures with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from mvc.errors import NotInstalled, how_to_install

__all__ = ["grid", "picture", "pyplot"]


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first is text, the others are numbers."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (titles, *rows)]
    # a rule needs two characters: "-:"
    first, *widths = (max(2, *map(len, column)) for column in zip(*cells, strict=True))
    head, *lines = (
        " | ".join((name.ljust(first), *map(str.rjust, values, widths))) for name, *values in cells
    )
    rule = " | ".join(("-" * first, *("-" * (width - 1) + ":" for width in widths)))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def pyplot() -> Any:
    """matplotlib.pyplot without a display; NotInstalled if matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as found
    except ImportError:
        raise NotInstalled(
            "plots need matplotlib, which is not installed",
            hint=f"{how_to_install('plots')}, or leave them out with --no-plot",
        ) from None
    return found


def picture(figure: Any, form: str) -> bytes:
    """A figure as ``form``, png or svg, and lets go of it; equal figures make equal SVG files."""
    drawing = pyplot()
    buffer = io.BytesIO()
    with drawing.rc_context({"svg.hashsalt": "mvc", "svg.fonttype": "none"}):
        undated = {"Date": None} if form == "svg" else None
        figure.savefig(buffer, format=form, dpi=110, bbox_inches="tight", metadata=undated)
    drawing.close(figure)
    return buffer.getvalue()
