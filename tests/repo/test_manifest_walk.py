from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.repo import manifest_walk, manifests
from mvc.repo.inventory import inventory
from mvc.repo.manifest_walk import ManifestWalk


@pytest.fixture
def repo(tmp_path: Path) -> mvc.Repository:
    repo = mvc.Repository.init(tmp_path / "r")
    for i in range(6):
        repo.commit({"w": np.full(20, i, np.float32), "n": np.array(i)})
    return repo


def all_ids(repo: mvc.Repository) -> list[ManifestId]:
    entries = repo.context.store.view.entries()
    return [c.manifest for recorded in entries for c in recorded.entry.commits]


@pytest.mark.parametrize("kept", [1, 32])
def test_in_order_and_backwards(repo: mvc.Repository, monkeypatch, kept: int) -> None:
    monkeypatch.setattr(manifest_walk, "_KEPT", kept)
    walk = ManifestWalk(repo.context, inventory(repo.context.store.view))
    ids = all_ids(repo)
    for id_ in [*ids, *reversed(ids)]:
        assert walk.load(id_).encoded == manifests.load(repo.context, id_).encoded
        assert walk.load(id_).id == id_


def test_one_patch_a_version(repo: mvc.Repository, monkeypatch) -> None:
    decoded = []
    real = manifest_walk.decode_patch
    monkeypatch.setattr(
        manifest_walk, "decode_patch", lambda *args: decoded.append(1) or real(*args)
    )
    monkeypatch.setattr(type(repo.context.store.recovery), "manifest", None)
    walk = ManifestWalk(repo.context, inventory(repo.context.store.view))
    for id_ in all_ids(repo):
        walk.load(id_)
    assert len(decoded) == 6


def test_damage_is_found(repo: mvc.Repository, monkeypatch) -> None:
    monkeypatch.setattr(manifest_walk, "decode_patch", lambda *_: b"something else")
    walk = ManifestWalk(repo.context, inventory(repo.context.store.view))
    last = all_ids(repo)[-1]
    assert walk.load(last).id == last  # by the long way
    with pytest.raises(DamagedData):
        walk.load(ManifestId(bytes(32)))
