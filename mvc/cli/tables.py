"""Aligned columns. On a terminal the widest text column gives way; piped, nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import combining, east_asian_width

from mvc.cli.output import Output

__all__ = ["Column", "show"]

_GAP = "  "
_NARROWEST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """``right``: numbers. ``give``: may be shortened to fit the terminal, names in the
    middle, sentences at their end.
    """

    title: str
    right: bool = False
    give: Literal["", "middle", "end"] = ""
    style: str | None = None


def show(
    out: Output,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    indent: str = "",
    styles: Sequence[str | None] | None = None,
) -> None:
    """Prints a heading and rows, or nothing for no rows.

    ``styles``: one per row, over the columns' own. Columns empty in every row are left out.
    """
    cells = [list(row) for row in rows]
    if not cells:
        return
    used = [i for i, _ in enumerate(columns) if any(row[i] for row in cells)]
    kept = [columns[i] for i in used]
    cells = [[row[i] for i in used] for row in cells]
    widths = [
        max(_width(text) for text in (column.title, *(row[i] for row in cells)))
        for i, column in enumerate(kept)
    ]
    _fit(out.width, kept, widths, len(indent))
    if any(column.title for column in kept):
        titles = [column.title for column in kept]
        out.line(indent + _line(out, kept, widths, titles, ["dim"] * len(kept)))
    for n, row in enumerate(cells):
        style = styles[n] if styles else None
        own = [style or column.style for column in kept]
        out.line(indent + _line(out, kept, widths, row, own))


def _fit(limit: int | None, columns: Sequence[Column], widths: list[int], indent: int) -> None:
    """Takes what is too much from the columns that may give, the widest first."""
    if limit is None:
        return
    excess = indent + sum(widths) + len(_GAP) * (len(widths) - 1) - limit
    while excess > 0:
        giving = [i for i, c in enumerate(columns) if c.give and widths[i] > _NARROWEST]
        if not giving:
            return
        widest = max(giving, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1


def _line(
    out: Output,
    columns: Sequence[Column],
    widths: Sequence[int],
    row: Sequence[str],
    styles: Sequence[str | None],
) -> str:
    return _GAP.join(_cells(out, columns, widths, row, styles)).rstrip()


def _cells(
    out: Output,
    columns: Sequence[Column],
    widths: Sequence[int],
    row: Sequence[str],
    styles: Sequence[str | None],
) -> Iterator[str]:
    last = len(columns) - 1
    for i, (column, width, text, style) in enumerate(
        zip(columns, widths, row, styles, strict=True)
    ):
        text = _shorten(text, width, column.give) if column.give else text
        space = " " * (width - _width(text))
        painted = out.paint(text, style)
        if column.right:
            yield space + painted
        else:
            yield painted if i == last else painted + space


def _width(text: str) -> int:
    """Columns that a terminal gives to ``text``."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _shorten(text: str, width: int, where: str) -> str:
    """Keeps both ends of a name, the later one above all: there tensor names differ."""
    if _width(text) <= width:
        return text
    head = width - 1 if where == "end" else (width - 1) // 5
    start, end = text[:head], text[len(text) - (width - 1 - head) :]
    while _width(start) + _width(end) > width - 1:
        start, end = (start, end[1:]) if end else (start[:-1], end)
    return f"{start}…{end}"
