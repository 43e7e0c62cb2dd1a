"""What a checkpoint leaves out, beside the noise of SGD: the condition that the paper's P1 states.

With f what is saved less the training's state, and e the noise of a step, the paper holds that a
training goes on undisturbed if the mean of f is zero and its variance is less than that of e.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .schemes import checkpoints
from .training import Experiment, Training, Vector

__all__ = ["noise"]

_EVERY = 10


def noise(
    experiment: Experiment, schemes: Sequence[str], seed: int = 0
) -> Iterator[Mapping[str, Any]]:
    """For each scheme, means over every tenth iteration in which a failure can happen.

    ``bytes``: of a checkpoint. ``lean``: the mean of f over the mean of its size, in the entries
    that a step changes. ``noise``: the variance of f over that of e, which two batches in the same
    state give. ``excess``: by how much the loss of what is saved is above the training's.
    """
    training = Training(experiment, seed)
    kept = {text: checkpoints(text, training.state, experiment.workload.block) for text in schemes}
    rows: dict[str, list[dict[str, float]]] = {text: [] for text in schemes}
    first, last = experiment.workload.window
    while training.iteration < last:
        training.step()
        state = training.state
        sizes = {text: scheme.save(training.iteration, state) for text, scheme in kept.items()}
        if training.iteration < first or training.iteration % _EVERY:
            continue
        iteration, loss, variance = training.iteration, training.loss(), _variance(training)
        for text, scheme in kept.items():
            saved = scheme.restore()[1]["weights"]
            left = saved.astype(np.float64) - state["weights"]
            training.restore(iteration, {**state, "weights": saved})
            rows[text].append(
                {
                    "bytes": sizes[text],
                    "lean": float(left.sum() / max(np.abs(left).sum(), np.finfo(float).tiny)),
                    "noise": float(left @ left) / variance,
                    "excess": training.loss() - loss,
                }
            )
        training.restore(iteration, state)
    for text, measured in rows.items():
        means = {name: float(np.mean([row[name] for row in measured])) for name in measured[0]}
        yield {"scheme": text, **means}


def _variance(training: Training) -> float:
    """Of a step of the training in its present state, over all entries together."""
    iteration, state = training.iteration, training.state
    ends: list[Vector] = []
    for other in (iteration, iteration + 1):
        training.restore(other, state)
        training.step()
        ends.append(training.state["weights"])
    training.restore(iteration, state)
    between = ends[0].astype(np.float64) - ends[1]
    return float(between @ between) / 2
