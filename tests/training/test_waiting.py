"""A commit that does not go on: the recorder says so, has a limit, and names what is not stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mvc import Recorder, Repository
from mvc.errors import Busy
from tests.cli.program import ROOT, spawn

HOLD = """
import sys
from pathlib import Path
from mvc.io.files import FileSystem
lock = FileSystem().lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
RECORD = """
import sys, torch, mvc
model = torch.nn.Linear(3, 3)
recorder = mvc.Recorder(sys.argv[1], model)
recorder.step()
recorder.step()
print("recorded", flush=True)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the journal's lock, and is stopped."""
    Repository.init(tmp_path).close()
    journal = str(tmp_path / ".mvc" / "journal")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, journal],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


def limit(folder: Path, seconds: int) -> None:
    spawn("config", "recorder.timeout", seconds, cwd=folder).check_returncode()


def test_flush_has_a_limit_and_names_the_steps(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    limit(tmp_path, 2)
    with Recorder(tmp_path, torch.nn.Linear(3, 3)) as recorder:
        recorder.step()
        recorder.step()
        with pytest.raises(Busy, match="step 1, 2 is not stored: its commit stalled for 2"):
            recorder.flush()
        with pytest.raises(Busy, match="step 1, 2 is not stored"):
            recorder.step()  # the queue is full
        assert recorder.report.durable == 0
        holder.kill()
        recorder.flush()
    with Repository.open(tmp_path) as repo:
        assert [entry.commit.message for entry in repo.log()] == ["step 2", "step 1"]


def test_the_interpreter_does_not_hang_silently_at_exit(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    limit(tmp_path, 6)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(tmp_path)],
        env=variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "recorded\n"
    assert f"locked by process {holder.pid} (" in done.stderr
    assert "which is stopped," in done.stderr
    assert "Busy: step 1, 2 is not stored: its commit stalled for 6 s" in done.stderr
