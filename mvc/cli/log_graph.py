r"""Draws how versions follow each other, in columns of ``*``, ``|``, ``/`` and ``\``.

A column stands for the next version expected on one line of descent. The idea of
columns that merge and shift is that of ``git log --graph``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from mvc.ids import CommitId
from mvc.repo.history.log import LogEntry

__all__ = ["GraphRow", "graph_lines"]


class GraphRow(Struct, frozen=True):
    """The drawing before a version's ``first`` line, before the ``rest`` of its lines, and the
    lines of ``links`` after it.
    """

    entry: LogEntry
    first: str
    rest: str
    links: tuple[str, ...]


def graph_lines(entries: Iterable[LogEntry]) -> Iterator[GraphRow]:
    """One row a version. Versions left out of ``entries`` leave their column open."""
    columns: list[CommitId] = []
    for entry in entries:
        if entry.id not in columns:
            columns.append(entry.id)
        at = columns.index(entry.id)
        first = "".join("* " if i == at else "| " for i in range(len(columns)))
        rest = first.replace("*", "|" if entry.commit.parents else " ")
        yield GraphRow(entry, first, rest, tuple(_replace(columns, at, entry.commit.parents)))


def _replace(columns: list[CommitId], at: int, parents: tuple[CommitId, ...]) -> Iterator[str]:
    """Puts a version's parents in its place; yields the lines that show it."""
    if not parents:
        width = len(columns)
        del columns[at]
        if at < width - 1:
            yield _line(at, {2 * i - 1: "/" for i in range(at + 1, width)})
        return
    columns[at] = parents[0]
    for number, parent in enumerate(parents[1:], 1):
        place = at + number
        columns.insert(place, parent)
        marks = {2 * i - 1: "\\" for i in range(place, len(columns))}
        yield _line(place, marks)
    yield from _joined(columns)


def _joined(columns: list[CommitId]) -> Iterator[str]:
    """Joins columns that expect the same version; yields the lines that show it."""
    place = 1
    while place < len(columns):
        first = columns.index(columns[place])
        if first == place:
            place += 1
            continue
        marks = {2 * i - 1: "_" for i in range(first + 2, place)}
        marks[2 * place - 1] = "/"
        if place > first + 1:
            marks[2 * first + 1] = "_"
        marks |= {2 * i - 1: "/" for i in range(place + 1, len(columns))}
        del columns[place]
        yield _line(place, marks)


def _line(bars: int, marks: dict[int, str]) -> str:
    """Bars in the columns before ``bars``, and marks at positions of the line."""
    width = max(2 * bars, *(position + 1 for position in marks))
    chars = [" "] * width
    for i in range(bars):
        chars[2 * i] = "|"
    for position, mark in marks.items():
        chars[position] = mark
    return "".join(chars).rstrip()
