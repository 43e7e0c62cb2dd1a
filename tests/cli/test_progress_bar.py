"""What a command draws on a terminal while it works, and wipes."""

import io
import sys

import pytest

from mvc.cli.session import Session


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stands for stderr from here on; pytest sets its own after fixtures."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return made


def shown(text: str) -> list[str]:
    """The lines of a terminal on which this was written."""
    rows = [""]
    for part in text.replace("\n", "\0\n\0").split("\0"):
        if part == "\n":
            rows.append("")
        else:
            rows[-1] = (rows[-1] + part).rpartition("\r\x1b[2K")[2]
    return rows


def test_how_far_it_is_and_nothing_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with Session().progress("storing") as progress:
        assert progress is not None
        progress(5_000_000, 10_000_000, "a\x1b[2J" + "b" * 40)
        (line,) = shown(terminal.getvalue())
        assert line.startswith(f"storing …{'b' * 23} {'━' * 15}{'·' * 15} 5.00 MB/10.0 MB ")
        assert "\x1b" not in line and len(line) < 100
    assert shown(terminal.getvalue()) == [""]


def test_numbers_of_things(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "60")
    with Session().progress("collecting", counted=True) as progress:
        assert progress is not None
        progress(1, 4000, "packs")
        (line,) = shown(terminal.getvalue())
        assert f"collecting packs {'·' * 30} 1/4,000 " in line and len(line) <= 59
    terminal.truncate(0)
    with Session().progress("collecting", counted=True) as progress:
        assert progress is not None
        progress(3, 0, "")
        assert shown(terminal.getvalue()) == ["collecting 3"]


def test_lines_that_are_printed_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    session = Session()
    with session.progress("storing") as progress:
        assert progress is not None
        progress(1, 10, "x")
        session.out.warn("the disk is slow")
        assert shown(terminal.getvalue()) == ["mvc: warning: the disk is slow", ""]


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_none_where_it_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", term)
    session = Session()
    session.verbosity = 0 if term == "dumb" else -1
    with session.progress("storing") as progress:
        assert progress is None
    assert terminal.getvalue() == ""
