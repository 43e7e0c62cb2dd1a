"""What is done later with versions that steps made: weights dropped, shown, weighed, replayed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import mvc
import mvc.recipes as recipes
from mvc.errors import NotTrusted, WeightsDropped
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from tests.recipes.stepped import unseeded
from tests.recipes.test_steps import recorded, root, versions

pytestmark = pytest.mark.usefixtures("prepared")


def configured(repo: mvc.Repository, name: str, value: str) -> mvc.Repository:
    """The repository, opened again with a setting."""
    set_value(FileSystem(), repo.root / ".mvc/config.yaml", name, value)
    return mvc.Repository.open(repo.root)


def test_a_range_is_proven_segment_by_segment_and_then_dropped(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    roots, _ = recorded(repo, tmp_path / "data", 8, full_every=3)
    made = versions(repo)
    with pytest.raises(NotTrusted):
        recipes.drop_weights(repo, [f"{made[0]}..main"])
    assert not repo.storage.proofs()
    replays = set[str]()
    done = recipes.drop_weights(
        repo,
        [f"{made[0]}..main"],
        trust=True,
        progress=lambda _done, _total, what: replays.add(what.split(",")[0]),
    )
    assert replays == {f"retraining {made[i].short}" for i in (2, 5, 7)}
    assert {made.index(each): why and why.split(",")[0] for each, why in done.items()} == {
        **dict.fromkeys((1, 2, 4, 5), None),
        **dict.fromkeys((3, 6), "a full state"),
        7: "HEAD",
    }
    repo.storage.gc(grace=timedelta(0))
    for version, right in zip(made, roots, strict=True):
        if done.get(version, 0) is None:
            with pytest.raises(WeightsDropped):
                repo.checkout(version)
        with mvc.retraining(repo, version, trust=True):
            assert root(repo.checkout(version)) == right
    assert not repo.storage.fsck().problems
    assert recipes.drop_weights(repo, [made[1]]) == {made[1]: None}  # nothing runs


def test_what_is_not_reproduced_keeps_its_weights_and_the_rest_is_dropped(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    recorded(repo, tmp_path / "one", 3)
    good = versions(repo)
    roots, _ = recorded(repo, tmp_path / "two", 3, recipe=unseeded)
    made = versions(repo)[3:]
    done = recipes.drop_weights(repo, [good[1], made[1]], trust=True)
    assert done[good[1]] is None
    assert "made other weights" in str(done[made[1]])
    assert [root(repo.checkout(each)) for each in made] == roots


def test_above_the_bound_on_recovery_weights_are_kept(repo: mvc.Repository, tmp_path: Path) -> None:
    recorded(repo, tmp_path / "data", 4)
    made = versions(repo)
    repo = configured(repo, "store.max_recovery", "1e-9")
    done = recipes.drop_weights(repo, made[1:3], trust=True)
    assert {*done.values()} == {"recovery would take longer than store.max_recovery"}
