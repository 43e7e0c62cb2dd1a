"""What MVCCallback records of ``fit``, how fits end, what it refuses; weights back into models."""

# ruff: noqa: E402 (the backend is set, and Keras looked for, before anything imports it)

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest
import torch

from tests.frameworks.need import need

os.environ["KERAS_BACKEND"] = "torch"
need("keras")

import keras

import mvc
import mvc.frameworks.keras.callback
from mvc.errors import (
    CannotResume,
    NotInstalled,
    UnknownRevision,
    WrongUsage,
)
from mvc.frameworks.keras.callback import MVCCallback, load
from mvc.repo.history.log import LogEntry
from tests.frameworks.keras_runs import BATCHES, INPUTS, LABELS, bits_of, compiled, fit, made
from tests.frameworks.trainings import MODEL, PIPELINE


def history(repo: mvc.Repository) -> list[LogEntry]:
    return list(repo.log())[::-1]


def test_what_lies_beside_the_weights(repo: mvc.Repository) -> None:
    model = made()
    fit(model, MVCCallback(repo), epochs=1)
    kept = repo.checkout("HEAD", path="model.training.safetensors")
    optimizer = kept["optimizer"]
    assert optimizer["kind"] == "Adam"
    for variable in model.optimizer.variables:
        assert torch.equal(optimizer["variables"][variable.path], variable.value)
    names = {name.split("/")[-1] for name in optimizer["variables"]}
    assert {"iteration", "learning_rate"} <= names
    seeds = {v.path for v in model.variables} - {v.path for v in model.weights}
    assert set(kept["seeds"]) == seeds
    assert len(seeds) == 3
    assert kept["batch"] == {"epoch": 0, "batch": BATCHES}
    assert set(kept["setting"]) == {"torch", "threads", "processor", "keras"}


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"every_n_batches": 3}, [3, 6, 9]), ({"every": "epoch"}, [1, 2])],
    ids=["third-batch", "epoch"],
)
def test_some_are_versions(repo: mvc.Repository, options: Any, steps: list[int]) -> None:
    fit(made(), MVCCallback(repo, **options), epochs=2)
    log = history(repo)
    assert [entry.commit.message for entry in log] == [f"step {n}" for n in steps]
    assert ("val_loss" in log[-1].commit.metrics) == ("every" in options)


def test_metrics_are_those_that_keras_shows(repo: mvc.Repository) -> None:
    shown = fit(made(), MVCCallback(repo, every="epoch"), epochs=2)
    for number, entry in enumerate(history(repo)):
        assert entry.commit.metrics == {name: values[number] for name, values in shown.items()}


# -- how a fit ends ----------------------------------------------------------------------


