"""Two processes: the first one writes, and each gets its own generators back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import mvc
from tests.frameworks.need import need

need("transformers", "accelerate")

PROJECT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def test_two_processes(tmp_path: Path) -> None:
    for name in ("trainer", "accelerate"):
        mvc.Repository.init(tmp_path / name).close()
    port = free_port()
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.frameworks.huggingface_ranks_runs", str(tmp_path)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, **common, "ACCELERATE_USE_CPU": "true",
                "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            },
        )
        for n in (0, 1)
    ]  # fmt: skip
    said = [child.communicate()[0] for child in children]
    for n, text in enumerate(said):
        assert f"trainer {n} True" in text
        assert f"accelerate {n} True" in text
    with mvc.Repository.open(tmp_path / "trainer") as repo:
        assert len(list(repo.log())) == 5
    with mvc.Repository.open(tmp_path / "accelerate") as repo:
        assert len(list(repo.log())) == 1
