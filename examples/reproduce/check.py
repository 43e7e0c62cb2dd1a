"""Pages compared with results: every measured figure has the JSON that it was taken from.

A table names its source in a comment above it, ``<!-- FILE.json -->``: each of its rows is a row
that ``python examples/reproduce table FILE`` prints, in the columns that the page shows; further
rows and columns may be left out. ``<!-- not measured -->`` stands above a table of settings, or
of another's figures. Figures in prose, and tables of another shape, are bound by the ``Claim`` and
``Stated`` values of the modules in ``figures``.

A *figure* is a number with a fraction, a thousands comma or a unit of bytes, time, per cent or
points, outside of code. What is neither in a table with a source, nor a claim's, nor stated, has
no source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .figures.claims import CLAIMS, PAGES, STATED, Claim, Stated
from .figures.sources import RESULTS, NotMeasured
from .render import markdown, read_report

__all__ = ["Problem", "check"]

ROOT = Path(__file__).parents[2]

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.M | re.S)
_UNIT = r"(?:%|times\b|points?\b|[kKMG]i?B\b|bytes\b|[mµ]?s\b|seconds\b|GB/s|x(?= |$|\n))"
_FIGURE = re.compile(
    rf"(?<![\w./-])\d[\d,]*\.\d+(?![\w.]*\d)|(?<![\w.,-])\d{{1,3}}(?:,\d{{3}})+(?![\d,])"
    rf"|(?<![\w.,/-])\d+(?=\s{_UNIT})"
)
_HOLE = r"([+-]?\d[\d,]*(?:\.\d+)?)"
_SOURCE = re.compile(r"<!-- (?:([\w.-]+\.json)|(not measured)) -->")


@dataclass(frozen=True)
class Problem:
    """What a page says, and what its source says in place of it."""

    page: str
    line: int
    kind: str
    """``differs``, ``no source``, ``not found`` or ``not measured``."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.kind}: {self.text}"


@dataclass
class _Table:
    line: int
    titles: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    source: str | None = None


def check(
    claims: Sequence[Claim] = CLAIMS,
    stated: Sequence[Stated] = STATED,
    pages: Sequence[str] = PAGES,
    root: Path = ROOT,
) -> list[Problem]:
    """Every figure that differs from its source, or has none, page by page."""
    return [
        problem
        for page in pages
        for problem in _Page(page, (root / page).read_text(encoding="utf-8")).problems(
            [each for each in claims if each.page == page],
            [each for each in stated if each.page == page],
        )
    ]


class _Page:
    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._bound = [False] * len(text)
        """By character, whether a table's source, a claim or a statement covers it."""

    def problems(self, claims: Sequence[Claim], stated: Sequence[Stated]) -> Iterator[Problem]:
        for table in _tables(self._text):
            yield from self._table(table)
        for claim in claims:
            yield from self._claim(claim)
        for each in stated:
            if not (found := _pattern(each.says).search(self._text)):
                yield Problem(self._name, 1, "not found", each.says)
            else:
                self._cover(*found.span())
        yield from self._unbound()

    def _table(self, table: _Table) -> Iterator[Problem]:
        if table.source is None:
            return
        lines = self._text.split("\n")
        begin = sum(len(line) + 1 for line in lines[: table.line - 1])
        self._cover(begin, begin + sum(map(len, lines[table.line - 1 :][: len(table.rows) + 2])))
        if not table.source:
            return
        try:
            printed = _printed(table.source)
        except NotMeasured as missing:
            yield Problem(self._name, table.line, "not measured", str(missing))
            return
        differing = [_differing(table, other) for other in printed if _columns(table, other)]
        if not differing:
            yield Problem(self._name, table.line, "not found", f"these columns in {table.source}")
        elif least := min(differing, key=len):
            for number in least:
                row = " | ".join(table.rows[number])
                yield Problem(self._name, table.line + 2 + number, "differs", row)

    def _claim(self, claim: Claim) -> Iterator[Problem]:
        found = _pattern(claim.says).search(self._text)
        if not found:
            yield Problem(self._name, 1, "not found", claim.says)
            return
        self._cover(*found.span())
        line = self._text.count("\n", 0, found.start()) + 1
        try:
            values = claim.values()
        except NotMeasured as missing:
            yield Problem(self._name, line, "not measured", str(missing))
            return
        if len(values) != len(found.groups()):
            yield Problem(self._name, line, "differs", f"{len(values)} values: {claim.says}")
        for written, value in zip(found.groups(), values, strict=False):
            if not rounds_to(value, written):
                yield Problem(
                    self._name, line, "differs", f"{written} is {value:.6g}: {claim.says}"
                )

    def _cover(self, begin: int, end: int) -> None:
        self._bound[begin:end] = [True] * (end - begin)

    def _unbound(self) -> Iterator[Problem]:
        prose = _CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), self._text)
        for found in _FIGURE.finditer(prose):
            if not self._bound[found.start()]:
                line = prose.count("\n", 0, found.start()) + 1
                around = self._text[max(0, found.start() - 40) : found.end() + 30]
                yield Problem(
                    self._name, line, "no source", f"{found[0]} in {' '.join(around.split())}"
                )


def rounds_to(value: float, written: str) -> bool:
    """Whether a number of this value is written like that, to as many digits."""
    digits = len(written.partition(".")[2])
    return abs(value - float(written.replace(",", ""))) <= 0.5001 * 10.0**-digits


def _pattern(says: str) -> re.Pattern[str]:
    """Of a phrase, across the ends of lines; ``{}`` is a number."""
    parts = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in says.split("{}"))
    return re.compile(_HOLE.join(parts))


def _tables(text: str) -> Iterator[_Table]:
    """Every table of a page, with the source that the comment above it names."""
    table, source = None, None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("|"):
            cells = _cells(line)
            if table is None:
                table = _Table(number, cells, source=source)
            elif number > table.line + 1:
                table.rows.append(cells)
            continue
        if table is not None:
            yield table
            table, source = None, None
        if found := _SOURCE.fullmatch(line):
            source = found[1] or ""
        elif line:
            source = None
    if table is not None:
        yield table


def _cells(line: str) -> tuple[str, ...]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return tuple(re.sub(r"[`*]", "", cell).strip() for cell in cells)


@cache
def _printed(name: str) -> list[_Table]:
    file = RESULTS / name
    if not file.exists():
        raise NotMeasured(name)
    return list(_tables(markdown(read_report(file), of=file)))


def _columns(table: _Table, printed: _Table) -> list[int]:
    """Where the columns of a page's table are in a printed one; empty if not all are there."""
    columns: list[int] = []
    for title in table.titles:
        after = columns[-1] + 1 if columns else 0
        if title not in printed.titles[after:]:
            return []
        columns.append(printed.titles.index(title, after))
    return columns


def _differing(table: _Table, printed: _Table) -> list[int]:
    """The rows of a page's table that the printed one does not have."""
    columns = _columns(table, printed)
    rows = {tuple(row[column] for column in columns) for row in printed.rows}
    return [number for number, row in enumerate(table.rows) if row not in rows]