class Acts(keras.callbacks.Callback):
    """Does something after the third batch."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.act(self.model)


def test_interrupted_and_fitted_again(repo: mvc.Repository) -> None:
    def interrupt(model: Any) -> None:
        raise KeyboardInterrupt

    recording = MVCCallback(repo)
    model = made()
    with pytest.raises(KeyboardInterrupt):
        fit(model, recording, Acts(interrupt))
    report = recording.close()
    assert report.durable == 3
    fit(model, recording, epochs=1)
    fit(model, recording, epochs=1)
    expected = [f"step {number}" for number in range(1, 3 + 2 * BATCHES + 1)]
    assert [entry.commit.message for entry in history(repo)] == expected


def test_stopped_early(repo: mvc.Repository) -> None:
    def stop(model: Any) -> None:
        model.stop_training = True

    fit(made(), MVCCallback(repo), Acts(stop))
    assert len(history(repo)) == 3
    patient = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100)
    fit(made(), patient, MVCCallback(repo), epochs=9)
    assert len(history(repo)) == 3 + 2 * BATCHES


# -- refused -----------------------------------------------------------------------------


def test_wrong_usage(repo: mvc.Repository) -> None:
    for options in (
        {"every": "year"},
        {"every_n_batches": 0},
        {"every": "epoch", "every_n_batches": 2},
        {"include": ["scheduler"]},
    ):
        with pytest.raises(WrongUsage):
            MVCCallback(repo, **options)  # type: ignore[arg-type]
    with pytest.raises(UnknownRevision):
        fit(made(), MVCCallback(repo, resume="HEAD"))


def test_callbacks_that_are_no_list(repo: mvc.Repository) -> None:
    """Keras would call it from other threads, while the next batch trains."""
    with pytest.raises(WrongUsage, match="from another thread"):
        made().fit(INPUTS, LABELS, verbose=0, callbacks=MVCCallback(repo))


def test_another_backend_is_refused(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for act in (lambda: MVCCallback(repo), lambda: load(None, repo)):
        with pytest.raises(WrongUsage, match="Keras runs on jax") as caught:
            act()
        assert "KERAS_BACKEND=torch" in str(caught.value.hint)


def test_without_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mvc.frameworks.keras.callback.__file__ is not None
    monkeypatch.setitem(sys.modules, "keras", None)
    spec = spec_from_file_location(
        "mvc.frameworks.keras_again", mvc.frameworks.keras.callback.__file__
    )
    assert spec.loader is not None
    with pytest.raises(NotInstalled, match="Keras cannot be imported"):
        spec.loader.exec_module(module_from_spec(spec))


# -- weights into a model ----------------------------------------------------------------


def dense(*units: int) -> Any:
    layers = [keras.layers.Dense(n, name=f"dense-{i}") for i, n in enumerate(units)]
    return keras.Sequential([keras.Input((6,)), *layers], name="net")


def weights_of(model: Any) -> list[bytes]:
    return [bits_of(v.value) for v in model.weights]


def test_load(repo: mvc.Repository) -> None:
    """Into a model of the same names, and of names that Keras numbered otherwise."""
    model = made()
    fit(model, MVCCallback(repo), epochs=1)
    first = repo.find("HEAD~4")
    other = made(5)
    assert [v.path for v in other.weights] != [v.path for v in model.weights]
    assert load(other, repo) == repo.find("HEAD")
    assert weights_of(other) == weights_of(model)
    assert load(model, repo, first) == first
    assert weights_of(model) != weights_of(other)
    assert [v.trainable for v in model.weights] == [v.trainable for v in other.weights]


def test_load_refuses_by_name(repo: mvc.Repository) -> None:
    model = compiled(dense(4, 3))
    fit(model, MVCCallback(repo, every="epoch"), epochs=1)
    before = weights_of(wide := dense(5, 3))
    with pytest.raises(CannotResume, match=r"kernel is float32 \(6, 5\) in the model, float32"):
        load(wide, repo)
    assert weights_of(wide) == before
    with pytest.raises(CannotResume, match="the version has net/dense-1/kernel, which the model d"):
        load(dense(4), repo)
    with pytest.raises(CannotResume, match="the version has no net/dense-2/kernel, which the mod"):
        load(dense(4, 3, 3), repo)
    with pytest.raises(CannotResume, match="no weights yet"):
        load(keras.Sequential([keras.layers.Dense(3)]), repo)


def test_a_frozen_layer_and_a_layer_used_twice(repo: mvc.Repository) -> None:
    layers = keras.layers
    given = keras.Input((6,))
    shared = layers.Dense(6, name="shared")
    frozen = layers.Dense(6, name="frozen", trainable=False)
    model = compiled(keras.Model(given, layers.Dense(3)(shared(frozen(shared(given))))))
    fit(model, MVCCallback(repo), epochs=1)
    changed = [c.path for c in repo.diff("HEAD~1", "HEAD").files]
    assert "model.safetensors" in changed
    state, older = repo.checkout("HEAD"), repo.checkout("HEAD~1")
    assert len([name for name in state if "shared/kernel" in name]) == 1
    for name in state:
        assert torch.equal(state[name], older[name]) == ("frozen" in name)


# -- production weights ------------------------------------------------------------------


def test_production_weights_without_the_training_weights(repo: mvc.Repository) -> None:
    model = made(0)
    fit(model, MVCCallback(repo, every="epoch", pipeline=PIPELINE), epochs=1)
    load(model, repo)
    live = repo.checkout(path=MODEL)
    for variable in model.weights:
        assert bits_of(variable.value) == bits_of(live[variable.path])


def test_versions_of_others_are_told_apart(repo: mvc.Repository) -> None:
    """Production weights of a Recorder and of this callback."""
    model = made(0)
    fit(model, MVCCallback(repo, every="epoch", pipeline=PIPELINE, keep_training=True), epochs=1)
    net = torch.nn.Linear(2, 2)
    with pytest.raises(CannotResume, match=r"is not a training state.* of mvc\.keras/1"):
        mvc.resume(repo, net)
    with mvc.Recorder(repo, net, pipeline=PIPELINE, keep_training=True) as recorder:
        recorder.step()
    with pytest.raises(CannotResume, match="not a state of a Keras training"):
        fit(model, MVCCallback(repo, resume="HEAD"))
    mvc.resume(repo, net)
