"""The evaluation flow (section 8.1.1 of the thesis): ten models, trained once and recorded.

U1 is the first model. A node derives four from it, one after the other (U3.1.1 to U3.1.4); the
server derives U2 from U1, and a node again four from that (U3.2.1 to U3.2.4). How models are
kept does not change how they are trained, so they are trained once, and every approach saves
the very same weights. Each model is made from its base alone: a recording that was interrupted
goes on with the first model that is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mvc import Repository
from mvc.errors import WrongUsage
from mvc.ids import CommitId

from ..data import Dataset
from ..experiment import known, option
from ..networks import tensors_of
from ..workspace import Progress, digest, lock, named, write
from .architectures import CLASSES, Architecture

__all__ = ["BASES", "RELATIONS", "Experiment", "Models", "Settings", "State", "record"]

State = Mapping[str, Tensor]

_PIPELINE = "none"  # recordings are read often

BASES: Mapping[str, str | None] = {
    "U1": None,
    "U3.1.1": "U1",
    "U3.1.2": "U3.1.1",
    "U3.1.3": "U3.1.2",
    "U3.1.4": "U3.1.3",
    "U2": "U1",
    "U3.2.1": "U2",
    "U3.2.2": "U3.2.1",
    "U3.2.3": "U3.2.2",
    "U3.2.4": "U3.2.3",
}
"""The models in the order in which they are saved, each with the one that it is derived from."""

RELATIONS: dict[str, str] = {
    "version": "every parameter is trained",
    "fine-tuned": "only the last layer is trained, but the network is in training mode, so the "
    "statistics of its normalisation follow the data, and are part of the model",
    "frozen": "only the last layer is trained, the rest is in evaluation mode: two tensors change",
    "grafted": "the thesis's way: U1 with the last layer of the model that 'version' has for the "
    "use case; two tensors change, and nobody has trained this network",
}
"""How a model is related to its base."""


@dataclass(frozen=True)
class Settings:
    """How models are trained: ``batches`` of ``batch_size`` images of ``size`` x ``size`` each.

    U2 takes twice as many batches, as in the thesis. U1 has random weights, or with ``trained``
    has seen as many batches as U2; the statistics of its normalisation are those of such images.
    """

    batches: int = option(2, "For each U3; U2 takes twice as many.", "N")
    batch_size: int = option(8, "Images of a batch.", "N")
    size: int = option(64, "Height and width to which images grow.", "PIXELS")
    seed: int = option(42, "Of weights, images and training.", "N")
    trained: bool = option(False, "U1 is trained, too. Default: random weights.")

    def __post_init__(self) -> None:
        """Raises WrongUsage for values out of range."""
        for name, least in (("batches", 1), ("batch_size", 2), ("size", 32), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise WrongUsage(f"{name} is {value}: it must be at least {least}")


@dataclass(frozen=True)
class Experiment:
    """One network, one relation, one data set. The server has half of the images, the nodes
    those of the other half that belong to the first half of the classes: a biased sample.
    """

    architecture: Architecture
    relation: str
    data: Dataset
    settings: Settings

    @staticmethod
    def of(
        architecture: Architecture, relation: str, data: Dataset, settings: Settings
    ) -> Experiment:
        """Raises WrongUsage for a relation that is not known and for data that do not fit."""
        known("relation", RELATIONS, relation)
        if data.kind != "images" or len(data.classes) > CLASSES:
            raise WrongUsage(f"{data.name} holds no images of at most {CLASSES} classes")
        experiment = Experiment(architecture, relation, data, settings)
        for name in ("U2", "U3.1.1"):
            if (count := len(experiment.rows(name))) < settings.batch_size:
                raise WrongUsage(
                    f"{data.name} has {count} images for {name}, but a batch is "
                    f"{settings.batch_size}"
                )
        return experiment

    @property
    def parameters(self) -> dict[str, Any]:
        """What the models depend on, as plain values."""
        return {
            "architecture": self.architecture.name,
            "relation": self.relation,
            "data": self.data.name,
            "images": list(self.data.counts),
            **asdict(self.settings),
        }

    @property
    def name(self) -> str:
        """A name for folders: equal parameters, equal name."""
        return f"{self.architecture.name}-{self.relation}-{digest(self.parameters, 8)}"

    def train(self, model: nn.Module, use_case: str) -> None:
        """Trains the base of a use case, in place, so that it becomes that use case's model."""
        torch.manual_seed(self._seed(use_case))
        optimizer = self.prepare(model)
        for images, labels in self.samples(use_case):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def prepare(self, model: nn.Module) -> torch.optim.Optimizer:
        """Sets what is trained, and gives the thesis's optimizer for it."""
        last = model.get_submodule(self.architecture.last)
        model.train(self.relation != "frozen")
        model.requires_grad_(self.relation == "version")
        last.train().requires_grad_(True)
        chosen = (each for each in model.parameters() if each.requires_grad)
        return torch.optim.SGD(chosen, lr=1e-4, momentum=0.9, weight_decay=1e-4)

    def samples(self, use_case: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images float32 ``(batch, 3, size, size)`` in [-1, 1] and labels, batch after batch."""
        size, count = self.settings.batch_size, self.settings.batches
        count *= 1 if use_case.startswith("U3") else 2
        rows = np.resize(self.rows(use_case), (count, size))
        for part in rows:
            images, labels = tensors_of(self.data, part)
            side = (self.settings.size,) * 2
            grown = functional.interpolate(images, side, mode="bilinear", align_corners=False)
            yield (2 * grown - 1).expand(-1, 3, -1, -1), labels

    def rows(self, use_case: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Images that a use case trains with, shuffled."""
        count = len(self.data.labels)
        shuffled = np.random.default_rng(self.settings.seed).permutation(count)
        rows = shuffled[: count // 2]
        if use_case.startswith("U3"):
            rows = shuffled[count // 2 :]
            rows = rows[2 * self.data.labels[rows] < len(self.data.classes)]
        return np.random.default_rng(self._seed(use_case)).permutation(rows)

    def _seed(self, use_case: str) -> int:
        return 1000 * self.settings.seed + list(BASES).index(use_case)


class Models(AbstractContextManager["Models"]):
    """The ten models of an experiment. Close it, or use it as a context manager."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        self._repo = Repository.open(folder, discover=False)
        self._commits = _recorded(self._repo)

    def state(self, use_case: str) -> dict[str, Tensor]:
        """A model's state dict."""
        state: dict[str, Tensor] = self._repo.checkout(self._commits[use_case])
        return state

    def __exit__(self, *_: object) -> None:
        self._repo.close()


def record(experiment: Experiment, folder: Path, progress: Progress = lambda *_: None) -> Models:
    """Trains the models that are missing in a folder below ``folder``; gives all ten."""
    own = folder / experiment.name
    with (
        lock(folder / f"{experiment.name}.lock"),  # a second process waits, and finds them trained
        Repository.open_or_init(own) as repo,
    ):
        write(own / "experiment.json", json.dumps(experiment.parameters).encode())
        if missing := [name for name in BASES if name not in _recorded(repo)]:
            states = _grafted if experiment.relation == "grafted" else _trained
            for name, state in states(experiment, repo, missing, folder, progress):
                repo.commit(state, message=name, pipeline=_PIPELINE)
    return Models(experiment, own)


Named = Iterator[tuple[str, State]]


def _grafted(
    experiment: Experiment, _: Repository, missing: list[str], folder: Path, progress: Progress
) -> Named:
    last = experiment.architecture.last + "."
    with record(replace(experiment, relation="version"), folder, progress) as versions:
        first = versions.state("U1")
        for name in missing:
            trained = versions.state(name)
            yield name, {key: (trained if key.startswith(last) else first)[key] for key in first}


def _trained(
    experiment: Experiment, repo: Repository, missing: list[str], _: Path, progress: Progress
) -> Named:
    for name in missing:
        named(progress, experiment.name)("training", list(BASES).index(name), len(BASES))
        yield name, _model(experiment, repo, name).state_dict()


def _model(experiment: Experiment, repo: Repository, use_case: str) -> nn.Module:
    base = BASES[use_case]
    torch.manual_seed(experiment.settings.seed)
    model = experiment.architecture.build()
    if base is not None:
        model.load_state_dict(repo.checkout(_recorded(repo)[base]))
        experiment.train(model, use_case)
        return model
    if experiment.settings.trained:
        replace(experiment, relation="version").train(model, use_case)
    _calibrate(model, experiment.samples(use_case))
    return model


@torch.no_grad()
def _calibrate(model: nn.Module, samples: Iterator[tuple[Tensor, Tensor]]) -> None:
    """Sets the statistics of normalisation to the mean over samples.

    With those of a new network, deep ones overflow in evaluation mode.
    """
    layers = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    model.train()
    for images, _ in samples:
        model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def _recorded(repo: Repository) -> dict[str, CommitId]:
    entries = repo.log() if repo.refs() else ()
    return {entry.commit.message: entry.id for entry in entries}
