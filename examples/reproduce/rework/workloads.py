"""What is trained: four networks in plain torch, and a walk, with data and hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mvc.errors import WrongUsage

from ..data import Dataset
from ..networks import tensors_of
from .ratings import Ratings

__all__ = ["OPTIMIZERS", "WORKLOADS", "Images", "Scores", "Source", "Walk", "Workload"]

_SIDE = 28
_DIMENSIONS, _STEPS = 10_000, 4_000  # of the stylised model

Batch = tuple[Tensor, ...]
Rows = NDArray[np.int64]


class Source(Protocol):
    """Samples to train with."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def build(self, workload: Workload) -> nn.Module:
        """The network for these data."""

    def batch(self, rows: Rows) -> Batch: ...
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean over the samples."""


class Images:
    """Images as float32 ``(batch, 1, 28, 28)`` in [0, 1]; smaller ones grow bilinearly."""

    def __init__(self, data: Dataset) -> None:
        if data.kind != "images":
            raise WrongUsage(f"{data.name} holds {data.kind}, but the network takes images")
        self.name = data.name
        self._data = _grown(data)

    def __len__(self) -> int:
        return len(self._data.labels)

    def build(self, workload: Workload) -> nn.Module:
        return workload.build(len(self._data.classes))

    def batch(self, rows: Rows) -> Batch:
        return tensors_of(self._data, rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels)


class Scores:
    """Ratings of items by users."""

    def __init__(self, ratings: Ratings) -> None:
        self.name = ratings.name
        self._columns = (
            torch.from_numpy(ratings.users),
            torch.from_numpy(ratings.items),
            torch.from_numpy(ratings.values),
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def build(self, workload: Workload) -> nn.Module:
        users, items, values = self._columns
        return workload.build(int(users.max()) + 1, int(items.max()) + 1, float(values.mean()))

    def batch(self, rows: Rows) -> Batch:
        chosen = torch.from_numpy(rows)
        return tuple(column[chosen] for column in self._columns)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error."""
        users, items, values = batch
        loss: Tensor = functional.mse_loss(model(users, items), values)
        return loss


class Walk:
    """The paper's stylised model (Eq. 1), with its optimum u* at zero.

    Sample i is a vector of normal noise around the optimum. The loss is half the squared distance
    to the mean of a batch, so a step of SGD at the rate r makes u of (1 - r) u + r noise.
    """

    name = "walk"

    def __len__(self) -> int:
        return _STEPS

    def build(self, workload: Workload) -> nn.Module:
        return workload.build()

    def batch(self, rows: Rows) -> Batch:
        mean = np.zeros(_DIMENSIONS)
        for row in rows:
            mean += np.random.default_rng((2, int(row))).standard_normal(_DIMENSIONS, np.float32)
        return (torch.from_numpy((mean / len(rows)).astype(np.float32)),)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Half the squared distance, without the variance within the batch."""
        distance: Tensor = model(batch[0]).square().sum() / 2
        return distance


@dataclass(frozen=True)
class Workload:
    """A network with how it is trained.

    ``rates``: learning rate by optimizer, constant. ``window``: the first and last iteration in
    which a failure can happen. ``evaluated``: samples of the training data on which the loss is
    measured, the same in every trial. ``block``: consecutive parameters that SCAR saves together.
    """

    name: str
    title: str
    kind: str
    build: Callable[..., nn.Module]
    batch_size: int
    rates: Mapping[str, float]
    window: tuple[int, int]
    evaluated: int
    block: int = 16

    @property
    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters as plain values."""
        return {
            "batch_size": self.batch_size,
            "window": list(self.window),
            "evaluated": self.evaluated,
            "block": self.block,
        }


class _Product(nn.Module):
    """Matrix factorisation: products of vectors of users and items, and a bias for each."""

    def __init__(self, users: int, items: int, mean: float, rank: int = 5) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, rank), nn.Embedding(items, rank)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.mean = mean
        for factors in (self.users, self.items):
            nn.init.normal_(factors.weight, 0, 0.3)
        for bias in (self.user_bias, self.item_bias):
            nn.init.zeros_(bias.weight)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        products: Tensor = (self.users(users) * self.items(items)).sum(1)
        biases: Tensor = self.user_bias(users)[:, 0] + self.item_bias(items)[:, 0]
        return self.mean + biases + products


class _Distance(nn.Module):
    """From a point to the state, which begins as normal noise."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.randn(_DIMENSIONS))

    def forward(self, point: Tensor) -> Tensor:
        return self.state - point


def _mlr(classes: int) -> nn.Module:
    layer = nn.Linear(_SIDE * _SIDE, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _lenet(classes: int) -> nn.Module:
    layers = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, classes),
    )
    return _initialised(layers)


def _alexnet(classes: int) -> nn.Module:
    """Five convolutions and three dense layers as in AlexNet, without dropout."""
    layers = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 96, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(96, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(576, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, classes),
    )
    return _initialised(layers)


def _initialised(layers: nn.Sequential) -> nn.Sequential:
    """He's uniform kernels and zero biases, with which training begins without a plateau."""
    for layer in layers:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return layers


OPTIMIZERS = ("sgd", "momentum", "adam")

WORKLOADS = {
    each.name: each
    for each in (
        Workload(
            *("mlr", "MLR", "images", _mlr, 100),
            {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3},
            *((20, 100), 2000),
        ),
        Workload(
            *("mf", "MF", "ratings", _Product, 1000),
            {"sgd": 3.0, "momentum": 0.3, "adam": 3e-3},
            *((20, 100), 4000),
        ),
        Workload(
            *("lenet", "LeNet-5", "images", _lenet, 64),
            {"sgd": 0.01, "momentum": 0.002, "adam": 1e-3},
            *((20, 100), 500),
        ),
        Workload(
            *("alexnet", "AlexNet", "images", _alexnet, 64),
            {"sgd": 0.005, "momentum": 0.001, "adam": 3e-4},
            *((20, 60), 300),
        ),
        Workload(
            *("walk", "Stylised model", "walk", _Distance, 1),
            {"sgd": 0.02, "momentum": 0.002, "adam": 1e-2},
            *((20, 100), 2000),
        ),
    )
}


def _grown(data: Dataset) -> Dataset:
    if data.inputs.shape[1:] == (_SIDE, _SIDE):
        return data
    images = torch.from_numpy(data.inputs).unsqueeze(1).float()
    grown = functional.interpolate(images, (_SIDE, _SIDE), mode="bilinear", align_corners=False)
    scaled = (grown.squeeze(1) * (255 / data.brightest)).round().clamp(0, 255)
    pixels = scaled.numpy().astype(np.uint8)
    return Dataset(data.name, "images", pixels, data.labels, data.classes)
