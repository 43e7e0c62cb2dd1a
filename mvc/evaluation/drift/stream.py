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

from mvc.api import Repository
from mvc.errors import CannotResume, WrongUsage
from mvc.evaluation.common.models import tensors_of
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.drift.experiment import Experiment
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.commit import Commit
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.training.recorder import Recorder
from mvc.training.resume import resume

__all__ = ["Sample", "Stream", "Version", "learn", "record"]

Sample = tuple[Tensor, Tensor]
"""Inputs as the network takes them, and labels int64 ``(n,)``."""

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
        found = _versions(self.repo, experiment.epochs)
        self.versions = tuple(found[number] for number in sorted(found))
        if len(self.versions) != experiment.plan.batches:
            self.repo.close()
            raise WrongUsage(
                f"the training in {folder} is not complete",
                hint="run it again: it goes on where it was",
            )

    def states(self) -> Iterator[tuple[Version, dict[str, NDArray[Any]]]]:
        """Every version's weights in order, float32 by name."""
        wanted = {version.commit: version for version in self.versions}
        for commit, state in self.repo.iter_versions(path=DEFAULT_STATE):
            if isinstance(commit, Commit) and commit.id in wanted:
                yield wanted[commit.id], _arrays(state)

    def state(self, version: Version) -> dict[str, NDArray[Any]]:
        """One version's weights, float32 by name."""
        return _arrays(self.repo.checkout(version.commit, path=DEFAULT_STATE))

    def batch(self, number: int) -> Sample:
        """Online batch ``number``, from 0."""
        return tensors_of(self.experiment.data, self.experiment.drift.online[number])

    def data(self, version: Version) -> Sample:
        """What a version was trained with last; of the offline data as many as a batch has."""
        if version.number:
            return self.batch(version.number - 1)
        rows = self.experiment.drift.offline[-self.experiment.plan.batch_size :]
        return tensors_of(self.experiment.data, rows)

    def close(self) -> None:
        """Lets go of the repository."""
        self.repo.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def record(
    experiment: Experiment, folder: Path, fs: FileSystem, tell: Tell | None = None
) -> Stream:
    """Trains what is not trained yet and gives the complete stream.

    ``folder`` is made if need be; what it holds must be of the same experiment.
    """
    fs.make_dirs(folder)
    with fs.lock(folder / "recording.lock"):  # a second process waits, and finds it trained
        _prepare(experiment, folder, fs)
        with Repository.open(folder, discover=False) as repo:
            if len(_versions(repo, experiment.epochs)) < experiment.plan.batches:
                _train(experiment, repo, tell or (lambda *_: None))
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


def _prepare(experiment: Experiment, folder: Path, fs: FileSystem) -> None:
    about = folder / "experiment.json"
    text = json.dumps(experiment.parameters, indent=1).encode()
    if fs.stat(about) is None:
        fs.write_atomic(about, text)
    elif fs.read_bytes(about, 1 << 20) != text:
        raise WrongUsage(f"{folder} holds another experiment", hint="name another folder")
    if fs.stat(folder / ".mvc") is None:
        Repository.init(folder).close()


def _train(experiment: Experiment, repo: Repository, tell: Tell) -> None:
    torch.manual_seed(experiment.seed + experiment.label)
    model = experiment.recipe.build(experiment.data)
    optimizer = experiment.recipe.optimizer(model)
    epoch, batch = _go_on(repo, model, optimizer)
    with (
        Recorder(repo, model, optimizer) as whole,
        Recorder(repo, model, include=["model"]) as weights,
    ):
        for number in range(epoch, experiment.epochs):
            batches = _offline_batches(experiment, number)
            losses = []
            for done, rows in enumerate(batches, start=1):
                losses.append(learn(model, optimizer, tensors_of(experiment.data, rows)))
                tell(f"epoch {number + 1} of {experiment.epochs}", done, len(batches))
            position = {"epoch": number + 1, "batch": 0}
            whole.step(loss=sum(losses) / len(losses), batch=position, metrics=position)
            whole.flush()
        last = experiment.plan.batches - 1  # the last batch is only for evaluation
        for number in range(batch, last):
            sample = tensors_of(experiment.data, experiment.drift.online[number])
            begun = time.perf_counter()
            loss = learn(model, optimizer, sample)
            seconds = time.perf_counter() - begun
            done = number + 1
            position = {"epoch": experiment.epochs, "batch": done}
            recorder = whole if done % _WHOLE_STATE == 0 else weights
            recorder.step(loss=loss, batch=position, metrics={**position, "seconds": seconds})
            recorder.flush()  # so that no commit runs beside the next step, which is timed
            tell("online", done, last)


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
    found: dict[int, Version] = {}
    for entry in _log(repo):
        metrics = dict(entry.commit.metrics)
        if metrics["epoch"] == epochs:
            number = int(metrics["batch"])
            seconds = metrics.get("seconds", np.nan)
            found.setdefault(number, Version(number, entry.id, metrics["loss"], seconds))
    return found


def _log(repo: Repository) -> Iterator[Any]:
    return iter(repo.log()) if repo.branches() else iter(())
