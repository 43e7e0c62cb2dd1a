from __future__ import annotations

import pytest

from mvc.cli.output import Output
from mvc.cli.tables import Column, show

COLUMNS = (Column("tensor", give="middle"), Column("size", right=True), Column("note"))


class Fixed(Output):
    """An output of a stated width."""

    def __init__(self, width: int | None) -> None:
        super().__init__("never")
        self._width = width

    @property
    def width(self) -> int | None:
        return self._width


def shown(capsys: pytest.CaptureFixture[str], width: int | None, rows) -> list[str]:
    show(Fixed(width), COLUMNS, rows)
    return capsys.readouterr().out.splitlines()


def test_aligns_and_drops_empty_columns(capsys) -> None:
    lines = shown(capsys, None, [("a", "1 B", ""), ("layer", "12 kB", "")])
    assert lines == ["tensor   size", "a         1 B", "layer   12 kB"]


def test_piped_output_is_never_cut(capsys) -> None:
    name = "x" * 500
    assert name in shown(capsys, None, [(name, "1 B", "n")])[1]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_fits_the_terminal_and_keeps_both_ends(capsys, width: int) -> None:
    name = "encoder." + "middle." * 40 + "weight"
    lines = shown(capsys, width, [(name, "1.25 MB", "changed")])
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith("enc")
    assert "weight  1.25 MB  changed" in lines[1]
    assert "…" in lines[1]


def test_sentences_are_cut_at_their_end(capsys) -> None:
    show(Fixed(40), [Column("key"), Column("meaning", give="end")], [("k", "a word " * 20)])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("k    a word a word")
    assert line.endswith("…")
    assert len(line) == 40


def test_wide_characters_count_twice(capsys) -> None:
    lines = shown(capsys, None, [("模型", "1 B", "x"), ("abcdefgh", "1 B", "x")])
    assert lines[1] == "模型       1 B  x"
    assert lines[2] == "abcdefgh   1 B  x"


def test_nothing_is_shown_of_no_rows_but_titles(capsys) -> None:
    assert shown(capsys, None, []) == []
