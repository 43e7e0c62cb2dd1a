"""Processes that keep a repository open while its index is rebuilt, deleted or exchanged.

The index is disposable. Whatever becomes of it, at whatever moment, no acknowledged version
and no deployment is lost, no answer is wrong, no error is raised. Stories run step by step,
crowds all at once. ``test_index_guards.py`` shows that every protection is missed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.crash.long_lived import F1
from tests.seeds import draw

ROUNDS, STORIES = 5, 60  # long: rounds, and stories in each


def _run(name: str, module: str, otherwise: Path, *numbers: float) -> Counter[str]:
    """Counters of a run in which nothing went wrong."""
    seed = draw("long-lived processes").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        counted = run(f"crash.{module}", folder, seed, *numbers)
    count(name, **counted)
    assert [counted[what] for what in ("lost", "wrong", "alarms", "foreign")] == [0] * 4
    return counted


def _stories(otherwise: Path, number: int) -> None:
    name = "long-lived processes, index taken away between steps"
    assert _run(name, "long_lived", otherwise, 0, number)["stories"] == number


@pytest.mark.parametrize(
    "processes, seconds", [(4, 8), pytest.param(8, 120, marks=pytest.mark.long)]
)
def test_an_index_taken_away_beside_running_processes_takes_nothing_else(
    tmp_path: Path, processes: int, seconds: float
) -> None:
    name = f"{processes} processes at once, index taken away all the while"
    counted = _run(name, "beside", tmp_path, processes, seconds)
    for what in ("commits", "deployments", "looks", "checks", "disturbances"):
        assert counted[what] > 0


def test_a_rebuild_beside_open_repositories_loses_nothing(tmp_path: Path) -> None:
    """Two acknowledged versions of three were once lost by this story."""
    with folder_in_memory(tmp_path) as folder:
        run("crash.long_lived", folder, "story", F1.text())


def test_an_index_taken_away_between_steps_takes_nothing_else(tmp_path: Path) -> None:
    _stories(tmp_path, 12)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_an_index_taken_away_takes_nothing_else_in_many_stories(
    round_: int, tmp_path: Path
) -> None:
    _stories(tmp_path, STORIES)
