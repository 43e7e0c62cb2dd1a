"""A follower that is killed at any change of a file leaves a whole deployed version."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository

POINTS = 5


def follow_until_killed(url: Path, file: Path, number: int) -> int:
    words = ["follow", str(url), "--target", "prod", "-o", str(file), "--once"]
    command = [sys.executable, "-m", "tests.remote.kit.dying", str(number), "mvc", *words]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    "points",
    [POINTS, pytest.param(60, marks=pytest.mark.long)],
)
def test_the_file_is_a_whole_version_whenever_it_is_killed(tmp_path: Path, points: int) -> None:
    file, random = tmp_path / "model.safetensors", np.random.default_rng(points)
    with Repository.init(tmp_path / "remote", bare=True) as repo:
        versions: list[bytes] = []
        state = {"w": np.arange(3000, dtype=np.float32)}
        for point in range(points):
            state["w"][random.integers(3000, size=40)] += 1
            repo.commit(state, message=str(point), deploy="prod")
            repo.checkout("HEAD", path="model.safetensors", to=tmp_path / "x.st", force=True)
            versions.append((tmp_path / "x.st").read_bytes())
            number = int(random.integers(1, 60))
            code = follow_until_killed(repo.root, file, number)
            assert code in (0, -9)
            assert not file.exists() or file.read_bytes() in versions
            if point % 3 == 2:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # nothing of it is something else's
                    mvc.follow(repo.root, "prod", to=file, once=True)
                assert file.read_bytes() == versions[-1]
