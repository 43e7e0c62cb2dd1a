"""Tensors without elements: as cheap as nothing, and never in anybody's way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mvc.repo.repository import Repository

PIPELINES = ("vsol", "planes:all", "sub | zigzag | sparse | zstd:1", "lossless")
# What the empty tensor is in one version after the other; the last version holds nothing else.
EMPTY = [
    np.zeros((0,), np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((3, 0), np.float64),
    np.zeros((3, 0), np.uint8),
]


def state(i: int) -> dict[str, np.ndarray]:
    weights = {f"w{n}": np.arange(5 + n, dtype=np.float32) + i for n in range(3)}
    return {"e": EMPTY[i]} | (weights if i + 1 < len(EMPTY) else {})


@pytest.fixture(params=PIPELINES)
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    repo = Repository.init(tmp_path / "models")
    for i in range(len(EMPTY)):
        repo.commit(state(i), pipeline=request.param)
    return repo


def check(repo: Repository) -> None:
    """Every version comes back by each way there is, and nothing is wrong with it."""
    assert not repo.fsck(full=True).problems
    for i, (_, found) in enumerate(repo.iter_versions()):
        by_id = repo.checkout(f"HEAD~{len(EMPTY) - 1 - i}")
        for back in (found, by_id):
            assert back.keys() == state(i).keys()
            for key, wanted in state(i).items():
                assert back[key].dtype == wanted.dtype and np.array_equal(back[key], wanted)


def test_every_version_is_checked_and_comes_back(repo: Repository) -> None:
    check(repo)


@pytest.mark.parametrize(
    "act",
    [
        lambda repo: repo.repair(full=True),
        lambda repo: repo.repack(interval=1),
        lambda repo: repo.repack(interval=9),
        lambda repo: (repo.commit({"e": EMPTY[0]}), repo.undo(), repo.gc(grace="0s")),
    ],
    ids=["repair", "repack-full", "repack-deltas", "gc"],
)
def test_maintenance_keeps_them(repo: Repository, act: Callable[[Repository], object]) -> None:
    act(repo)
    check(repo)


def test_they_differ_by_type_and_shape(repo: Repository) -> None:
    for old, new in ((3, 2), (2, 1), (1, 0)):
        (file,) = repo.diff(f"HEAD~{old}", f"HEAD~{new}").files
        (row,) = [t for t in file.tensors if t.key == "e"]
        assert row.kind == "resized" or row.old_spec != row.new_spec
    (file,) = repo.diff("HEAD", "HEAD").files
    assert file.kind == "unchanged"


def test_files_with_them_are_written_and_found_again(repo: Repository, tmp_path: Path) -> None:
    for i in range(len(EMPTY)):
        place = tmp_path / f"{i}.safetensors"
        repo.restore(f"HEAD~{i}", output=place)
        assert repo.identify(place)[0].commit == repo.find(f"HEAD~{i}")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_they_are_healed_from_another_repository(
    repo: Repository, tmp_path: Path, share: float
) -> None:
    repo.close()
    shutil.copytree(repo.root, tmp_path / "other")
    (pack,) = (repo.root / ".mvc/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[int(share * len(data))] ^= 0xFF
    pack.write_bytes(data)
    with Repository.open(repo.root) as damaged:
        damaged.repair(full=True, other=tmp_path / "other")
        check(damaged)
