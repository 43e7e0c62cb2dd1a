from __future__ import annotations

import io
import sys

from mvc.cli.session import Session


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_where_it_is_seen(monkeypatch) -> None:
    session = Session()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with session.progress("committing") as callback:
        assert callback is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    session.verbosity = -1
    with session.progress("committing") as callback:
        assert callback is None


def test_draws_and_cleans_up(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Session().progress("committing") as callback:
        assert callback is not None
        callback(1, 0, "a[b]\x1b.pt")
        callback(500_000, 1_000_000, "x" * 200)
    drawn = terminal.getvalue()
    assert "committing" in drawn
    assert "\x1b]" not in drawn
    assert drawn.endswith("\x1b[2K") or "\x1b[?25h" in drawn  # the cursor is back
