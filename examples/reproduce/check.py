"""Pages compared with results: every measured figure has the JSON that it was taken from.

Sources are comments of the page, each on a line of its own:

- ``<!-- FILE.json -->`` above a table: each of its rows is a row that ``python examples/reproduce
  table FILE`` prints, in the columns that the page shows. Rows and columns may be left out.
- ``<!-- in FILE.json -->``, also of several files: each figure of the table or paragraph below is
  a number that is printed there, and the numbers of a table's cell are in one line of it.
- ``<!-- not measured -->`` above a table, or a paragraph, of settings or of another's figures.

With an empty line below it the last two stand for all up to the next heading or comment.

Figures in sentences can be bound one by one, by the ``Claim`` and ``Stated`` values in ``figures``.

A *figure* is a number with a fraction, a thousands comma or a unit of bytes, time, per cent or
points, outside of code. What none of these covers has no source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
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
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_SOURCE = re.compile(r"<!-- (?:(in )?([\w.-]+\.json(?: [\w.-]+\.json)*)|not measured) -->")


@dataclass(frozen=True)
class Problem:
    """What a page says, and what its source says in place of it."""

    page: str
    line: int
    kind: str
    """``differs``, ``no source``, ``not found`` or ``not measured``: the result is missing."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.kind}: {self.text}"


@dataclass
class _Block:
    """The lines that a source stands for."""

    line: int
    files: tuple[str, ...]
    """None for what is not measured."""
    loose: bool
    """Whether only its numbers are those of the files."""
    lines: list[str] = field(default_factory=list)


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
        for claim in claims:
            yield from self._claim(claim)
        for each in stated:
            if not (found := _pattern(each.says).search(self._text)):
                yield Problem(self._name, 1, "not found", each.says)
            else:
                self._cover(*found.span())
        for block in _blocks(self._text):
            yield from self._block(block)
        yield from self._unbound()

    def _block(self, block: _Block) -> Iterator[Problem]:
        begin = sum(len(line) + 1 for line in self._text.split("\n")[: block.line - 1])
        end = begin + sum(len(line) + 1 for line in block.lines)
        rest = self._rest(begin, end)
        self._cover(begin, end)
        try:
            printed = [line for name in block.files for line in _printed(name)]
        except NotMeasured as missing:
            yield Problem(self._name, block.line, "not measured", str(missing))
            return
        if not printed:
            return
        if block.loose:
            for number, text in _absent(rest, printed):
                yield Problem(self._name, block.line + number, "differs", text)
        elif (differing := _differing(block.lines, printed)) is None:
            text = f"these columns in {', '.join(block.files)}"
            yield Problem(self._name, block.line, "not found", text)
        else:
            for number in differing:
                yield Problem(self._name, block.line + number, "differs", block.lines[number])

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

    def _rest(self, begin: int, end: int) -> list[str]:
        """The lines of a part of the page without what is bound already."""
        part = zip(self._text[begin:end], self._bound[begin:end], strict=True)
        return "".join(" " if bound and one != "\n" else one for one, bound in part).split("\n")

    def _cover(self, begin: int, end: int) -> None:
        self._bound[begin:end] = [True] * (end - begin)

    def _unbound(self) -> Iterator[Problem]:
        prose = _prose(self._text)
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
    return abs(value - _value(written)) <= 0.5001 * 10.0**-digits


def _pattern(says: str) -> re.Pattern[str]:
    """Of a phrase, across the ends of lines, or of a table's row; ``{}`` is a number."""
    parts = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in says.split("{}"))
    row = says.startswith("|")
    return re.compile(_HOLE.join(parts) + (r"$" if row else ""), re.M)


def _blocks(text: str) -> Iterator[_Block]:
    """What the sources of a page stand above."""
    block: _Block | None = None
    for number, line in enumerate(text.split("\n"), 1):
        found = _SOURCE.fullmatch(line)
        if block and (found or line.startswith(("#", "<!--")) or _ends(block, line)):
            yield block
            block = None
        if found:
            block = _Block(number + 1, tuple((found[2] or "").split()), bool(found[1]))
        elif block:
            block.lines.append(line)
    if block:
        yield block


def _ends(block: _Block, line: str) -> bool:
    """Whether a block of one table, or of one paragraph, ends before this empty line."""
    return not line and bool(block.lines) and bool(block.lines[0])


@cache
def _printed(name: str) -> list[str]:
    file = RESULTS / name
    if not file.exists():
        raise NotMeasured(file)
    return markdown(read_report(file), of=file).split("\n")


def _cells(line: str) -> tuple[str, ...]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return tuple(re.sub(r"[`*]", "", cell).strip() for cell in cells)


def _differing(lines: Sequence[str], printed: Sequence[str]) -> list[int] | None:
    """The lines of a table that no printed one has; None if none has its columns."""
    rows = {number: _cells(line) for number, line in enumerate(lines) if line.startswith("|")}
    head, *numbers = [number for number in rows if number != min(rows) + 1] or [0]
    candidates = [
        [number for number in numbers if rows[number] not in shown]
        for table in _tables(printed)
        if rows and (shown := _shown(table, rows[head])) is not None
    ]
    return min(candidates, key=len) if candidates else None


def _tables(printed: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
    """Every printed table: its titles, the rule, its rows."""
    for is_table, lines in groupby(printed, lambda line: line.startswith("|")):
        if is_table:
            yield [_cells(line) for line in lines]


def _shown(table: Sequence[tuple[str, ...]], titles: Sequence[str]) -> set[tuple[str, ...]] | None:
    """The rows of a printed table in the columns of these titles; None if one is not there."""
    columns: list[int] = []
    for title in titles:
        after = columns[-1] + 1 if columns else 0
        if title not in table[0][after:]:
            return None
        columns.append(table[0].index(title, after))
    return {tuple(row[column] for column in columns) for row in table[2:]}


def _absent(lines: Sequence[str], printed: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Figures, and cells of tables, whose numbers are in no printed line; with their own line."""
    known = [[_value(number) for number in _NUMBER.findall(line)] for line in printed]
    for number, line in enumerate(_prose("\n".join(lines)).split("\n")):
        for text in _together(line):
            wanted = _NUMBER.findall(text)
            if wanted and not any(_among(wanted, row) for row in known):
                yield number, text.strip()


def _together(line: str) -> Iterator[str]:
    """What has to be in one line: a cell of numbers, or a figure. A row begins with its name."""
    if not line.startswith("|"):
        yield from _FIGURE.findall(line)
        return
    for cell in line.strip("|").split("|")[1:]:
        words = re.findall(r"[^\W\d_]{3,}", cell)
        yield from [cell] if len(words) < 3 else _FIGURE.findall(cell)


def _among(wanted: Sequence[str], row: Sequence[float]) -> bool:
    """Whether all are in the row, as they are or as thousandths: s of ms, kB and MB of bytes."""
    return any(
        all(any(rounds_to(value / scale, number) for value in row) for number in wanted)
        for scale in (1, 1e3, 1e6)
    )


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _prose(text: str) -> str:
    """A page with each character of code blanked out."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text)
