"""What a collection keeps: every object that stays has a way, and a record that names it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.maintenance import gc
from mvc.store.journal.entries import Entry, Forgotten

VERSIONS = 12


def grown(root: Path, pipeline: str, resets: set[int]) -> tuple[Repository, list[np.ndarray]]:
    repo = Repository.init(root)
    random = np.random.default_rng(3)
    weight = random.standard_normal((50, 60)).astype(np.float32)
    states = []
    for i in range(VERSIONS):
        weight = weight + (1e-4 * random.standard_normal(weight.shape)).astype(np.float32)
        states.append(weight)
        repo.commit(
            {"w": weight, "i": np.array(i)}, pipeline=pipeline, reset_point=i in resets, message=""
        )
    return repo, states


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("gone", [{5}, {0}, {11 - 1}, {4, 5, 6}, {0, 1, 9}, set(range(11))])
@pytest.mark.parametrize("resets", [set(), {9}, {3, 7}])
def test_what_is_left_comes_back(
    tmp_path: Path, pipeline: str, named: bool, gone: set[int], resets: set[int]
) -> None:
    """Before and behind a reset point: behind it, the way leads backwards through deltas."""
    repo, states = grown(tmp_path, pipeline, resets)
    ids = [repo.find(f"HEAD~{VERSIONS - 1 - i}") for i in range(VERSIONS)]
    store = repo.context.store
    marks = tuple(Forgotten(ids[i], named) for i in gone)
    store.publish(lambda: Entry("forget", store.clock.now_ns(), forgotten=marks))
    banned = {bytes(c.id) for i in gone for c in _contents(repo, ids[i])}
    kept = {bytes(c.id) for i in set(range(VERSIONS)) - gone for c in _contents(repo, ids[i])}
    gc.collect(repo.context, grace=timedelta(0))
    with Repository.open(tmp_path) as again:
        for i in set(range(VERSIONS)) - gone:
            found = again.checkout(ids[i])
            assert found["w"].tobytes() == states[i].tobytes() and found["i"] == i
        assert again.storage.fsck(full=True).sound
        held = {id_ for id_ in banned - kept if again.context.store.graph.holds(id_)}
        assert not held or not named


def _contents(repo: Repository, id_: object) -> list:
    from mvc.model.manifest import Manifest
    from mvc.repo.lookup.commits import get

    context = repo.context
    manifest = Manifest.decode(context.store.recovery.manifest(get(context, id_).manifest))
    return [content for entry in manifest.entries for content in entry.contents]
