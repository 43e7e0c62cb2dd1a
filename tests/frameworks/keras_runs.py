"""Small Keras trainings whose every bit depends on everything that resuming has to restore."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

from mvc.frameworks.keras.callback import MVCCallback
from tests.frameworks.trainings import Act, Trained
from tests.training.runs import bits_of

SAMPLES, BATCH = 36, 8  # the last batch is a short one
BATCHES = EPOCH = 5
LOGS, ENDS = True, False
HYPER = {"optimizer.name": "adam", "optimizer.beta_1": "0.9", "steps_per_epoch": "5"}
_draw = np.random.default_rng(7)
INPUTS = _draw.normal(size=(SAMPLES, 6)).astype("float32")
LABELS = _draw.integers(0, 3, SAMPLES)


@keras.saving.register_keras_serializable()
class Jitter(keras.layers.Layer):
    """Asks Keras's global seed generator."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.01 * keras.random.normal((6,)) if training else x


def network(units: int = 16) -> Any:
    """Two ways of dropout, noise, batch norm, a frozen layer, the global generator."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            Jitter(),
            layers.Dense(units, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.4),
            layers.Dense(16, trainable=False, name="frozen"),
            layers.GaussianNoise(0.1),
            layers.Dropout(0.2, seed=3),
            layers.Dense(3, dtype="float32"),
        ]
    )


def compiled(model: Any, optimizer: Any = "adam") -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def made(seed: int = 0, optimizer: Any = "adam") -> Any:
    keras.utils.set_random_seed(seed)
    return compiled(network(), optimizer)


def fit(model: Any, *callbacks: Any, epochs: int = 4, **options: Any) -> dict[str, list[float]]:
    """The history of metrics, by epoch."""
    given = {"batch_size": BATCH, "validation_data": (INPUTS[:8], LABELS[:8]), **options}
    done = model.fit(INPUTS, LABELS, epochs=epochs, verbose=0, callbacks=[*callbacks], **given)
    history: dict[str, list[float]] = done.history
    return history


def bits(model: Any) -> list[bytes]:
    """Weights, seeds, moments, learning rate, iterations."""
    return [bits_of(v.value) for v in [*model.variables, *model.optimizer.variables]]


class Acts(keras.callbacks.Callback):
    """Acts after each batch that was trained, and none that was skipped."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self._act = act
        self._done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._done = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations)
        if step > self._done:
            self._act(step, (variable.value for variable in self.model.weights))


class Stops(keras.callbacks.Callback):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = int(self.model.optimizer.iterations) >= self._steps


class Making:
    """What the callback is made of; the newest one made, which names where it goes on from."""

    def __init__(self, repo: Any, every: int = 1, **options: Any) -> None:
        self._given = repo, {"every_n_batches": every, **options}
        self.callback: Any = None
        self.make()

    def make(self, resume: str | None = None) -> None:
        repo, options = self._given
        self.callback = MVCCallback(repo, resume=resume, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.callback, name)


recorder = Making


def train(
    folder: Path, steps: int, recording: Any = None, *, resume: str | None = None, seed: int = 3,
    act: Act | None = None, wide: bool = False,
) -> Trained:  # fmt: skip
    keras.utils.set_random_seed(seed)
    model = compiled(network(15 if wide else 16))
    if resume is not None:
        recording.make(resume or "main")
    callbacks = [] if act is None else [Acts(act)]
    callbacks += [] if recording is None else [recording.callback]
    try:
        fit(model, *callbacks, Stops(steps), epochs=-(-steps // BATCHES))
    finally:
        if recording is not None:
            recording.close()
    named = {str(i): raw for i, raw in enumerate(bits(model))}
    exact = [v.path for v in model.weights if not v.trainable]
    return Trained(named, exact, None if recording is None else recording.resumed)
