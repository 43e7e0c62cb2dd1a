"""``commit -a`` does not put a file of an older version over what a training recorded since."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import WouldOverwrite, WrongUsage
from tests.repo.working import write_model

ALL = mvc.FileOptions(all=True)


def train(repo: mvc.Repository, steps: int) -> None:
    for step in range(steps):
        repo.commit({"w": np.full(9, step)}, message=f"step {step + 1}")


@pytest.fixture
def repo(tmp_path: Path) -> mvc.Repository:
    """The file is as in the first version; a training recorded two more."""
    repo = mvc.Repository.init(tmp_path)
    train(repo, 1)
    repo.checkout(to=repo.root)
    train(repo, 3)
    return repo


def test_the_older_file_is_refused_and_the_version_named(repo: mvc.Repository) -> None:
    first, head = repo.find("HEAD~2"), repo.find()
    with pytest.raises(
        WouldOverwrite, match=f"has the content of version {first.short}, but HEAD is newer"
    ):
        repo.commit(files=ALL)
    write_model(repo.root / "new.safetensors")
    with pytest.raises(WouldOverwrite):
        repo.commit(repo.root / "new.safetensors", files=ALL)
    assert repo.find() == head


def test_its_name_records_it(repo: mvc.Repository) -> None:
    first = repo.manifest("HEAD~2")
    repo.commit(repo.root / "model.safetensors", files=ALL)
    assert repo.manifest().root == first.root


def test_a_file_that_no_version_has_is_recorded(repo: mvc.Repository) -> None:
    write_model(repo.root / "model.safetensors", seed=5)
    assert [path.kind for path in repo.commit(files=ALL).paths] == ["changed"]


def test_files_that_were_files_go_back(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for seed in (0, 1):
            write_model(tmp_path / "m.safetensors", seed=seed)
            repo.commit(tmp_path / "m.safetensors")
        write_model(tmp_path / "m.safetensors", seed=0)
        repo.commit(files=ALL)
        assert repo.manifest().root == repo.manifest("HEAD~2").root


def test_options_of_files_need_a_place_for_them(repo: mvc.Repository) -> None:
    with pytest.raises(WrongUsage, match="need to="):
        repo.checkout(force=True, atomic_dir=False)
