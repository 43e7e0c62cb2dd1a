"""Aligned columns. On a terminal the widest text column gives way; piped, nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Literal
from unicodedata import combining, east_asian_width

from msgspec import Struct

from mvc.cli.output import Output

_GAP = "  "
_NARROWEST = 12


class Column(Struct, frozen=True):
    """``right``: numbers. ``give``: the text may be shortened to fit the terminal, a name in
    its middle, a sentence at its end.
    """

    title: str
    right: bool = False
    give: Literal["", "middle", "end"] = ""
    style: str | None = None


_STYLES = {
    **dict.fromkeys(("commit", "id", "number", "version"), "id"),
    **dict.fromkeys(("target", "live on"), "target"),
    "change": "changed",
    "operation": "heading",
}
_MIDDLE = {"field", "layer", "shape", "source", "tensor", "value"}
_END = {
    "about",
    "changes",
    "meaning",
    "message",
    "recorded",
    "type",
    "what it does",
    "where",
    "who",
    "why",
}
_RIGHT = {"number", "shape"}


def columns(titles: str) -> list[Column]:
    """Columns that look the same wherever the program prints one of this title."""
    return [
        Column(
            title,
            title in _RIGHT,
            "middle" if title in _MIDDLE else "end" if title in _END else "",
            _STYLES.get(title),
        )
        for title in titles.split(", ")
    ]


def numbers(titles: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(title, right=True) for title in titles.split(", ")]


def show(
    out: Output,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    indent: str = "",
    styles: Sequence[str | None] | None = None,
    most: int | None = None,
    optional: Sequence[int] = (),
) -> list[str]:
    """Prints a heading and rows, or nothing for no rows; of more than ``most`` the first ones.

    ``styles``: one per row, over the columns' own. Columns empty in every row are left out. So are,
    the last one first, those at these ``optional`` places for which a terminal has no room; their
    titles are returned.
    """
    every = list(rows)
    cells = every[:most]
    if not cells:
        return []
    used = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    dropped = _too_many(out.width, columns, cells, [i for i in optional if i in used])
    used = [i for i in used if i not in dropped]
    kept = [columns[i] for i in used]
    titles = [column.title for column in kept]
    lines: list[tuple[list[str], list[str | None]]] = [(titles, ["dim"] * len(kept))]
    for row, style in zip(cells, styles or repeat(None), strict=False):
        lines.append(([row[i] for i in used], [style or column.style for column in kept]))
    widths = [max(map(_width, texts)) for texts in zip(*(texts for texts, _ in lines), strict=True)]
    _fit(out.width, kept, widths, len(indent))
    for texts, own in lines if any(titles) else lines[1:]:
        line = _GAP.join(_cell(out, *each) for each in zip(kept, widths, texts, own, strict=True))
        out.line(indent + line.rstrip())
    out.left_out(len(every) - len(cells))
    return [columns[i].title for i in optional if i in dropped]


def _too_many(
    limit: int | None,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    optional: Sequence[int],
) -> set[int]:
    """Those of the ``optional`` columns that do not fit, even if others are narrowed."""
    if limit is None:
        return set()

    def least(place: int) -> int:
        column = columns[place]
        wide = max(_width(text) for text in (column.title, *(row[place] for row in rows)))
        return len(_GAP) + (min(wide, _NARROWEST) if column.give else wide)

    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    room = limit + len(_GAP) - sum(least(i) for i in used if i not in optional)
    dropped = set[int]()
    for place in optional:
        room -= least(place)
        if room < 0:
            dropped.add(place)
    return dropped


def _fit(limit: int | None, columns: Sequence[Column], widths: list[int], indent: int) -> None:
    """Narrows the columns that may give, the widest first, until a line fits."""
    if limit is None:
        return
    for _ in range(indent + sum(widths) + len(_GAP) * (len(widths) - 1) - limit):
        giving = [i for i, c in enumerate(columns) if c.give and widths[i] > _NARROWEST]
        if not giving:
            return
        widths[max(giving, key=widths.__getitem__)] -= 1


def _cell(out: Output, column: Column, width: int, text: str, style: str | None) -> str:
    text = _shorten(text, width, column.give) if column.give else text
    space, painted = " " * (width - _width(text)), out.paint(text, style)
    return space + painted if column.right else painted + space


def _width(text: str) -> int:
    """Columns that a terminal gives to ``text``."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _shorten(text: str, width: int, where: str) -> str:
    """Keeps both ends of a name, mostly the later one, because there tensor names differ."""
    if _width(text) <= width:
        return text
    head = width - 1 if where == "end" else (width - 1) // 5
    start, end = text[:head], text[len(text) - (width - 1 - head) :]
    while _width(start) + _width(end) > width - 1:
        start, end = (start, end[1:]) if end else (start[:-1], end)
    return f"{start}…{end}"
