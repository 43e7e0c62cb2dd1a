"""The case study: what a Recorder costs a training whose iteration is an epoch.

Times are of the processor, so other work on the machine is not in them, and the training has one
thread of torch: what another thread spends, or the training thread outside of training, is the
Recorder's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mvc import Recorder, Repository

from ..workspace import Progress, empty_folder
from .failure import FAILURE, stored
from .training import Experiment, State, Training

__all__ = ["overhead"]

_LIMIT = 20


@dataclass
class _Spent:
    """Seconds of the processor: by training, by all threads together, in the Recorder's calls."""

    training: float = 0.0
    step: float = 0.0
    others: float = 0.0


def overhead(
    experiment: Experiment, pipeline: str, epochs: int, folder: Path, progress: Progress
) -> Mapping[str, Any]:
    """Trains for so many epochs, each recorded in a new repository in ``folder``.

    ``epoch``: seconds that training takes; ``thread`` and ``all``: what the Recorder adds in the
    training thread and in all threads until the last version is durable, as shares of it.
    ``grown``: bytes by which packs grow with a version after the first. ``rework``: epochs until
    the loss after epoch 7 is back if that version is restored.
    """
    training = Training(experiment, 0)
    with empty_folder(folder), _one_thread(), Repository.init(folder) as repo:
        with Recorder(repo, training.model, pipeline=pipeline) as recorder:
            _epoch(training, recorder, _Spent())  # what a process does once belongs to no epoch
            recorder.flush()
            first = _packs(repo)
            losses, spent = [training.loss()], _Spent()
            for number in range(1, epochs):
                progress(f"{experiment.workload.title}, {pipeline}", number, epochs)
                _epoch(training, recorder, spent)
                losses.append(training.loss())
            begun = time.process_time()
            recorder.flush()
            spent.others += time.process_time() - begun
        grown = (_packs(repo) - first) / (epochs - 1)
        rework = _rework(training, stored(repo, training, epochs), losses[FAILURE - 1])
    return {
        "pipeline": pipeline,
        "epochs": epochs,
        "epoch": spent.training / (epochs - 1),
        "all": (spent.step + spent.others) / spent.training,
        "thread": spent.step / spent.training,
        "grown": grown,
        "rework": rework,
    }


def _epoch(training: Training, recorder: Recorder, spent: _Spent) -> None:
    everything, begun = time.process_time(), time.thread_time()
    for _ in range(training.batches):
        training.step()
    trained = time.thread_time()
    recorder.step()
    ended = time.thread_time()
    spent.training += trained - begun
    spent.step += ended - trained
    spent.others += time.process_time() - everything - (ended - begun)


def _rework(training: Training, state: State, target: float) -> int:
    training.restore(FAILURE * training.batches, state)
    for epochs in range(_LIMIT):
        if training.loss() <= target:
            return epochs
        for _ in range(training.batches):
            training.step()
    return _LIMIT


def _packs(repo: Repository) -> int:
    sizes = repo.storage.stats().bytes
    return sum(sizes[kind] for kind in ("full", "delta", "metadata"))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
