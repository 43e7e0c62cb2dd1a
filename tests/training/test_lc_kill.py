"""kill -9 of a Recorder with approximated checkpoints, which a new process resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mvc
from mvc.errors import UnknownRevision
from tests.counters import count
from tests.seeds import draw
from tests.training.child import digest
from tests.training.killed import lines_until_killed
from tests.training.lc_child import model


def run_until_killed(folder: Path, after: int, delay: float) -> dict[str, str]:
    """Kills a child some time after it acknowledged ``after`` versions; returns these."""
    lines = lines_until_killed(
        "tests.training.lc_child", folder, enough=lambda said: len(said) >= after, delay=delay
    )
    found = [line.decode().split() for line in lines]
    return {words[1]: words[2] for words in found if len(words) == 3}


def check(folder: Path, saved: dict[str, str]) -> int:
    """Every acknowledged version is as its encoder had it, and the newest can be resumed."""
    with mvc.Repository.open(folder) as repo:
        try:
            log = [str(entry.id) for entry in repo.log()]
        except UnknownRevision:
            log = []
        assert saved.keys() <= set(log)
        found = {}
        for commit, state in repo.iter_versions(path="model.safetensors"):
            found[str(commit.id)] = digest(state)
        assert {name: found[name] for name in saved} == saved
        if log:
            trained = model()
            resumed = mvc.resume(repo, trained, torch.optim.Adam(trained.parameters()))
            assert resumed.step == len(log) and resumed.batch == len(log) - 1
            assert digest(trained.state_dict()) == found[log[0]]
    return len(log)


def kill_again_and_again(folder: Path, moments: list[tuple[int, float]]) -> int:
    """Kills and resumes one training; returns how many versions there are in the end."""
    saved: dict[str, str] = {}
    versions = 0
    for after, delay in moments:
        saved |= run_until_killed(folder, after, delay)
        versions = check(folder, saved)
    with mvc.Repository.open(folder) as repo:
        assert repo.storage.fsck(full=True).sound
    return versions


def test_killed_and_resumed(tmp_path: Path) -> None:
    random_ = draw("lc recorder")
    moments = [(random_.randrange(1, 20), random_.random() * 0.05) for _ in range(2)]
    assert kill_again_and_again(tmp_path, moments)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(5))
def test_killed_many_times(round_: int, tmp_path: Path) -> None:
    random_ = draw("lc recorder")
    moments = [(random_.randrange(1, 30), random_.random() * 0.1) for _ in range(5)]
    versions = kill_again_and_again(tmp_path, moments)
    count("lc recorder kills", tried=len(moments), versions=versions)
