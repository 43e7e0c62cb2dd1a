"""kill -9 in the middle of ``fit``; another process goes on with the same bits."""

# ruff: noqa: E402 (the backend is set, and Keras looked for, before anything imports it)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.frameworks.need import need

os.environ["KERAS_BACKEND"] = "torch"
need("keras")

import mvc
from tests.frameworks.keras_runs import digest, fit, made
from tests.training.killed import lines_until_killed

PROJECT = Path(__file__).parents[2]


def child(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.frameworks.keras_runs", str(folder), *arguments],
        cwd=PROJECT, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_killed_in_the_middle_of_an_epoch_and_resumed(tmp_path: Path) -> None:
    """Three processes: one is killed, one goes on, and this one never stopped."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = made()
    fit(whole, epochs=4)
    torch.set_num_threads(threads)
    mvc.Repository.init(tmp_path).close()
    lines_until_killed(
        "tests.frameworks.keras_runs", tmp_path, 400, 0,
        enough=lambda said: int(said[-1].split()[1]) >= 7,
    )  # fmt: skip
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.storage.fsck().sound
        first = list(repo.log())[-7]
        assert first.commit.message == "step 7"
    said, _ = child(tmp_path, "4", "99", first.id.hex()).communicate()
    assert said.splitlines()[-2:] == [b"differs 0", f"digest {digest(whole)}".encode()]
