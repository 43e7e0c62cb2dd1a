"""One failure a training: what every scheme brings back, and how much is to be done again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mvc.errors import BadModelFile

from ..workspace import Workspace
from .schemes import checkpoints
from .training import Experiment, State, Training

__all__ = ["FIGURES", "LIMIT", "trials"]

LIMIT = 100
"""Iterations after which a restored training is given up; the rework counts as this many."""

FIGURES = ("failure", "mean", "largest", "excess", "rework", "fractional", "back")
"""Of one scheme in one trial.

``failure``: the iteration after which the training died. ``mean`` and ``largest``: bytes of a
checkpoint. ``excess``: the loss of the restored state less that before the failure. ``rework``:
iterations until the loss is at most that before the failure; ``fractional``: the same with the
crossing interpolated between the last two. ``back``: it got there at all.
"""


def trials(
    experiment: Experiment, schemes: Sequence[str], count: int, place: Workspace
) -> dict[str, dict[str, list[Any]]]:
    """So many trials of every scheme, figure by figure. Those that ``place`` lacks are run.

    Trial number n has the same weights, batches and failure for every scheme, whether the schemes
    are run together or not.
    """
    columns: dict[str, dict[str, list[Any]]] = {
        scheme: {name: [] for name in FIGURES} for scheme in schemes
    }
    for number in range(count):
        place.progress(f"{experiment.workload.title}, {experiment.optimizer}", number, count)
        known = _trial(experiment, schemes, number, place)
        for scheme, figures in columns.items():
            for name, values in figures.items():
                values.append(known[scheme][name])
    return columns


def _trial(
    experiment: Experiment, schemes: Sequence[str], number: int, place: Workspace
) -> Mapping[str, Mapping[str, Any]]:
    name = f"{experiment.name}/trial-{number:03}"

    def more(result: dict[str, Any]) -> dict[str, Any] | None:
        known = result.get("schemes", {})
        missing = [scheme for scheme in schemes if scheme not in known]
        if not missing:
            return None
        return {"trial": number, "schemes": known | _run(experiment, missing, number)}

    known: dict[str, Any] = place.grown(name, more)["schemes"]
    if not all(isinstance(each, dict) and set(each) == set(FIGURES) for each in known.values()):
        raise BadModelFile(f"{name} is no result", hint="delete it: it is made again")
    return known


def _run(experiment: Experiment, schemes: Sequence[str], number: int) -> dict[str, Any]:
    first, last = experiment.workload.window
    failure = int(np.random.default_rng((1, number)).integers(first, last + 1))
    training = Training(experiment, number)
    start = training.state
    kept = {text: checkpoints(text, start, experiment.workload.block) for text in schemes}
    sizes: dict[str, list[int]] = {text: [] for text in schemes}
    while training.iteration < failure:
        training.step()
        state = training.state
        for text, scheme in kept.items():
            sizes[text].append(scheme.save(training.iteration, state))
    target = training.loss()
    return {
        text: {
            "failure": failure,
            "mean": float(np.mean(sizes[text])),
            "largest": max(sizes[text]),
            **_rework(_losses(training, *scheme.restore(), target), target),
        }
        for text, scheme in kept.items()
    }


def _losses(training: Training, iteration: int, state: State, target: float) -> list[float]:
    """The loss of a restored state and after each further step, up to the first not above."""
    training.restore(iteration, state)
    losses = [training.loss()]
    while not losses[-1] <= target and len(losses) <= LIMIT:
        training.step()
        losses.append(training.loss())
    return losses


def _rework(losses: Sequence[float], target: float) -> dict[str, Any]:
    back = losses[-1] <= target
    return {
        "excess": losses[0] - target,
        "rework": len(losses) - 1 if back else LIMIT,
        "fractional": _crossing(losses, target) if back else float(LIMIT),
        "back": back,
    }


def _crossing(losses: Sequence[float], target: float) -> float:
    """Where the straight line between the last two losses reaches the target."""
    if len(losses) == 1:
        return 0.0
    above, below = losses[-2:]
    return len(losses) - 2 + (above - target) / (above - below)
