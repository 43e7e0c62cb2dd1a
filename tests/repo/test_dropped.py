"""Weights that are given up while others work: what is lost, counted and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import NotTrusted
from mvc.ids import CommitId
from mvc.maintenance.forget import preview
from mvc.testing import FixedClock
from tests.recipes import by_hand as recipes

HOUR = 3_600_000_000_000


def make(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    base = np.random.default_rng(1).standard_normal((30, 40)).astype(np.float32)
    return {"w": base + np.float32(arguments["step"]), "same": np.ones(5)}


def step(number: int) -> dict[str, np.ndarray]:
    return make({"step": number})


def train(repo: Repository, number: int, base: CommitId) -> CommitId:
    return recipes.trained(repo, make, {"step": number}, base)


def before_publishing(repo: Repository, act: Callable[[], object]) -> None:
    """Another process does something just before the next operation takes the journal's lock."""
    store = repo.handle.store
    publish = store.publish

    def late(*args: Any, **options: Any) -> Any:
        store.publish = publish  # type: ignore[method-assign]
        act()
        return publish(*args, **options)

    store.publish = late  # type: ignore[method-assign]


def collect(root: Path) -> None:
    with mvc.Repository.open(root) as other:
        other.storage.gc(grace="0")


def test_weights_collected_meanwhile_are_not_said_to_be_stored(repo: mvc.Repository) -> None:
    made = train(repo, 1, repo.commit(step(0)).id)
    repo.commit(step(2))
    recipes.drop(repo, made)
    before_publishing(repo, lambda: collect(repo.root))
    with pytest.raises(NotTrusted):  # nothing but a replay makes them
        mvc.recipes.store_weights(repo, made)
    assert next(e for e in repo.log() if e.id == made).dropped is not None
    assert repo.storage.fsck(full=True).sound
    recipes.store_again(repo, made, make)
    assert np.array_equal(repo.checkout(made)["w"], step(1)["w"])


def test_weights_made_again_survive_a_collection_meanwhile(repo: mvc.Repository) -> None:
    made = train(repo, 1, repo.commit(step(0)).id)
    recipes.drop(repo, made)
    collect(repo.root)
    repo.commit(step(2))
    repo.commit(step(3))
    repo.undo()
    before_publishing(repo, lambda: collect(repo.root))
    recipes.store_again(repo, made, make)
    assert np.array_equal(repo.checkout(made)["w"], step(1)["w"])
    assert repo.storage.fsck(full=True).sound


def test_a_commit_does_not_build_on_weights_collected_meanwhile(repo: mvc.Repository) -> None:
    made = train(repo, 1, repo.commit(step(0)).id)

    def give_up() -> None:
        with mvc.Repository.open(repo.root) as other:
            recipes.drop(other, made)
            other.storage.gc(grace="0")

    before_publishing(repo, give_up)
    last = repo.commit(step(1) | {"same": np.zeros(5)}).id
    assert np.array_equal(repo.checkout(last)["w"], step(1)["w"])
    assert repo.storage.fsck(full=True).sound


def test_a_mark_may_outlive_its_version(tmp_path: Path) -> None:
    clock = FixedClock(step_ns=1000)
    with mvc.Repository.init(tmp_path, clock=clock) as repo:
        first = repo.commit(step(0)).id
        gone = train(repo, 1, first)
        repo.undo()
        clock.advance(48 * HOUR)
        recipes.drop(repo, gone)
        repo.storage.gc(grace=timedelta(hours=24))
        repo.commit(step(2))
        assert {commit.id for commit in repo.storage.forget(first, dry_run=True).commits} == {first}
        assert repo.storage.stats().dropped == 0
        assert repo.storage.fsck(full=True).sound


def test_given_up_weights_are_not_counted_as_those_of_another_version(repo: mvc.Repository) -> None:
    made = train(repo, 1, repo.commit(step(0)).id)
    same = repo.commit(step(1), message="the same again").id
    repo.commit({"w": step(2)["w"]})
    recipes.drop(repo, made)
    cost = preview(repo.handle.store, repo.handle.config, repo.storage.forget(same, dry_run=True))
    assert (cost.tensors, cost.shared) == (1, 1)  # "same" is shared with the first version


def test_what_differs_is_told_without_the_weights(repo: mvc.Repository) -> None:
    made = train(repo, 1, repo.commit(step(0)).id)
    recipes.drop(repo, made)
    assert not repo.diff("HEAD~1", "HEAD").unmeasured  # they are still there
    repo.storage.gc(grace="0")
    found = repo.diff("HEAD~1", "HEAD")
    rows = {row.key: row for row in found.files[0].tensors}
    assert {key: row.kind for key, row in rows.items()} == {"w": "changed", "same": "unchanged"}
    assert rows["w"].l2 is None
    assert "were dropped" in found.unmeasured["model.safetensors"]
