"""One failure a training: what every scheme brings back, and how much is to be done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mvc.errors import BadModelFile
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.common.results import read_result, write_result
from mvc.evaluation.rework.schemes import checkpoints
from mvc.evaluation.rework.training import Experiment, State, Training
from mvc.io.files import FileSystem

__all__ = ["LIMIT", "Trial", "results_name", "trials"]

LIMIT = 100
"""Iterations after which a restored training is given up; the rework counts as this many."""


@dataclass(frozen=True)
class Trial:
    """What one scheme cost in one trial.

    ``failure``: the iteration after which the training died. ``mean`` and ``largest``: bytes of
    a checkpoint. ``excess``: the loss of the restored state less that before the failure.
    ``rework``: iterations until the loss is at most that before the failure; ``fractional``: the
    same with the crossing interpolated between the last two. ``back``: it got there at all.
    """

    failure: int
    mean: float
    largest: int
    excess: float
    rework: int
    fractional: float
    back: bool


def trials(
    experiment: Experiment,
    schemes: Sequence[str],
    count: int,
    folder: Path,
    fs: FileSystem,
    tell: Tell | None = None,
) -> dict[str, list[Trial]]:
    """So many trials of every scheme. Those that ``folder`` does not have yet are run.

    Trial number n has the same weights, batches and failure for every scheme, whether the schemes
    are run together or not.
    """
    own = folder / results_name(experiment)
    fs.make_dirs(own)
    made: dict[str, list[Trial]] = {scheme: [] for scheme in schemes}
    for number in range(count):
        if tell:
            tell(f"{experiment.workload.title}, {experiment.optimizer}", number, count)
        file = own / f"trial-{number:03}.json"
        with fs.lock(own / f"trial-{number:03}.lock"):  # nobody runs it beside this
            known = _read(fs, file)
            if missing := [scheme for scheme in schemes if scheme not in known]:
                known |= _run(experiment, missing, number)
                plain = {scheme: asdict(each) for scheme, each in known.items()}
                write_result(fs, file, {"trial": number, "schemes": plain})
        for scheme in schemes:
            made[scheme].append(known[scheme])
    return made


def results_name(experiment: Experiment) -> str:
    """A name for a folder: equal parameters, equal name."""
    digest = hashlib.sha256(json.dumps(experiment.parameters).encode()).hexdigest()[:8]
    return f"{experiment.workload.name}-{experiment.optimizer}-{digest}"


def _read(fs: FileSystem, file: Path) -> dict[str, Trial]:
    found: Mapping[str, Any] = read_result(fs, file) or {"schemes": {}}
    try:
        return {scheme: Trial(**values) for scheme, values in found["schemes"].items()}
    except (KeyError, TypeError, AttributeError):
        raise BadModelFile(f"{file} is no result", hint="delete it: it is made again") from None


def _run(experiment: Experiment, schemes: Sequence[str], number: int) -> dict[str, Trial]:
    first, last = experiment.workload.window
    failure = int(np.random.default_rng((1, number)).integers(first, last + 1))
    training = Training(experiment, number)
    start = training.state
    kept = {text: checkpoints(text, start, experiment.workload.block) for text in schemes}
    sizes: dict[str, list[int]] = {text: [] for text in schemes}
    while training.iteration < failure:
        training.step()
        state = training.state
        for text, each in kept.items():
            sizes[text].append(each.save(training.iteration, state))
    target = training.loss()
    found = {}
    for text, each in kept.items():
        losses = _losses(training, *each.restore(), target)
        back = losses[-1] <= target
        found[text] = Trial(
            failure,
            float(np.mean(sizes[text])),
            max(sizes[text]),
            losses[0] - target,
            len(losses) - 1 if back else LIMIT,
            _crossing(losses, target) if back else float(LIMIT),
            back,
        )
    return found


def _losses(training: Training, iteration: int, state: State, target: float) -> list[float]:
    """The loss of a restored state and after each further step, up to the first not above."""
    training.restore(iteration, state)
    losses = [training.loss()]
    while not losses[-1] <= target and len(losses) <= LIMIT:
        training.step()
        losses.append(training.loss())
    return losses


def _crossing(losses: Sequence[float], target: float) -> float:
    """Where the straight line between the last two losses reaches the target."""
    if len(losses) == 1:
        return 0.0
    above, below = losses[-2:]
    return len(losses) - 2 + (above - target) / (above - below)
