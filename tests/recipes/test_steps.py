"""Versions of a training by steps: made again, bit for bit, from the rows of their batches."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
import mvc.recipes as recipes
from mvc.errors import CannotRecord, StorageFull, WeightsDropped, WrongUsage
from mvc.recipes.recipe import STEPS, StepRecipe, recipe_of
from mvc.state import StateFile
from tests.benchmarks import step_trainings
from tests.benchmarks.step_trainings import TRAININGS
from tests.recipes.stepped import Net, Samples, scheduled, step, unseeded
from tests.repo.lc.histories import start

PROJECT = Path(__file__).parents[2]


def training(folder: Path, **options: Any) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    np.savez(
        folder / "samples.npz",
        x=random.random((100, 8), np.float32),
        y=random.integers(0, 3, 100),
    )
    torch.manual_seed(0)
    model = mvc.constructed(Net, **options)
    data = mvc.constructed(Samples, folder / "samples.npz")
    return model, torch.optim.Adam(model.parameters(), lr=0.01), data


def recorded(
    repo: mvc.Repository, folder: Path, versions: int, recipe: Any = step, **options: Any
) -> tuple[list[bytes], mvc.Report]:
    """Trains; the root of the model at each version, and the report."""
    model, optimizer, data = training(folder)
    drawn, roots = torch.Generator().manual_seed(1), []
    with mvc.Recorder(repo, model, optimizer, recipe=recipe, data=data, **options) as recorder:
        for _ in range(versions):
            recorder.train(torch.randint(0, 100, (8,), generator=drawn).tolist())
            roots.append(bytes(StateFile.of(dict(model.state_dict())).root))
    return roots, recorder.report


def versions(repo: mvc.Repository) -> list[Any]:
    return [entry.id for entry in reversed(repo.log("main"))]


def root(state: Any) -> bytes:
    return bytes(StateFile.of(state).root)


def test_proven_versions_drop_their_weights_and_come_back_bit_for_bit(repo, tmp_path):
    roots, report = recorded(repo, tmp_path / "data", 8, full_every=3, prove=True)
    assert report.proof is not None
    assert (report.proof.proven, report.proof.dropped, report.proof.unproven) == (7, 4, ())
    repo.storage.gc(grace=timedelta(0))
    made = versions(repo)
    for number, (version, right) in enumerate(zip(made, roots, strict=True)):
        if number % 3 and number != 7:
            with pytest.raises(WeightsDropped):
                repo.checkout(version)
        with mvc.retraining(repo, version, trust=True):
            assert root(repo.checkout(version)) == right
    assert not repo.storage.fsck().problems


def test_without_a_proof_every_version_keeps_its_weights(repo, tmp_path):
    roots, report = recorded(repo, tmp_path / "data", 5, full_every=3)
    assert report.proof is not None and report.proof.proven == 0
    assert [root(repo.checkout(each)) for each in versions(repo)] == roots
    made = versions(repo)
    assert mvc.retrain(repo, made[2], trust=True).replayed == (made[2],)
    assert {*repo.storage.proofs()} == {made[1], made[2]}


def test_what_a_replay_does_not_reproduce_keeps_its_weights_and_is_named(repo, tmp_path):
    roots, report = recorded(repo, tmp_path / "data", 5, recipe=unseeded, full_every=3, prove=True)
    assert report.proof is not None
    assert report.proof.dropped == 0
    assert report.proof.unproven == (2, 3, 4, 5)
    assert "produced other weights" in report.proof.why
    assert [root(repo.checkout(each)) for each in versions(repo)] == roots


def test_what_changes_the_random_generators_between_steps_is_repeated(repo, tmp_path):
    model, optimizer, data = training(tmp_path / "data", dropout=0.5)
    with mvc.Recorder(repo, model, optimizer, recipe=step, data=data, prove=True) as recorder:
        for _ in range(4):
            recorder.train(torch.randint(0, 100, (8,)).tolist())
    assert recorder.report.proof is not None
    assert recorder.report.proof.proven == 3


def test_a_training_without_a_recipe_is_refused_with_the_way_to_one(repo, tmp_path):
    model, optimizer, _ = training(tmp_path / "data")
    with (
        mvc.Recorder(repo, model, optimizer) as recorder,
        pytest.raises(WrongUsage, match="no recipe"),
    ):
        recorder.train([1])
    samples = Samples(tmp_path / "data" / "samples.npz")
    with pytest.raises(CannotRecord, match="data is a Samples"):
        mvc.Recorder(repo, model, optimizer, recipe=step, data=samples)


def test_a_loader_names_the_rows_of_its_batches(repo, tmp_path):
    model, optimizer, data = training(tmp_path / "data", dropout=0.5)
    with mvc.Recorder(repo, model, optimizer, recipe=step, data=data, prove=True) as recorder:
        for rows, batch in recorder.loader(batch_size=25, shuffle=True):
            recorder.train(rows, batch)
    assert recorder.report.proof is not None
    assert recorder.report.proof.proven == 3


# -- every kind of training ------------------------------------------------------------------


NETS: dict[str, tuple[dict[str, int], Any, Any]] = {
    "Images": ({"width": 8}, (40, 8, 8), None),
    "Texts": ({"words": 30}, (40, 6), np.int32),
    "Table": ({"width": 5, "outputs": 3}, (40, 5), None),
}


@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("net", NETS)
def test_nets_and_optimizers_are_made_again(repo, tmp_path, net, kind):
    arguments, shape, whole = NETS[net]
    random = np.random.default_rng(0)
    x = random.random(shape, np.float32) if whole is None else random.integers(0, 30, shape)
    np.savez(tmp_path / "data.npz", x=x, y=random.integers(0, 3, 40))
    torch.manual_seed(0)
    model = mvc.constructed(getattr(step_trainings, net), **arguments)
    (optimizer_of, given), name = TRAININGS[kind]
    optimizer = optimizer_of(model.parameters(), **given)
    keywords: dict[str, Any] = {"clipped": {"norm": 0.1}}.get(name, {})
    if name == "scheduled":
        make = torch.optim.lr_scheduler.StepLR
        keywords["scheduler"] = mvc.constructed(make, optimizer, step_size=2, gamma=0.5)
    recipe = functools.partial(getattr(step_trainings, name), **keywords)
    data = mvc.constructed(step_trainings.samples, tmp_path / "data.npz")
    roots = []
    with mvc.Recorder(
        repo, model, optimizer, recipe=recipe, data=data, full_every=4, prove=True
    ) as recorder:
        for first in range(6):
            recorder.train(range(first, first + 8))
            roots.append(root(dict(model.state_dict())))
    assert recorder.report.proof is not None
    assert (recorder.report.proof.proven, recorder.report.proof.dropped) == (5, 3)
    repo.storage.gc(grace=timedelta(0))
    third = versions(repo)[2]
    with mvc.retraining(repo, third, trust=True):
        assert root(repo.checkout(third)) == roots[2]


# -- versions of several steps, and new beginnings -------------------------------------------


def batches_of(repo: mvc.Repository) -> list[int | None]:
    """By version: how many batches its recipe has."""
    found = []
    for version in versions(repo):
        has = "recipe.json" in repo.version(version).attached
        recipe = recipe_of(repo, version) if has else None
        found.append(len(recipe.batches.rows) if isinstance(recipe, StepRecipe) else None)
    return found


def test_a_version_of_several_steps_has_all_their_batches(repo, tmp_path):
    roots, report = recorded(repo, tmp_path / "data", 9, every=3, full_every=2, prove=True)
    assert report.proof is not None and report.proof.proven == 2
    assert batches_of(repo) == [None, 3, 3]
    assert roots[2::3] == [root(repo.checkout(each)) for each in (versions(repo)[0],)] + [
        made_again_root(repo, each) for each in versions(repo)[1:]
    ]


def made_again_root(repo: mvc.Repository, version: Any) -> bytes:
    with mvc.retraining(repo, version, trust=True):
        return root(repo.checkout(version))


def test_batches_of_versions_that_were_replaced_go_to_the_next_one(repo, tmp_path):
    _, report = recorded(repo, tmp_path / "data", 30, when_full="coalesce", prove=True)
    assert report.proof is not None
    assert report.proof.unproven == ()
    assert report.proof.proven == report.durable - 1
    assert sum(each or 0 for each in batches_of(repo)) + 1 == 30 - report.failed


def test_batches_of_a_version_that_failed_go_to_the_next_one(repo, tmp_path, monkeypatch):
    model, optimizer, data = training(tmp_path / "data")
    commit, calls = repo.commit, []

    def failing(*args: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise StorageFull("no space left")
        return commit(*args, **keywords)

    recorder = mvc.Recorder(repo, model, optimizer, recipe=step, data=data, prove=True)
    monkeypatch.setattr(repo, "commit", failing)
    for first in range(6):
        with pytest.raises(StorageFull) if first == 2 else nullcontext():
            recorder.train([first, first + 1])
            recorder.flush()
    with pytest.raises(StorageFull):
        recorder.close()
    assert batches_of(repo) == [None, 1, 2, 1, 1]
    assert recorder.report.proof is not None
    assert (recorder.report.proof.proven, recorder.report.proof.unproven) == (4, ())


def test_after_a_resume_the_next_version_is_a_full_state(repo, tmp_path):
    recorded(repo, tmp_path / "data", 5, full_every=4)
    model, optimizer, data = training(tmp_path / "data")
    resumed = mvc.resume(repo, model, optimizer, rev="HEAD")
    assert resumed.step == 5
    with mvc.Recorder(
        repo, model, optimizer, recipe=step, data=data, full_every=4, prove=True
    ) as recorder:
        for first in range(3):
            recorder.train([first, first + 1, first + 2])
    assert recorder.report.proof is not None
    assert recorder.report.proof.proven == 2
    full = [STEPS in repo.version(each).attached for each in versions(repo)]
    assert full == [True, False, False, False, True, True, False, False]
    assert batches_of(repo) == [None, 1, 1, 1, 1, None, 1, 1]


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error", "why"),
    [
        ([], WrongUsage, "a batch has no rows"),
        ([-1], WrongUsage, "a row"),
        ([1.5], WrongUsage, "a row"),
        ([100], WrongUsage, "row 100 is beyond the data, which has 100"),
        (7, WrongUsage, "rows is not a list"),
        (torch.arange(100) < 2, WrongUsage, "a row is of type bool"),
        (torch.ones(2, 2, dtype=torch.int64), WrongUsage, "a row is of type list"),
    ],
)
def test_wrong_rows_are_refused_and_nothing_is_recorded(repo, tmp_path, rows, error, why):
    model, optimizer, data = training(tmp_path / "data")
    with mvc.Recorder(repo, model, optimizer, recipe=step, data=data) as recorder:
        before = root(dict(model.state_dict()))
        with pytest.raises(error, match=why):
            recorder.train(rows)
        assert root(dict(model.state_dict())) == before
        recorder.train([1, 2])
    assert recorder.report.durable == 1


@pytest.mark.parametrize(
    "wrong", [{"prove": True}, {"data": [1]}, {"recipe": "step", "data": [1]}, {"recipe": step}]
)
def test_a_recipe_comes_with_its_function_and_its_data(repo, tmp_path, wrong):
    model, optimizer, _ = training(tmp_path / "data")
    with pytest.raises(WrongUsage) as caught:
        mvc.Recorder(repo, model, optimizer, **wrong)
    assert "recipe=train_step" in str(caught.value.hint)


def test_the_scheduler_of_a_recipe_is_recorded_and_resumed(repo, tmp_path):
    model, optimizer, data = training(tmp_path / "data")
    scheduler = mvc.constructed(torch.optim.lr_scheduler.StepLR, optimizer, step_size=2)
    recipe = functools.partial(scheduled, scheduler=scheduler)
    with mvc.Recorder(repo, model, optimizer, recipe=recipe, data=data, full_every=1) as recorder:
        for row in range(3):
            recorder.train([row, row + 1])
    model, optimizer, _ = training(tmp_path / "data")
    again = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    mvc.resume(repo, model, optimizer, scheduler=again)
    assert again.last_epoch == 3


def test_a_version_without_weights_cannot_go_live(repo, tmp_path):
    recorded(repo, tmp_path / "data", 5, full_every=4, prove=True, deploy="prod")
    made = versions(repo)
    with pytest.raises(WeightsDropped, match="were dropped") as caught:
        repo.deploy(made[1], "prod")
    assert "mvc retrain" in str(caught.value.hint)
    with pytest.raises(WeightsDropped):
        repo.rollback("prod", to=made[2])
    assert repo.live("prod").commit == made[-1]
    repo.rollback("prod", to=made[0])
    recipes.store_weights(repo, made[1], trust=True)
    repo.deploy(made[1], "prod")
    assert repo.live("prod").commit == made[1]


@pytest.mark.parametrize("pipeline", ["lc", "vsol-1-fast", "every:1/9 | lc:x=2"])
def test_a_pipeline_that_stores_other_weights_is_refused(repo, tmp_path, pipeline):
    model, optimizer, data = training(tmp_path / "data")
    with pytest.raises(CannotRecord, match="a recipe reproduces exact weights"):
        mvc.Recorder(repo, model, optimizer, recipe=step, data=data, pipeline=pipeline)


def test_a_setting_that_approximates_is_refused(tmp_path):
    with start(tmp_path / "r", {"commit.pipeline": "lc"}) as repo:
        model, optimizer, data = training(tmp_path / "data")
        with pytest.raises(CannotRecord, match="a recipe reproduces exact weights"):
            mvc.Recorder(repo, model, optimizer, recipe=step, data=data)
        with mvc.Recorder(repo, model, optimizer, recipe=step, data=data, pipeline="lossless"):
            pass


def test_a_recipe_that_is_no_function_of_a_module_is_refused(repo, tmp_path):
    model, optimizer, data = training(tmp_path / "data")

    def inner(model: Any, optimizer: Any, batch: Any) -> Any:
        return step(model, optimizer, batch)

    for recipe in (inner, lambda m, o, b: step(m, o, b), functools.partial(inner)):
        with pytest.raises(CannotRecord, match="recipe") as raised:
            mvc.Recorder(repo, model, optimizer, recipe=recipe, data=data)
        assert raised.value.hint
    with mvc.Recorder(repo, model, optimizer, recipe=step, data=data):
        pass  # the branch is free again


# -- the page --------------------------------------------------------------------------------


def test_the_script_of_the_page_runs(tmp_path):
    text = (PROJECT / "docs" / "recorder.md").read_text(encoding="utf-8")
    mark = "<!-- run by tests/recipes/test_steps.py -->\n\n```python\n"
    shown = re.search(rf"^{mark}(.*?)^```$", text, re.M | re.S)
    assert shown is not None
    script = (PROJECT / "examples" / "train_steps.py").read_text(encoding="utf-8")
    assert {line.strip() for line in shown[1].splitlines()} <= {
        line.strip() for line in script.splitlines()
    }
    (tmp_path / "train_steps.py").write_text(script, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train_steps.py"], cwd=tmp_path, env=environ, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "proven=31, dropped=28, unproven=()" in done.stdout
