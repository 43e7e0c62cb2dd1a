"""The stream of training weights: trained once, stored in a repository, replayed per pipeline.

What a training does never depends on how its versions are stored. So it is recorded once,
without loss, and each pipeline sees the very same weights. A run that was killed goes on: the
Recorder has kept the whole training state of each epoch, and of every tenth batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mvc import Deployed, LogEntry, Recorder, Repository
from mvc.errors import CannotResume, WrongUsage
from mvc.ids import CommitId
from mvc.training.resume import resume

from ..networks import tensors_of
from ..workspace import Progress, lock, write
from .split import Experiment

__all__ = ["Sample", "Stream", "Version", "learn", "record"]

Sample = tuple[Tensor, Tensor]
"""Inputs as the network takes them, and labels int64 ``(n,)``."""

_MODEL = "model.safetensors"
_WHOLE_STATE = 10  # batches between two versions from which the training can go on


@dataclass(frozen=True)
class Version:
    """Training weights: number 0 after the offline training, n after online batch n - 1.

    ``loss`` is that batch's, before the step; ``seconds`` is how long the step took.
    """

    number: int
    commit: CommitId
    loss: float
    seconds: float


class Stream(AbstractContextManager["Stream"]):
    """A recorded training, complete. Close it, or use it as a context manager."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
        self.folder = folder
        self.repo = Repository.open(folder, discover=False)
        versions = _versions(self.repo, experiment.epochs)
        self.versions = tuple(versions[number] for number in sorted(versions))
        if len(self.versions) != experiment.plan.batches:
            self.repo.close()
            raise WrongUsage(
                f"the training in {folder} is not complete",
                hint="run it again: it goes on where it was",
            )

    def states(self) -> Iterator[tuple[Version, dict[str, NDArray[Any]]]]:
        """Every version's weights in order, float32 by name."""
        wanted = {version.commit: version for version in self.versions}
        for commit, state in self.repo.iter_versions(path=_MODEL):
            if not isinstance(commit, Deployed) and commit.id in wanted:
                yield wanted[commit.id], _arrays(state)

    def state(self, version: Version) -> dict[str, NDArray[Any]]:
        """One version's weights, float32 by name."""
        return _arrays(self.repo.checkout(version.commit, path=_MODEL))

    def batch(self, number: int) -> Sample:
        """Online batch ``number``, from 0."""
        return tensors_of(self.experiment.data, self.experiment.drift.online[number])

    def data(self, version: Version) -> Sample:
        """What a version was trained with last; of the offline data as many as a batch has."""
        if version.number:
            return self.batch(version.number - 1)
        rows = self.experiment.drift.offline[-self.experiment.plan.batch_size :]
        return tensors_of(self.experiment.data, rows)

    def __exit__(self, *_: object) -> None:
        self.repo.close()


def record(experiment: Experiment, folder: Path, progress: Progress = lambda *_: None) -> Stream:
    """Trains what is not trained yet and gives the complete stream.

    ``folder`` is made if need be; what it holds must be of the same experiment.
    """
    with lock(folder / "recording.lock"):  # a second process waits, and finds it trained
        _claim(experiment, folder / "experiment.json")
        with Repository.open_or_init(folder) as repo:
            if len(_versions(repo, experiment.epochs)) < experiment.plan.batches:
                _train(experiment, repo, progress)
    return Stream(experiment, folder)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, sample: Sample) -> float:
    """One step on one batch; gives the batch's loss before the step, dropout on."""
    inputs, labels = sample
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def _arrays(state: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in state.items()}


def _claim(experiment: Experiment, file: Path) -> None:
    text = json.dumps(experiment.parameters, indent=1).encode()
    if not file.exists():
        write(file, text)
    elif file.read_bytes() != text:
        raise WrongUsage(f"{file.parent} holds another experiment", hint="name another folder")


def _train(experiment: Experiment, repo: Repository, progress: Progress) -> None:
    torch.manual_seed(experiment.seed + experiment.label)
    model = experiment.recipe.build(experiment.data)
    optimizer = experiment.recipe.optimizer(model)
    epoch, batch = _go_on(repo, model, optimizer)
    for number in range(epoch, experiment.epochs):
        batches = _offline_batches(experiment, number)
        losses = []
        for done, rows in enumerate(batches, start=1):
            losses.append(learn(model, optimizer, tensors_of(experiment.data, rows)))
            progress(f"epoch {number + 1} of {experiment.epochs}", done, len(batches))
        position = {"epoch": number + 1, "batch": 0}
        with Recorder(repo, model, optimizer) as whole:
            whole.step(loss=sum(losses) / len(losses), batch=position, metrics=position)
    last = experiment.plan.batches - 1  # the last batch is only for evaluation
    for number in range(batch, last):
        sample = tensors_of(experiment.data, experiment.drift.online[number])
        begun = time.perf_counter()
        loss = learn(model, optimizer, sample)
        seconds = time.perf_counter() - begun
        done = number + 1
        position = {"epoch": experiment.epochs, "batch": done}
        is_whole = done % _WHOLE_STATE == 0
        # It is closed before the next step, so that no commit runs beside what is timed.
        with (
            Recorder(repo, model, optimizer)
            if is_whole
            else Recorder(repo, model, include=["model"])
        ) as recorder:
            recorder.step(loss=loss, batch=position, metrics={**position, "seconds": seconds})
        progress("online", done, last)


def _offline_batches(experiment: Experiment, epoch: int) -> list[NDArray[np.int64]]:
    """Rows of each batch of an epoch, in an order of its own; the last one may be short."""
    generator = np.random.default_rng((experiment.seed + experiment.label, epoch))
    rows = generator.permutation(experiment.drift.offline)
    size = experiment.plan.batch_size
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _go_on(repo: Repository, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Epochs and batches that are done: from the newest version that has a whole state."""
    for entry in _log(repo):
        try:
            position = resume(repo, model, optimizer, rev=entry.id).batch
        except CannotResume:  # weights alone
            continue
        return position["epoch"], position["batch"]
    return 0, 0


def _versions(repo: Repository, epochs: int) -> dict[int, Version]:
    """By number. A batch that was trained again after an interruption counts as it was last."""
    versions: dict[int, Version] = {}
    for entry in _log(repo):
        metrics = dict(entry.commit.metrics)
        if metrics["epoch"] == epochs:
            number = int(metrics["batch"])
            seconds = metrics.get("seconds", np.nan)
            versions.setdefault(number, Version(number, entry.id, metrics["loss"], seconds))
    return versions


def _log(repo: Repository) -> Iterator[LogEntry]:
    return iter(repo.log()) if repo.refs() else iter(())
