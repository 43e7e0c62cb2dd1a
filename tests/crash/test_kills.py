"""Killed processes: at random moments, and at every call of every operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.seeds import draw


def kill(otherwise: Path, how: str, *numbers: float) -> None:
    seed = draw("kills").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        counted = run("crash.kills", how, folder, seed, *numbers)
    count(f"killed processes, {how}", **counted)
    assert counted["lost"] == 0
    assert counted["kills"] > 50
    assert counted["index_treated"] > 10


def test_processes_killed_at_random_lose_nothing(tmp_path: Path) -> None:
    kill(tmp_path, "random", 1, 60)


def test_processes_killed_at_a_call_lose_nothing(tmp_path: Path) -> None:
    kill(tmp_path, "calls", 0.07)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(3))
def test_many_killed_processes_lose_nothing(round_: int, tmp_path: Path) -> None:
    kill(tmp_path, "random", 10, 100)


@pytest.mark.long
def test_processes_killed_at_every_call_lose_nothing(tmp_path: Path) -> None:
    kill(tmp_path, "calls", 1)
