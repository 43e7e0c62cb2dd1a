"""Versions of a training by steps: made again, bit for bit, from the rows of their batches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import CannotRecord, WeightsDropped, WrongUsage
from mvc.state import StateFile
from tests.recipes.stepped import Net, Samples, step, unseeded


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
    assert "made other weights" in report.proof.why
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
