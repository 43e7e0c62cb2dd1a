from __future__ import annotations

import re

import pytest

from mvc.cli.output import Output
from mvc.cli.tables import Column
from mvc.text import cell_width

COLUMNS = (Column("tensor", shorten="middle"), Column("size", right=True), Column("note"))


class Fixed(Output):
    """An output of a stated width."""

    def __init__(self, width: int | None, color: str = "never") -> None:
        super().__init__(color)
        self._width = width

    @property
    def width(self) -> int | None:
        return self._width


def shown(capsys: pytest.CaptureFixture[str], width: int | None, rows) -> list[str]:
    Fixed(width).table(COLUMNS, rows)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [None, 80])
def test_aligns_and_drops_empty_columns(capsys, width) -> None:
    lines = shown(capsys, width, [("a", "1 B", ""), ("layer", "12 kB", "")])
    assert lines == ["tensor   size", "a         1 B", "layer   12 kB"]


def test_piped_output_is_never_cut(capsys) -> None:
    name = "x" * 500
    assert name in shown(capsys, None, [(name, "1 B", "n")])[1]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("part", ["middle.", "模型.", "a\u0301."])
def test_fits_the_terminal_and_keeps_both_ends(capsys, width: int, part: str) -> None:
    name = "encoder." + part * 80 + "weight"
    lines = shown(capsys, width, [(name, "1.25 MB", "changed")])
    assert len(lines) == 2
    assert all(cell_width(line) <= width for line in lines)
    assert lines[1].startswith("enc")
    assert re.search("weight {2,3}1.25 MB  changed", lines[1])  # a wide one may not fit
    assert "…" in lines[1]


def test_what_may_not_be_cut_is_whole(capsys) -> None:
    columns = [Column("tensor", shorten="middle"), Column("id"), Column("other")]
    Fixed(40).table(columns, [("encoder." * 20, "1a" * 16, "2b" * 16)])
    line = capsys.readouterr().out.splitlines()[1]
    assert len(line.split()[0]) == 12 and line.split()[1:] == ["1a" * 16, "2b" * 16]


def test_sentences_are_cut_at_their_end(capsys) -> None:
    Fixed(40).table([Column("key"), Column("meaning", shorten="end")], [("k", "a word " * 20)])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("k    a word a word")
    assert line.endswith("…")
    assert len(line) == 40


def test_optional_columns_are_omitted_and_named(capsys) -> None:
    columns = [Column("id"), Column("message", shorten="end")]
    columns += [Column(f"metric{i}", optional=True) for i in range(9)]
    message = "a word " * 9 + "ends"
    rows = [("1a2b3c4d5e", message, *(f"0.12{i}" for i in range(9)))]
    out = Fixed(60)
    out.table(columns, rows)
    heading, row, *note = capsys.readouterr().out.splitlines()
    assert heading.split() == ["id", "message", *(f"metric{i}" for i in range(4))]
    assert cell_width(row) <= 60
    assert "\n".join(note) == ("not shown: metric4, metric5, metric6 and 2 more (-v shows\nall)")
    out.verbosity = 1
    out.table(columns, rows)
    whole = capsys.readouterr().out
    assert message in whole and "not shown" not in whole
    Fixed(None).table(columns, rows)
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize(
    "words", [["a=1"], [f"metric{i}=0.{i}" for i in range(40)], ["模型=1"] * 30]
)
def test_a_list_is_one_line_that_counts_what_it_omits(words: list[str]) -> None:
    text = Fixed(60).few(words, 50)
    assert cell_width(text) <= 50 and text.startswith(words[0])
    shown, more = text.count("="), re.search(r"  \+(\d+) more \(-v\)$", text)
    assert shown + (int(more[1]) if more else 0) == len(words)
    assert Fixed(None).few(words, 50) == "  ".join(words)
    assert cell_width(Fixed(60).few(["x" * 500], 50)) == 50


def test_lines_are_folded_at_words_and_lose_none() -> None:
    text = "Metrics:  " + "  ".join(f"metric{i}=0.{i} 模型" for i in range(40))
    lines = Fixed(60).folded(text, " " * 10, prefix=5)
    assert max(map(cell_width, lines)) <= 55
    assert all(line.startswith(" " * 10) for line in lines[1:])
    assert " ".join(lines).split() == text.split()
    assert Fixed(None).folded(text) == [text]
    assert Fixed(60).folded("") == [""]


@pytest.mark.parametrize("width", [None, 80])
def test_wide_characters_count_twice(capsys, width) -> None:
    lines = shown(capsys, width, [("模型", "1 B", "x"), ("abcdefgh", "1 B", "x")])
    assert lines[1] == "模型       1 B  x"
    assert lines[2] == "abcdefgh   1 B  x"


@pytest.mark.parametrize("color", ["never", "always"])
def test_no_text_is_read_as_markup_or_reaches_the_terminal_raw(capsys, color) -> None:
    name = "[bold]w[/bold] :smile: \x1b[2J"
    Fixed(80, color).table([Column("tensor", style="id")], [(name,)])
    out = capsys.readouterr().out
    assert r"[bold]w[/bold] :smile: \x1b[2J" in out
    assert "\x1b[2J" not in out and ("\x1b[33m" in out) is (color == "always")


def test_nothing_is_shown_of_no_rows_but_titles(capsys) -> None:
    assert shown(capsys, None, []) == shown(capsys, 80, []) == []
