"""Params: texts beside the metrics. A commit without any has the bytes it always had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import InvalidName, WrongUsage
from mvc.io.files import FileSystem
from mvc.store.format import read_features
from tests.oracle import reader

STATE = {"w": np.arange(4, dtype=np.float32)}


def features(root: Path) -> frozenset[str]:
    return read_features(FileSystem(), root / ".mvc")


def test_params_are_kept_as_texts_and_read_by_the_oracle(tmp_path: Path) -> None:
    given = {
        "lr": 1e-3, "epochs": 3, "amp": True, "schedule": None, "layers": [64, {"act": "relu"}],
        "data": "cifar-10", "seed": np.int64(7), "scale": torch.tensor(0.5),
    }  # fmt: skip
    with mvc.Repository.init(tmp_path) as repo:
        made = repo.commit(STATE, params=given)
        assert repo.version(made.id).params == {
            "lr": "0.001", "epochs": "3", "amp": "true", "schedule": "null",
            "layers": '[64, {"act": "relu"}]', "data": "cifar-10", "seed": "7", "scale": "0.5",
        }  # fmt: skip
        kept = dict(repo.version().params)
    assert reader.Repository(tmp_path / ".mvc").commits[made.id].params == kept
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.version().params == kept
        assert repo.storage.fsck(full=True).sound


def test_what_is_no_param_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(WrongUsage, match="param 'f' is neither text nor plain data: function"):
            repo.commit(STATE, params={"f": features})
        with pytest.raises(WrongUsage, match="the param a is longer than 1024 bytes"):
            repo.commit(STATE, params={"a": "x" * 1025})
        with pytest.raises(WrongUsage, match="more than 1000 params"):
            repo.commit(STATE, params={f"p{i}": i for i in range(1001)})
        with pytest.raises(InvalidName):
            repo.commit(STATE, params={"a\nb": 1})
        with pytest.raises(mvc.MvcError):
            repo.version()
        most = {"n" * 1000 + f"{i:04}": "v" * 1024 for i in range(1000)}
        metrics = dict.fromkeys(most, 1.0)
        made = repo.commit(STATE, params=most, metrics=metrics, message="m" * (1 << 20))
        assert repo.version(made.id).params == most


def test_diff_tells_metrics_and_params_that_differ(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        nan = float("nan")
        repo.commit(STATE, metrics={"acc": 0.9, "x": nan, "only": 1}, params={"lr": 1, "d": "a"})
        repo.commit(STATE, metrics={"acc": 0.95, "x": nan}, params={"lr": 2, "d": "a", "new": "n"})
        found = repo.diff("HEAD~1", "HEAD")
        assert found.metrics == {"acc": (0.9, 0.95), "only": (1.0, None)}
        assert found.params == {"lr": ("1", "2"), "new": (None, "n")}
        assert repo.diff("HEAD", "HEAD").metrics == {}
