"""A change of a Follower has one end: all models and ``current`` are of one version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import MvcError


class _Failed(Exception):
    pass


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "models") as repo:
        yield repo


def version(value: float, width: int = 2) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 2), value), "bias": torch.full((width,), value)}


class Served:
    """What a Follower of ``prod`` serves in two models; ``fail``: its act raises."""

    def __init__(self, repo: mvc.Repository) -> None:
        self.fail, self.tried = False, list[Any]()
        self.models = nn.Linear(2, 2), nn.Linear(2, 2)
        for model in self.models:
            nn.init.constant_(model.weight, -1.0)
        sinks = map(mvc.ModelSink, self.models)
        self.follower = mvc.Follower(repo, "prod", *sinks, on_change=self.act)

    def act(self, deployed: Any) -> None:
        self.tried.append(self.values)
        if self.fail:
            raise _Failed

    @property
    def values(self) -> list[float]:
        return [model.weight[0, 0].item() for model in self.models]


def test_a_version_that_does_not_fit_one_of_the_models(repo) -> None:
    states = {name: version(1.0) for name in "ab"}
    first = repo.commit(states=states, deploy="prod").id
    models = nn.Linear(2, 2), nn.Linear(2, 2)
    sinks = [mvc.ModelSink(m, path=p) for m, p in zip(models, "ab", strict=True)]
    follower = mvc.Follower(repo, "prod", *sinks)
    follower.poll()
    repo.commit(states={"a": version(2.0), "b": version(2.0, width=3)}, deploy="prod")
    for _ in range(2):
        with pytest.raises(MvcError, match="does not fit the model"):
            follower.poll()
        assert [model.weight[0, 0].item() for model in models] == [1.0, 1.0]
        assert follower.current.commit == first


def test_an_act_that_fails(repo) -> None:
    first = repo.commit(version(1.0), deploy="prod").id
    served = Served(repo)
    served.follower.poll()
    for value in (2.0, 3.0):
        repo.commit(version(value), deploy="prod")
        served.fail = True
        for _ in range(2):
            with pytest.raises(_Failed):
                served.follower.poll()
            assert served.tried[-1] == [value, value]  # it sees the new version
            assert served.values == [1.0, 1.0]
            assert served.follower.current.commit == first
    served.fail = False
    assert served.follower.poll() is not None
    assert served.values == [3.0, 3.0]
    assert served.follower.poll() is None


def test_the_first_version_that_fails_leaves_what_there_was(repo) -> None:
    repo.commit(version(1.0), deploy="prod")
    served = Served(repo)
    served.fail = True
    with pytest.raises(_Failed):
        served.follower.poll()
    assert served.tried == [[1.0, 1.0]]
    assert served.values == [-1.0, -1.0]
    assert served.follower.current is None


def test_back_to_a_version_that_is_not_in_the_repository_any_more(repo) -> None:
    served = Served(repo)
    repo.commit(version(1.0), deploy="prod")
    served.follower.poll()
    repo.commit(version(2.0), deploy="prod")
    repo.storage.forget("HEAD~1")
    served.fail = True
    with pytest.raises(_Failed):
        served.follower.poll()
    assert served.values == [1.0, 1.0]
