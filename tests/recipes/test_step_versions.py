"""What is done later with versions that steps made: weights dropped, shown, weighed, replayed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import mvc
import mvc.recipes as recipes
from mvc.errors import (
    CannotResume,
    CannotRetrain,
    NotTrusted,
    RetrainingDiffers,
    WeightsDropped,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.recipes.weights import alternative
from mvc.repo.config import set_value
from tests.recipes.stepped import unseeded
from tests.recipes.test_steps import recorded, root, training, versions

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
    assert "produced other weights" in str(done[made[1]])
    assert [root(repo.checkout(each)) for each in made] == roots


def test_above_the_bound_on_recovery_weights_are_kept(repo: mvc.Repository, tmp_path: Path) -> None:
    recorded(repo, tmp_path / "data", 4)
    made = versions(repo)
    repo = configured(repo, "store.max_recovery", "1e-9")
    done = recipes.drop_weights(repo, made[1:3], trust=True)
    assert {*done.values()} == {"recovery would take longer than store.max_recovery"}


def test_a_step_version_says_how_it_is_made_again(repo: mvc.Repository, tmp_path: Path) -> None:
    recorded(repo, tmp_path / "data", 3)
    full, _, last = versions(repo)
    assert recipes.steps(repo, full) is None
    steps = recipes.steps(repo, last)
    assert steps == {"start": full, "batches": 2, "rows": 16, "seconds": None}
    mvc.retrain(repo, last, trust=True)
    steps = recipes.steps(repo, last)
    assert steps is not None and steps["seconds"] > repo.storage.cost(full).seconds


def test_repack_drops_what_is_proven_and_within_the_bound(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    roots, _ = recorded(repo, tmp_path / "data", 8, full_every=4)
    made = versions(repo)
    for end in (made[3], made[7]):
        mvc.retrain(repo, end, trust=True)
    seconds = {each: recipes.steps(repo, each)["seconds"] for each in made[1:]}
    steps = {*made[1:4], *made[5:]}
    repo = configured(repo, "store.storage_weight", "1e12")
    repo = configured(repo, "store.max_recovery", str(0.95 * min(seconds[each] for each in steps)))
    assert not repo.storage.repack(alternatives=recipes.alternatives(repo)).plan.dropped
    bound = 1.15 * min(seconds[each] for each in steps)
    repo = configured(repo, "store.max_recovery", str(bound))
    plan = repo.storage.repack(alternatives=recipes.alternatives(repo), dry_run=True).plan
    assert len(plan.dropped) > 0
    assert {*plan.dropped} <= {each for each in steps if seconds[each] <= bound}
    repo = configured(repo, "store.max_recovery", "60")
    done = repo.storage.repack(alternatives=recipes.alternatives(repo))
    assert {*done.plan.dropped} == steps  # full states keep their weights
    repo.storage.gc(grace=timedelta(0))
    assert recipes.late(repo) == []
    repo = configured(repo, "store.max_recovery", "1e-9")
    assert {*recipes.late(repo)} == steps
    for version, right in zip(made, roots, strict=True):
        with mvc.retraining(repo, version, trust=True):
            assert root(repo.checkout(version)) == right


def test_resume_names_the_full_state_before_a_step_version(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    recorded(repo, tmp_path / "data", 5, full_every=3)
    made = versions(repo)
    model, optimizer, _ = training(tmp_path / "data")
    for version, full in ((made[2], made[0]), (made[4], made[3])):
        with pytest.raises(CannotResume, match="without its training state") as caught:
            mvc.resume(repo, model, optimizer, rev=version)
        assert f"rev='{full.short}'" in str(caught.value.hint)
        assert mvc.resume(repo, model, optimizer, rev=full.short).commit == full


def test_a_replay_within_a_tolerance_is_noted_and_proves_nothing(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    roots, _ = recorded(repo, tmp_path / "data", 2, recipe=unseeded)
    last = versions(repo)[1]
    for tolerance in (None, 1e-9):
        with pytest.raises(RetrainingDiffers):
            mvc.retrain(repo, last, trust=True, tolerance=tolerance)
    for wrong in (float("nan"), -1.0):
        with pytest.raises(WrongUsage, match="tolerance must be at least 0"):
            mvc.retrain(repo, last, trust=True, tolerance=wrong)
    assert not repo.annotations(last)
    done = mvc.retrain(repo, last, trust=True, tolerance=5.0)
    assert done.distance is not None and 1e-9 < done.distance <= 5
    assert bytes(done.file.root) != roots[1] == root(repo.checkout(last))
    (note,) = repo.annotations(last)
    assert f"replayed within {done.distance:.3g}, not bit for bit: Python" in note.note
    assert not repo.storage.proofs()
    with pytest.raises(CannotRetrain, match="not proven"):
        repo.storage.drop_weights({last: alternative(repo, last)})


def test_a_replay_of_the_same_bits_is_a_proof_whatever_the_tolerance(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    recorded(repo, tmp_path / "data", 2)
    last = versions(repo)[1]
    assert mvc.retrain(repo, last, trust=True, tolerance=1.0).distance is None
    assert [*repo.storage.proofs()] == [last]
    assert not repo.annotations(last)
