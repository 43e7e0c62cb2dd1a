"""kill -9 of a training at random moments, by every framework: each acknowledged version is there
bit for bit, and another process goes on from the newest one until it is killed in turn. The last
process ends with the bits of a training that never stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import UnknownRevision
from mvc.repo.history.log import LogEntry
from tests.counters import count
from tests.frameworks.killed_runs import CHECKPOINTS, PATHS
from tests.frameworks.need import need
from tests.frameworks.trainings import NAMES, digests
from tests.seeds import draw
from tests.training.killed import lines_until_killed

PROJECT = Path(__file__).parents[2]
PROGRAM = "tests.frameworks.killed_runs"
NEEDED = {"fsspec": ["fsspec"], "dcp": ["torch"], **NAMES}
AHEAD = 12  # steps of a process before it is killed, at most
STAGED = 4  # versions that may be lost: two in the queue, one being written, one not over


def history(folder: Path) -> list[LogEntry]:
    """From oldest to newest; empty where the first version was not finished."""
    with mvc.Repository.open(folder) as repo:
        try:
            return list(repo.log())[::-1]
        except UnknownRevision:
            return []


def check(name: str, folder: Path, before: list[LogEntry], lines: list[bytes]) -> tuple[int, int]:
    """How many versions the killed process acknowledged, and how many of its are there."""
    calls = [set(line.decode().split()[1:]) for line in lines if line.startswith(b"call ")]
    told = [int(line.split()[1]) for line in lines if line.startswith(b"durable ")]
    known = {entry.id for entry in before}
    new = [entry for entry in history(folder) if entry.id not in known]
    acknowledged = max(told, default=0)
    assert acknowledged <= len(new)
    assert len(calls) - len({entry.commit.message for entry in new}) <= STAGED or name in PATHS
    path, said, here = PATHS.get(name, "model.safetensors"), iter(calls), {"none yet"}
    with mvc.Repository.open(folder) as repo:
        for entry in new:
            # In order; the end of an epoch is a version of the weights of its last batch.
            stored = digests(_tensors(repo.checkout(entry.id, path=path)))
            while not here <= stored:
                here = next(said)
        assert repo.storage.fsck(full=True).sound
    return acknowledged, len(new)


def _tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in _tensors(value)]
    return [state] if isinstance(state, torch.Tensor) else []


def to_the_end(name: str, folder: Path, steps: int) -> bytes:
    """The digest of all bits of a training that is not killed."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, name, str(folder), str(steps)],
        cwd=PROJECT, stdout=subprocess.PIPE, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    last = done.stdout.splitlines()[-1]
    assert last.startswith(b"bits ")
    return last


def kill_again_and_again(name: str, folder: Path, kills: int) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    for module in NEEDED[name]:
        need(module)
    rng, sums, steps = draw(f"killed {name}"), [0, 0], (kills + 1) * AHEAD
    for _ in range(kills):
        before = history(folder / "models") if (folder / "models" / ".mvc").exists() else []
        wanted = rng.randrange(3, AHEAD)
        lines = lines_until_killed(
            PROGRAM, name, folder / "models", steps,
            enough=lambda lines, n=wanted: sum(c.startswith(b"call ") for c in lines) >= n,
            delay=rng.random() * 0.05,
        )  # fmt: skip
        acknowledged, versions = check(name, folder / "models", before, lines)
        sums[0] += acknowledged
        sums[1] += versions
    assert sums[0] > 0
    count(f"killed trainings, {name}", kills=kills, acknowledged=sums[0], versions=sums[1], lost=0)
    if name in NAMES:
        whole = to_the_end(name, folder / "whole" / "models", steps)
        assert to_the_end(name, folder / "models", steps) == whole


def test_every_framework_is_killed() -> None:
    assert set(NEEDED) == {*CHECKPOINTS, *NAMES}
    assert all(find_spec(f"mvc.frameworks.{name}") for name in NEEDED)


@pytest.mark.parametrize("name", [*NEEDED])
def test_killed_and_gone_on(name: str, tmp_path: Path) -> None:
    kill_again_and_again(name, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [*NEEDED])
def test_killed_many_times(name: str, tmp_path: Path) -> None:
    kill_again_and_again(name, tmp_path, 6)
