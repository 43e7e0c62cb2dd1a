"""Small Keras trainings whose every bit depends on everything that resuming has to restore.

As a program it trains and records in a folder, and says on stdout what is durable:
``python -m tests.frameworks.keras_runs FOLDER EPOCHS SEED [REV]``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

import mvc
from mvc.frameworks.keras.callback import MVCCallback

SAMPLES, BATCH = 36, 8  # the last batch is a short one
BATCHES = 5
_draw = np.random.default_rng(7)
INPUTS = _draw.normal(size=(SAMPLES, 6)).astype("float32")
LABELS = _draw.integers(0, 3, SAMPLES)


@keras.saving.register_keras_serializable()
class Jitter(keras.layers.Layer):
    """Asks Keras's global seed generator."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.01 * keras.random.normal((6,)) if training else x


def network() -> Any:
    """Two ways of dropout, noise, batch norm, a frozen layer, the global generator."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            Jitter(),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.4),
            layers.Dense(16, trainable=False),
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


def bits_of(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes()


def bits(model: Any) -> list[bytes]:
    """Weights, seeds, moments, learning rate, iterations."""
    return [bits_of(v.value) for v in [*model.variables, *model.optimizer.variables]]


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(bits(model))).hexdigest()


class Tell(keras.callbacks.Callback):
    """Says how many versions are durable."""

    def __init__(self, recording: MVCCallback) -> None:
        super().__init__()
        self.recording = recording

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self.recording.report is not None
        os.write(1, f"durable {self.recording.report.durable}\n".encode())


def main() -> None:
    torch.set_num_threads(1)
    folder, epochs, seed, *rev = sys.argv[1:]
    with mvc.Repository.open(folder) as repo:
        recording = MVCCallback(repo, resume=rev[0] if rev else None)
        model = made(int(seed))
        fit(model, Tell(recording), recording, epochs=int(epochs))
        resumed = recording.resumed
        os.write(1, f"differs {len(resumed.differs) if resumed else 0}\n".encode())
    os.write(1, f"digest {digest(model)}\n".encode())


if __name__ == "__main__":
    main()
