"""Tables as values: ``plain`` makes lines of one, and ``Output`` draws one on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mvc.text import cell_width, printable, text_table

GAP = 2  # between columns
_NARROWEST = 12


class Column(Struct, frozen=True):
    """``right``: numbers. ``give``: what a terminal has no room for is left out, of a name in its
    middle, of a sentence at its end; of any other column nothing is. ``rank``: columns of the
    highest are left out where a terminal has no room, those of rank 0 never.
    """

    title: str
    right: bool = False
    give: Literal["", "middle", "end"] = ""
    style: str | None = None
    rank: int = 0


class Table(Struct, frozen=True):
    """``rows``: a cell for each column. ``styles``: one per row, over the columns'."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str | None] = ()

    def with_only(self, places: Sequence[int]) -> Table:
        """The table of these columns."""
        rows = [[row[i] for i in places] for row in self.rows]
        return Table([self.columns[i] for i in places], rows, self.styles)

    @property
    def titles(self) -> list[str]:
        return [column.title for column in self.columns]


def without_empty(table: Table) -> Table:
    """The table without the columns that are empty in every row."""
    places = range(len(table.columns))
    return table.with_only([i for i in places if any(row[i] for row in table.rows)])


def fitting(table: Table, room: int) -> tuple[Table, list[int]]:
    """The table without the columns for which a terminal has no room, and their widths.

    The widest of those that may give are narrowed first, then any.
    """
    table = replace(table, rows=[[*map(printable, row)] for row in table.rows])
    every = [table.titles, *table.rows]
    widths = [min(max(map(cell_width, column)), room) for column in zip(*every, strict=True)]
    least = [
        min(width, _NARROWEST) if column.give else width
        for column, width in zip(table.columns, widths, strict=True)
    ]
    kept, left = [], room + GAP
    for i in sorted(range(len(widths)), key=lambda i: table.columns[i].rank):
        left -= least[i] + GAP
        if left >= 0 or not table.columns[i].rank:
            kept.append(i)
    kept.sort()
    for _ in range(sum(widths[i] + GAP for i in kept) - GAP - room):
        giving = [i for i in kept if widths[i] > least[i]] or kept
        widest = max(giving, key=widths.__getitem__)
        widths[widest] = max(widths[widest] - 1, 1)
    return table.with_only(kept), [widths[i] for i in kept]


def shortened(text: str, width: int, where: str) -> str:
    """Keeps both ends of a name, mostly the later one, because there tensor names differ."""
    if cell_width(text) <= width:
        return text
    start = text[: width - 1 if where == "end" else (width - 1) // 5]
    end = "" if where == "end" else text[-4 * width :]
    while cell_width(start + end) > width - 1 or (end and not cell_width(end[0])):
        start, end = (start, end[1:]) if end else (start[:-1], end)
    return f"{start}…{end}"


def plain(table: Table) -> list[str]:
    """The lines of a table that is piped."""
    heading = [table.titles] if any(table.titles) else []
    right = [i for i, column in enumerate(table.columns) if column.right]
    return text_table([*heading, *table.rows], right).split("\n") if table.rows else []


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


def columns(titles: str) -> list[Column]:
    """Columns that look the same wherever the program prints one of this title.

    A title ends in ``>`` over numbers.
    """
    return [_column(title.removesuffix(">"), title.endswith(">")) for title in titles.split(", ")]


def _column(title: str, right: bool) -> Column:
    give: Literal["", "middle", "end"] = "end" if title in _END else ""
    return Column(title, right, "middle" if title in _MIDDLE else give, _STYLES.get(title))
