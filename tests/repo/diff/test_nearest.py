"""The version that is nearest to a file that no version has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.errors import UnknownPath

State = dict[str, np.ndarray]


def state(seed: int, **replaced: np.ndarray) -> State:
    rng = np.random.default_rng(seed)
    names = [*(f"layer{i}.weight" for i in range(14)), "classifier.weight"]
    return {n: rng.standard_normal((8, 9)).astype(np.float32) for n in names} | replaced


def written(folder: Path, tensors: State) -> Path:
    save_file(tensors, folder / "found.safetensors")
    return folder / "found.safetensors"


def test_names_the_version_and_what_differs(repo: mvc.Repository, tmp_path: Path) -> None:
    """Of versions with as many equal tensors the one whose others are closest."""
    base = state(1)
    made = []
    for n in range(30):  # only the classifier is trained
        head = base["classifier.weight"] + np.float32(n)
        made.append(repo.commit(base | {"classifier.weight": head}).id)
        repo.commit(state(100 + n))
    head = base["classifier.weight"] + np.float32(12) - np.float32(1e-3)
    found = repo.nearest(written(tmp_path, base | {"classifier.weight": head}))
    assert found is not None and found.commit == made[12] and found.complete
    assert (found.tensors, found.equal, found.path) == (15, 14, "model.safetensors")
    (row,) = found.differing
    assert (row.key, row.kind) == ("classifier.weight", "changed")
    assert row.max_abs == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("changed", ["rounded", "wrapped"])
def test_every_tensor_differs(repo: mvc.Repository, tmp_path: Path, changed: str) -> None:
    """As after a rounding to fewer bits, or after more training under the names of a wrapper."""
    ids = [repo.commit(state(seed)).id for seed in range(5)]
    near = {name: value.astype(np.float16) for name, value in state(3).items()}
    if changed == "wrapped":
        near = {f"module.{name}": value.astype(np.float32) for name, value in near.items()}
    found = repo.nearest(written(tmp_path, near))
    assert found is not None and (found.commit, found.equal) == (ids[3], 0)
    differences = [row.max_abs or 0.0 for row in found.differing]
    assert differences == sorted(differences, reverse=True) and 0 < differences[0] < 1e-2


def test_another_shape_a_new_tensor_and_one_that_is_gone(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    repo.commit(state(1))
    tensors = state(1, extra=np.ones(3), **{"classifier.weight": np.ones((3, 9), np.float32)})
    del tensors["layer0.weight"]
    found = repo.nearest(written(tmp_path, tensors))
    assert found is not None and (found.tensors, found.equal) == (15, 13)
    assert {row.key: row.kind for row in found.differing} == {
        "classifier.weight": "resized", "extra": "added", "layer0.weight": "removed",
    }  # fmt: skip


def test_nothing_is_alike(repo: mvc.Repository, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("text")
    assert repo.nearest(written(tmp_path, state(1))) is None
    repo.commit({"other": np.ones((2, 2))})
    assert repo.nearest(written(tmp_path, state(1))) is None
    assert repo.nearest(tmp_path / "empty.txt") is None
    with pytest.raises(UnknownPath):
        repo.nearest(tmp_path / "absent")


def test_forgotten_and_damaged_versions_are_passed_over(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    kept = repo.commit(state(1)).id
    other = repo.commit(state(1, **{"classifier.weight": np.ones((8, 9), np.float32)})).id
    repo.commit(state(2))
    near = state(1, **{"classifier.weight": np.full((8, 9), 1.01, np.float32)})
    path = written(tmp_path, near)
    first: Any = repo.nearest(path)
    assert first.commit == other
    repo.storage.forget([other])
    found = repo.nearest(path)
    assert found is not None and found.commit == kept
