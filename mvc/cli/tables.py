"""Columns of tables: their style and alignment, and how to fit them into a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mvc.text import cell_width

_GAP = 2  # spaces between columns
_NARROWEST = 12


class Column(Struct, frozen=True):
    """A column. ``right``: aligned right, for numbers.

    ``shorten``: the place where texts may be shortened: in the middle (names) or at the end
    (sentences). If empty, texts stay complete. ``optional``: the column may be omitted.
    """

    title: str
    right: bool = False
    shorten: Literal["", "middle", "end"] = ""
    style: str | None = None
    optional: bool = False


def fitted(
    columns: Sequence[tuple[Column, list[str]]], room: int
) -> list[tuple[Column, list[str]]]:
    """The columns, fitted into ``room`` cells of the terminal (``cell_width``).

    While even shortened columns do not fit, omits the optional columns, beginning at the right.
    Then shortens columns where ``shorten`` permits it, the widest column first.
    """
    columns = list(columns)
    widths = [max(map(cell_width, texts)) for _, texts in columns]
    for i in range(len(columns) - 1, -1, -1):
        least = (
            min(width, _NARROWEST) if column.shorten else width
            for (column, _), width in zip(columns, widths, strict=True)
        )
        if columns[i][0].optional and sum(least) + _GAP * (len(columns) - 1) > room:
            del columns[i], widths[i]
    flexible = [i for i, (column, _) in enumerate(columns) if column.shorten]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - room):
        widest = max(flexible, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return [
        (column, [shortened(text, width, column.shorten) for text in texts])
        for (column, texts), width in zip(columns, widths, strict=True)
    ]


def shortened(text: str, width: int, where: str) -> str:
    """The text, shortened to ``width`` cells. ``where``: the cut, ``end`` or ``middle``.

    If the middle is removed, more of the end than of the start stays, because names of tensors
    differ at their ends.
    """
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
_MIDDLE = (
    "data set", "field", "layer", "live on", "node", "refs", "remote", "shape", "source", "target",
    "tensor", "url", "value",
)  # fmt: skip
_END = (
    "about", "changes", "effect", "meaning", "message", "metrics", "options", "pipeline", "problem",
    "recorded", "same state", "signed by", "state", "type", "where", "who", "why",
)  # fmt: skip
_OPTIONAL = ("cosine", "max |d|", "metrics", "same state", "who", "why")
_SHORTENED: dict[str, Literal["middle", "end"]] = {
    **dict.fromkeys(_MIDDLE, "middle"),
    **dict.fromkeys(_END, "end"),
}


def titled(titles: str) -> list[Column]:
    """One column for each of the ``titles``, which are separated by commas.

    The tables above give the style of each title. ``>`` after a title means that the column has
    numbers.
    """
    return [
        Column(
            title := text.removesuffix(">"), text.endswith(">"), _SHORTENED.get(title, ""),
            _STYLES.get(title), optional=title in _OPTIONAL,
        )
        for text in titles.split(", ")
    ]  # fmt: skip
