"""The columns of tables: how each looks, and what it gives where a terminal has no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mvc.text import cell_width

_GAP = 2  # between columns
_NARROWEST = 12


class Column(Struct, frozen=True):
    """``right``: numbers. ``give``: what a terminal has no room for is left out, of a name in its
    middle, of a sentence at its end; of any other column nothing is.
    """

    title: str
    right: bool = False
    give: Literal["", "middle", "end"] = ""
    style: str | None = None


def fitted(
    columns: Sequence[tuple[Column, list[str]]], room: int
) -> list[tuple[Column, list[str]]]:
    """The columns, of which those that may give are shortened, the widest first."""
    widths = [max(map(cell_width, texts)) for _, texts in columns]
    giving = [i for i, (column, _) in enumerate(columns) if column.give]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - room):
        widest = max(giving, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return [
        (column, [_shortened(text, width, column.give) for text in texts])
        for (column, texts), width in zip(columns, widths, strict=True)
    ]


def _shortened(text: str, width: int, where: str) -> str:
    """Keeps both ends of a name, mostly the later one, because there tensor names differ."""
    if cell_width(text) <= width:
        return text
    start = text[: width - 1 if where == "end" else (width - 1) // 5]
    end = "" if where == "end" else text[-4 * width :]
    while cell_width(start + end) > width - 1 or (end and not cell_width(end[0])):
        start, end = (start, end[1:]) if end else (start[:-1], end)
    return f"{start}…{end}"


_STYLES = {
    **dict.fromkeys(("commit", "id", "number", "version"), "id"),
    **dict.fromkeys(("target", "live on"), "target"),
    "change": "changed",
    "operation": "heading",
}
_MIDDLE = ("field", "layer", "shape", "source", "tensor", "value")
_END = (
    "about", "changes", "meaning", "message", "recorded", "type", "what it does", "where", "who",
    "why",
)  # fmt: skip
_GIVES: dict[str, Literal["middle", "end"]] = {
    **dict.fromkeys(_MIDDLE, "middle"),
    **dict.fromkeys(_END, "end"),
}


def titled(titles: str) -> list[Column]:
    """Columns that look the same wherever the program prints one of this title.

    A title ends in ``>`` over numbers.
    """
    return [
        Column(
            title := each.removesuffix(">"), each.endswith(">"), _GIVES.get(title, ""),
            _STYLES.get(title),
        )
        for each in titles.split(", ")
    ]  # fmt: skip
