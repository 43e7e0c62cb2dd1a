"""A change of a Follower has one end: model, file and ``current`` are of one version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mvc
from mvc.errors import MvcError, StorageFull


class _Failed(Exception):
    pass


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "models") as repo:
        yield repo


def version(value: float, width: int = 2) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((width, width), value), "bias": torch.full((width,), value)}


class Served:
    """What a Follower of ``prod`` serves in a model and a place; ``fail``: its act raises."""

    def __init__(self, repo: mvc.Repository, tmp_path: Path, form: str) -> None:
        self.fail, self.tried = False, list[Any]()
        self.model, self.form = nn.Linear(2, 2), form
        with torch.no_grad():
            self.model.weight.fill_(-1.0)
        self.place = tmp_path / ("served" if form == "folder" else "served.safetensors")
        sink = mvc.FolderSink if form == "folder" else mvc.FileSink
        self.follower = mvc.Follower(
            repo, "prod", mvc.ModelSink(self.model), sink(self.place), on_change=self.act
        )

    def act(self, deployed: Any) -> None:
        self.tried.append(self.values())
        if self.fail:
            raise _Failed

    def values(self) -> tuple[float, float | None]:
        file = self.place / "model.safetensors" if self.form == "folder" else self.place
        there = float(load_file(file)["weight"][0, 0]) if file.exists() else None
        return self.model.weight[0, 0].item(), there

    @property
    def names(self) -> set[str]:
        """What lies beside the place, but for the folders of ``atomic_dir``."""
        found = {path.name for path in self.place.parent.iterdir()}
        return {name for name in found if not name.startswith(".mvc-dir-")} - {"models"}


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_version_that_does_not_fit_the_model(repo, tmp_path: Path, form: str) -> None:
    first = repo.commit(version(1.0), deploy="prod").id
    served = Served(repo, tmp_path, form)
    served.follower.poll()
    repo.commit(version(2.0, width=3), deploy="prod")
    for _ in range(2):
        with pytest.raises(MvcError, match="does not fit the model"):
            served.follower.poll()
        assert served.values() == (1.0, 1.0)
        assert served.follower.current.commit == first
        assert served.names == {served.place.name}


@pytest.mark.parametrize("form", ["file", "folder"])
def test_an_act_that_fails(repo, tmp_path: Path, form: str) -> None:
    first = repo.commit(version(1.0), deploy="prod").id
    served = Served(repo, tmp_path, form)
    served.follower.poll()
    for value in (2.0, 3.0):
        repo.commit(version(value), deploy="prod")
        served.fail = True
        for _ in range(2):
            with pytest.raises(_Failed):
                served.follower.poll()
            assert served.tried[-1] == (value, value)  # it sees the new version
            assert served.values() == (1.0, 1.0)
            assert served.follower.current.commit == first
            assert served.names == {served.place.name}
    served.fail = False
    assert served.follower.poll() is not None
    assert served.values() == (3.0, 3.0)
    assert served.follower.poll() is None
    assert served.names == {served.place.name}


@pytest.mark.parametrize("form", ["file", "folder"])
def test_the_first_version_that_fails_leaves_what_there_was(repo, tmp_path, form: str) -> None:
    repo.commit(version(1.0), deploy="prod")
    served = Served(repo, tmp_path, form)
    served.fail = True
    with pytest.raises(_Failed):
        served.follower.poll()
    assert served.tried == [(1.0, 1.0)]
    assert served.values() == (-1.0, None)
    assert served.names == set()
    assert served.follower.current is None


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_file_that_cannot_be_written(repo, tmp_path, monkeypatch, form: str) -> None:
    first = repo.commit(version(1.0), deploy="prod").id
    served = Served(repo, tmp_path, form)
    served.follower.poll()
    repo.commit(version(2.0), deploy="prod")

    def full(*_: object, **__: object) -> None:
        raise StorageFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("mvc.repo.checkout.checkout.fill_file", full)
        with pytest.raises(StorageFull):
            served.follower.poll()
    assert served.values() == (1.0, 1.0)
    assert served.follower.current.commit == first
    served.follower.poll()
    assert served.values() == (2.0, 2.0)


def test_back_to_a_file_whose_version_is_not_in_the_repository_any_more(repo, tmp_path) -> None:
    served = Served(repo, tmp_path, "file")
    repo.commit(version(1.0), deploy="prod")
    served.follower.poll()
    bytes_before = served.place.read_bytes()
    repo.commit(version(2.0), deploy="prod")
    repo.storage.forget("HEAD~1")
    served.fail = True
    with pytest.raises(_Failed):
        served.follower.poll()
    assert served.values() == (1.0, 1.0)
    assert served.place.read_bytes() == bytes_before
