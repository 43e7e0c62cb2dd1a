"""What has open files is not pickled: the error says so, and what to do."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.errors import WrongUsage


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", ["Repository", "Recorder", "Follower"])
def test_the_error_names_the_class(tmp_path: Path, kind: str, act: Callable[[Any], Any]) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        given: Any = repo
        if kind == "Recorder":
            nn = pytest.importorskip("torch.nn")
            given = mvc.Recorder(repo, nn.Linear(2, 2))
        elif kind == "Follower":
            given = mvc.Follower(repo, "prod")
        for held in (given, {"dataset": [given]}):
            with pytest.raises(WrongUsage, match=f"a {kind} cannot be pickled or copied") as error:
                act(held) if act is not copy.copy else act(given)
            assert "open a " + kind in str(error.value.hint)
        given.close()


def _versions(path: Path) -> int:
    with mvc.Repository.open(path) as repo:
        return len(repo.log())


def test_the_way_that_the_hint_names(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with mvc.Repository.init(tmp_path) as repo, spawn.Pool(1) as pool:
        repo.commit({"w": np.ones(3)})
        with pytest.raises(WrongUsage, match="cannot be pickled"):
            pool.apply(_versions, (repo,))
        assert pool.apply(_versions, (tmp_path,)) == 1
