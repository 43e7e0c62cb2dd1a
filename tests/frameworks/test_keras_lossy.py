"""The Keras callback with lossy pipelines."""

# ruff: noqa: E402 (the backend is set, and Keras looked for, before anything imports it)

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.frameworks.need import need

os.environ["KERAS_BACKEND"] = "torch"
need("keras")

import mvc
from mvc.errors import CannotResume, WrongUsage
from mvc.frameworks.keras.callback import MVCCallback, load
from tests.frameworks.keras_runs import BATCHES, bits, fit, made
from tests.frameworks.lossy_runs import BY_DATA, MODEL, PIPELINE, Served, check_versions
from tests.training.runs import bits_of


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "models") as opened:
        yield opened


def test_versions_and_going_on(repo: mvc.Repository) -> None:
    whole = made(0)
    history = fit(whole, epochs=2)
    served, trained = Served(), made(0)
    recording = MVCCallback(
        repo, deploy="prod", pipeline=PIPELINE, on_deploy=served, keep_training=True
    )
    assert fit(trained, recording, epochs=2) == history
    assert bits(trained) == bits(whole)
    statistics = [v.path for v in trained.weights if not v.trainable]
    assert len(statistics) == 4  # of the batch norm, and the frozen layer
    check_versions(repo, served, 2 * BATCHES, statistics)

    again = made(99)
    recording = MVCCallback(repo, resume="HEAD~7")  # in the middle of the first epoch
    fit(again, recording, epochs=2)
    assert recording.resumed is not None and recording.resumed.step == 2 * BATCHES - 7
    assert bits(again) == bits(whole)


def test_refused_without_the_training_weights(repo: mvc.Repository) -> None:
    model = made(0)
    fit(model, MVCCallback(repo, every="epoch", pipeline=PIPELINE), epochs=2)
    with pytest.raises(CannotResume, match="production weights") as caught:
        fit(model, MVCCallback(repo, resume="HEAD"))
    assert "keep_training" in (caught.value.hint or "")
    load(model, repo)
    live = repo.checkout(path=MODEL)
    for variable in model.weights:
        assert bits_of(variable.value) == bits_of(live[variable.path])


def test_versions_of_others_are_told_apart(repo: mvc.Repository) -> None:
    """Production weights of a Recorder and of this callback."""
    model = made(0)
    fit(model, MVCCallback(repo, every="epoch", pipeline=PIPELINE, keep_training=True), epochs=1)
    net = torch.nn.Linear(2, 2)
    with pytest.raises(CannotResume, match="is no training state"):
        repo.resume(net)
    with mvc.Recorder(repo, net, pipeline=PIPELINE, keep_training=True) as recorder:
        recorder.step()
    with pytest.raises(CannotResume, match="no state of a Keras training"):
        fit(model, MVCCallback(repo, resume="HEAD"))
    repo.resume(net)


def test_stages(repo: mvc.Repository) -> None:
    """By the loss that Keras logs; by counting; not by data, of which Keras shows none."""
    recording = MVCCallback(
        repo, pipeline="every:2/1 | topk:0.5,min=0.1,loss=linear | xor | zstd:1"
    )
    fit(made(0), recording, epochs=1)
    assert recording.report is not None
    assert (recording.report.durable, recording.report.skipped) == (4, 1)
    for pipeline, stage in BY_DATA.items():
        with pytest.raises(WrongUsage, match=f"stage {stage} goes by the data .* Keras"):
            MVCCallback(repo, pipeline=pipeline)
