"""kill -9 in the middle of 200 recorded steps: what was acknowledged is back, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import UnknownRevision
from mvc.repo.history.log import LogEntry
from tests.counters import count
from tests.seeds import draw
from tests.training.child import STEPS, digest
from tests.training.killed import lines_until_killed

QUEUE = 2  # states that are staged and not yet durable


def kill_in_the_middle(folder: Path, at: int, delay: float) -> tuple[int, int]:
    """Kills a child soon after it called step ``at``; returns versions found and versions lost."""
    lines = lines_until_killed(
        "tests.training.child", folder,
        enough=lambda said: said[-1].startswith(b"call %d " % at), delay=delay,
    )  # fmt: skip
    called: dict[int, str] = {}
    returned = durable = 0
    for word, number, value in map(bytes.split, lines):
        if word == b"call":
            called[int(number)] = value.decode()
        else:
            returned, durable = int(number), int(value)
    with mvc.Repository.open(folder) as repo:
        log = history(repo)
        for number, entry in enumerate(log, 1):
            assert entry.commit.message == f"step {number}"
            assert digest(repo.checkout(entry.id)) == called[number]
        assert durable <= len(log)  # acknowledged
        assert returned - len(log) <= QUEUE
        assert repo.storage.fsck(full=True).sound
        resumes(repo, len(log))
    return len(log), max(returned - len(log), 0)


def history(repo: mvc.Repository) -> list[LogEntry]:
    """From oldest to newest; empty where the first version was not finished."""
    try:
        return list(repo.log())[::-1]
    except UnknownRevision:
        return []


def resumes(repo: mvc.Repository, versions: int) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    if versions:
        assert mvc.resume(repo, model, optimizer).batch == versions


@pytest.mark.parametrize("at", [1, 20, 60])
def test_killed(tmp_path: Path, at: int) -> None:
    kill_in_the_middle(tmp_path, at, 0.001 * at)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(2))
def test_killed_many_times(round_: int, tmp_path: Path) -> None:
    random_ = draw("recorder")
    for i in range(10):
        folder = tmp_path / str(i)
        found, lost = kill_in_the_middle(
            folder, random_.randrange(1, STEPS), random_.random() * 0.05
        )
        count("recorder kills", tried=1, versions=found, lost=lost, max_lost=lost)
