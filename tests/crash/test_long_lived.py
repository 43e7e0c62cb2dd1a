"""Processes that keep a repository open while its index is rebuilt, deleted or exchanged.

The index is disposable. Whatever becomes of it, at whatever moment, no acknowledged version
and no deployment is lost, no answer is wrong, no error is raised. Stories run step by step,
crowds all at once. ``test_index_guards.py`` shows that every protection is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.crash.long_lived import F1
from tests.seeds import draw

PROJECT = Path(__file__).parents[2]
ROUNDS, STORIES = 10, 60  # long: rounds, and stories in each


def _run(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.crash.{module}", *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The counters of a run; what went wrong is shown where a test fails."""
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


def _counted(name: str, done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Counters of a run in which nothing went wrong."""
    counted = told(done)
    count(name, **counted)
    for what in ("lost", "wrong", "alarms", "foreign"):
        assert counted[what] == 0, done.stderr
    return counted


def _stories(otherwise: Path, number: int) -> None:
    seed = draw("long-lived processes").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        done = _run("long_lived", folder, seed, 0, number)
    counted = _counted("long-lived processes, index taken away between steps", done)
    assert counted["stories"] == number


def _beside(otherwise: Path, processes: int, seconds: float) -> None:
    seed = draw("long-lived processes").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        done = _run("beside", folder, seed, processes, seconds)
    name = f"{processes} processes at once, index taken away all the while"
    counted = _counted(name, done)
    for what in ("commits", "deployments", "looks", "checks", "disturbances"):
        assert counted[what] > 0


def test_a_rebuild_beside_open_repositories_loses_nothing(tmp_path: Path) -> None:
    """Two acknowledged versions of three were once lost by this story."""
    with folder_in_memory(tmp_path) as folder:
        done = _run("long_lived", folder, "story", F1.text())
    assert done.returncode == 0, done.stderr


def test_an_index_taken_away_between_steps_takes_nothing_else(tmp_path: Path) -> None:
    _stories(tmp_path, 12)


def test_an_index_taken_away_beside_running_processes_takes_nothing_else(tmp_path: Path) -> None:
    _beside(tmp_path, 4, 8)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_an_index_taken_away_takes_nothing_else_in_600_stories(round_: int, tmp_path: Path) -> None:
    _stories(tmp_path, STORIES)


@pytest.mark.long
def test_an_index_taken_away_beside_processes_takes_nothing_else_in_4_minutes(
    tmp_path: Path,
) -> None:
    _beside(tmp_path, 8, 240)
