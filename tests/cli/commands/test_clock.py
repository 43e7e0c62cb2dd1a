"""A clock that stands where no time can be recorded, as the command line tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.io.clock import Clock
from tests.cli.program import Mvc

CLOCKS = {"1969": -1, "2400": 430 * 31_556_952 * 10**9}
WRITES = [
    ("commit", "-a"),
    ("commit", "model.safetensors", "--deploy", "prod"),
    ("deploy", "HEAD", "prod"),
    ("tag", "v1"),
    ("branch", "side"),
    ("checkout", "HEAD~1", "-f"),
    ("gc",),
    ("repack", "--interval", "1"),
    ("fsck", "--repair"),
    ("undo",),
    ("init", "new/er"),
]
READS = [("log",), ("status",), ("fsck", "--full"), ("stats",), ("deploy",), ("show", "HEAD")]


@pytest.mark.parametrize("now", CLOCKS.values(), ids=CLOCKS)
def test_one_clear_line(mvc: Mvc, monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    mvc.commit(1.0)
    mvc.commit(2.0)
    mvc.write(3.0)
    monkeypatch.setattr(Clock, "now_ns", lambda self: now)
    before = mvc("log", "--json").out
    for arguments in WRITES:
        said = mvc(*arguments, code=3).err.splitlines()
        assert "the system's clock shows" in said[0], arguments
        assert len(said) == 2 and "set the clock" in said[1], arguments
    for arguments in READS:
        mvc(*arguments)
    assert mvc("log", "--json").out == before
    assert not Path("new").exists()
