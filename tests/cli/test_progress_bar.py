"""What a command draws on a terminal while it works, and wipes."""

import io
import re
import sys
import time

import pytest

from mvc.cli import output
from mvc.cli.session import Session
from tests.cli.program import Mvc
from tests.signing import People, people

__all__ = ["people"]

GONE = "\r\x1b[1A\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Terminal:
    """What stands for stderr from here on; pytest sets its own after fixtures."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(output, "SOON", 0)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return made


def drawn(terminal: Terminal) -> str:
    """The line that was drawn last."""
    return terminal.getvalue().rpartition("\x1b[?25l")[2].rpartition("\x1b[2K")[2].strip()


def test_how_far_it_is_and_nothing_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with Session().progress("storing") as progress:
        assert progress is not None
        progress(5_000_000, 10_000_000, "a\x1b[2J[b]" + "b" * 20)
        line = drawn(terminal)
        assert line.startswith("storing J[b]" + "b" * 20 + " " + "━" * 15)
        assert "5.0/10.0 MB" in line and "\x1b" not in line and len(line) < 100
    assert terminal.getvalue().endswith(GONE)


def test_numbers_of_things(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, 60)
    with Session().progress("collecting", counted=True) as progress:
        assert progress is not None
        progress(1, 4000, "packs")
        line = drawn(terminal)
        assert line.startswith("collecting packs") and "1/4000" in line and len(line) <= 60


def test_rate_and_time_left_of_things(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with Session().progress("comparing", counted=True) as progress:
        assert progress is not None
        for done in range(4):
            progress(done, 100, "versions")
            time.sleep(0.05)
        assert re.search(r"3/100 +[\d.]+ it/s +0:00:\d\d$", drawn(terminal))


def test_lines_that_are_printed_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    session = Session()
    with session.progress("storing") as progress:
        assert progress is not None
        progress(1, 10, "x")
        session.warn("the disk is slow")
        assert terminal.getvalue().endswith(GONE + "mvc: warning: the disk is slow\n")
        progress(2, 10, "y")
        assert drawn(terminal).startswith("storing y")
    progress(3, 10, "z")
    assert terminal.getvalue().endswith(GONE)


def test_what_is_quick_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(output, "SOON", 60)
    with Session().progress("storing") as progress:
        assert progress is not None
        progress(1, 10, "x")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_none_where_it_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", term)
    session = Session()
    session.quiet = term != "dumb"
    with session.progress("storing") as progress:
        assert progress is None
    assert terminal.getvalue() == ""


def test_commands_that_only_read(mvc: Mvc, people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    people.allow("ada")
    people.act("ada")
    for value in range(3):
        mvc.write(value)
        mvc("commit", "model.safetensors", "-m", f"v{value}", "--deploy", "prod")
    mvc.write(3, "other.safetensors")
    for command, step, done, code in (
        ("verify", "checking signatures", "6/6", 0),
        ("verify HEAD HEAD~1", "checking versions", "2/2", 0),
        ("identify model.safetensors", "reading model.safetensors", "bytes", 0),
        ("identify other.safetensors", "comparing other.safetensors", "bytes", 1),
        ("stats", "reading versions", "kB", 0),
        ("stats --versions", "reading versions", "kB", 0),
    ):
        terminal = on_a_terminal(monkeypatch, 120)
        mvc(*command.split(), code=code)
        shown = terminal.getvalue()
        assert re.search(rf"{step} [^\n]*{done} .* [-0-9]+:", shown), (command, shown)
        quiet = on_a_terminal(monkeypatch)
        mvc("-q", *command.split(), code=code)
        assert GONE not in quiet.getvalue(), command
