"""The paper's failure by epochs: a training is recorded, dies, and goes on from what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mvc import Recorder, Repository

from ..workspace import Progress, empty_folder
from .training import Experiment, State, Training

__all__ = ["FAILURE", "failure", "stored"]

FAILURE = 7
"""The epoch after which the training is restored, as in the paper."""


def failure(
    experiment: Experiment, pipeline: str, epochs: int, folder: Path, progress: Progress
) -> Mapping[str, Any]:
    """The loss by epoch, recorded with this pipeline in a new repository in ``folder``.

    ``undisturbed``: at the start and after each epoch. ``restored``: of what was stored after epoch
    7, and after each further epoch, one more than the undisturbed training has.
    """
    training = Training(experiment, 0)
    losses = [training.loss()]
    with empty_folder(folder), Repository.init(folder) as repo:
        with Recorder(repo, training.model, pipeline=pipeline) as recorder:
            for number in range(epochs):
                progress(f"{experiment.workload.title}, {pipeline}", number, epochs)
                losses.append(_epoch(training))
                recorder.step()
        state = stored(repo, training, epochs)
    training.restore(FAILURE * training.batches, state)
    restored = [training.loss()]
    restored += [_epoch(training) for _ in range(FAILURE, epochs + 1)]
    return {"pipeline": pipeline, "undisturbed": losses, "restored": restored}


def stored(repo: Repository, training: Training, epochs: int) -> State:
    """The weights of epoch 7 in a repository that holds so many."""
    values = repo.checkout(f"HEAD~{epochs - FAILURE}")
    parts = [values[name].numpy().ravel() for name, _ in training.model.named_parameters()]
    return {"weights": np.concatenate(parts)}


def _epoch(training: Training) -> float:
    for _ in range(training.batches):
        training.step()
    return training.loss()
