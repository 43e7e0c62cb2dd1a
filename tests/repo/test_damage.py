"""Going on after damage: another way around it, reset points that mend it, leaving a bad HEAD."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import DamagedData
from mvc.store.graph.search import PathStep
from mvc.testing import fresh_process


def spoil(root: Path, step: PathStep) -> None:
    """Flips a bit of a payload."""
    path = root / ".mvc" / "packs" / f"{step.pack:08d}.pack"
    data = bytearray(path.read_bytes())
    data[step.offset + step.header.body_at + step.member.at + step.member.stored // 2] ^= 4
    path.write_bytes(data)


def weights(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    start = random.standard_normal(5000).astype(np.float32)
    return {"w": start + np.float32(1e-3) * np.float32(seed)}


def only_step(repo: mvc.Repository, rev: str = "HEAD") -> PathStep:
    content = repo.manifest(rev).entries[0].contents[0]
    return next(iter(repo.handle.store.graph.codings(content.id)))


def test_a_damaged_full_record_is_walked_around(tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        for i in range(4):
            repo.commit(weights(i), options=mvc.CommitOptions(reset_point=i in {0, 3}))
        first = only_step(repo, "HEAD~3")
        assert not first.member.base
    spoil(tmp_path, first)
    with mvc.Repository.open(tmp_path) as repo:
        for i in range(4):
            assert repo.checkout(f"HEAD~{3 - i}")["w"].tobytes() == weights(i)["w"].tobytes()


def test_a_reset_point_mends_a_damaged_object(tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(weights(1))
        step = only_step(repo)
    spoil(tmp_path, step)
    with mvc.Repository.open(tmp_path) as repo:
        with pytest.raises(DamagedData):
            repo.checkout()
        repo.commit(weights(1), options=mvc.CommitOptions(reset_point=True))
        assert repo.checkout()["w"].tobytes() == weights(1)["w"].tobytes()
        assert repo.checkout("HEAD~1")["w"].tobytes() == weights(1)["w"].tobytes()


def test_force_leaves_a_head_whose_manifest_is_damaged(tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        good = repo.commit(weights(1)).id
        bad = repo.commit(weights(2))
        step = next(iter(repo.handle.store.graph.codings(bad.commit.manifest)))
    spoil(tmp_path, step)
    fresh_process()
    with mvc.Repository.open(tmp_path) as repo:
        with pytest.raises(DamagedData):
            repo.checkout(str(good), to=repo.root)
        repo.checkout(str(good), force=True, to=repo.root)
        assert (tmp_path / "model.safetensors").exists()
