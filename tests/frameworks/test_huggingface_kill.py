"""kill -9 in the middle of a Trainer's run; a new process goes on bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from tests.frameworks.need import need

need("transformers", "accelerate")

from tests.frameworks.huggingface_runs import SAID, bits, losses, trainer  # noqa: E402
from tests.training.killed import lines_until_killed  # noqa: E402

PROJECT = Path(__file__).parents[2]
STEPS = 14
QUEUE = 2  # states that are staged and not yet durable


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.frameworks.huggingface_runs", *map(str, arguments)],
        cwd=PROJECT, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def killed_at(step: int, folder: Path) -> int:
    """Kills a training once it said ``step``; the last step that it said."""
    lines = lines_until_killed(
        "tests.frameworks.huggingface_runs", "train", folder, STEPS,
        enough=lambda said: said[-1] == f"{SAID} {step}\n".encode(),
    )  # fmt: skip
    return int([line for line in lines if line.startswith(SAID.encode())][-1].split()[1])


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_killed_and_gone_on(tmp_path: Path, one_thread: None) -> None:
    mvc.Repository.init(tmp_path / "models").close()
    said = killed_at(8, tmp_path)
    with mvc.Repository.open(tmp_path / "models") as repo:
        there = [entry.commit.message for entry in repo.log()][::-1]
        assert there == [f"step {n}" for n in range(1, len(there) + 1)]
        assert said - 1 - len(there) <= QUEUE  # the step that was not over is no version yet
        assert repo.storage.fsck(full=True).sound
        with start("resume", tmp_path, STEPS, tmp_path / "result") as child:
            assert child.stdout is not None
            child.stdout.read()
        assert child.returncode == 0
        assert len(list(repo.log())) == STEPS
    gone_on: dict[str, Any] = torch.load(tmp_path / "result", weights_only=True)
    whole = trainer(tmp_path / "whole", [], max_steps=STEPS)
    whole.train()
    assert gone_on["bits"] == bits(whole)
    assert gone_on["losses"] == losses(whole)[len(there) :]
