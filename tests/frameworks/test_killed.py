"""kill -9 of a training at random moments, by every framework: each acknowledged version is there
bit for bit, and another process goes on from the newest one until it is killed in turn.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import mvc
from mvc.errors import UnknownRevision
from mvc.repo.history.log import LogEntry
from tests.counters import count
from tests.frameworks.killed_runs import PATHS, RUNS, digests
from tests.frameworks.need import need
from tests.seeds import draw
from tests.training.killed import lines_until_killed

NEEDED = {"fsspec": ["fsspec"], "dcp": ["torch"], "huggingface": ["transformers", "accelerate"],
          "keras": ["keras"], "lightning": ["lightning"]}  # fmt: skip


def history(folder: Path) -> list[LogEntry]:
    """From oldest to newest; empty where the first version was not finished."""
    with mvc.Repository.open(folder) as repo:
        try:
            return list(repo.log())[::-1]
        except UnknownRevision:
            return []


def check(name: str, folder: Path, before: list[LogEntry], lines: list[bytes]) -> tuple[int, int]:
    """How many versions the killed process acknowledged, and how many of its are there."""
    calls = iter([set(line.decode().split()[1:]) for line in lines if line.startswith(b"call ")])
    told = [int(line.split()[1]) for line in lines if line.startswith(b"durable ")]
    known = {entry.id for entry in before}
    new = [entry for entry in history(folder) if entry.id not in known]
    acknowledged = max(told, default=0)
    assert acknowledged <= len(new)
    path, said = PATHS.get(name, "model.safetensors"), next(calls, set())
    with mvc.Repository.open(folder) as repo:
        for entry in new:
            # In order; the end of an epoch is a version of the weights of its last batch, and
            # batches that a resumed epoch passes over are none.
            stored = digests(_tensors(repo.checkout(entry.id, path=path)))
            while not said <= stored:
                said = next(calls)
        assert repo.storage.fsck(full=True).sound
    return acknowledged, len(new)


def _tensors(state: object) -> list[object]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in _tensors(value)]
    return [state] if hasattr(state, "detach") else []


def kill_again_and_again(name: str, folder: Path, kills: int) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    for module in NEEDED[name]:
        need(module)
    rng, sums = draw(f"killed {name}"), [0, 0]
    for _ in range(kills):
        before = history(folder) if (folder / ".mvc").exists() else []
        wanted = rng.randrange(3, 25)
        lines = lines_until_killed(
            "tests.frameworks.killed_runs", name, folder,
            enough=lambda lines, n=wanted: sum(c.startswith(b"call ") for c in lines) >= n,
            delay=rng.random() * 0.05,
        )  # fmt: skip
        acknowledged, versions = check(name, folder, before, lines)
        sums[0] += acknowledged
        sums[1] += versions
    assert sums[0] > 0
    count(f"killed trainings, {name}", kills=kills, acknowledged=sums[0], versions=sums[1], lost=0)


def test_every_framework_is_killed() -> None:
    assert set(NEEDED) == set(RUNS)
    assert all(find_spec(f"mvc.frameworks.{name}") for name in RUNS)


@pytest.mark.parametrize("name", [*NEEDED])
def test_killed_and_gone_on(name: str, tmp_path: Path) -> None:
    kill_again_and_again(name, tmp_path / "models", 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [*NEEDED])
def test_killed_ten_times(name: str, tmp_path: Path) -> None:
    kill_again_and_again(name, tmp_path / "models", 10)
