"""What users of git type."""

from __future__ import annotations

from mvc import __version__


def test_help_and_version(mvc) -> None:
    assert mvc("help").out == mvc("--help").out
    assert mvc("help", "log").out == mvc("log", "--help").out
    assert "no command 'nope'" in mvc("help", "nope", code=2).err
    assert mvc("-V").out == f"mvc {__version__}\n"
