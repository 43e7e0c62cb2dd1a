"""The trainings of ``bench_steps``, in a module whose source a recipe can keep.

Invariant: nothing here reads a clock or a random generator but torch's global one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

__all__ = ["NETS", "TRAININGS", "Images", "Table", "Texts", "clipped", "plain", "samples",
           "scheduled"]  # fmt: skip


class Images(nn.Module):
    """A small conv net with batch norm and dropout, for 10 classes of square images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (width // 4) ** 2, 64), nn.ReLU(), nn.Dropout(0.4),
            nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x[:, None])


class Texts(nn.Module):
    """The mean of words, then two layers with batch norm and dropout, for 10 classes of texts."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, 8, padding_idx=0)
        self.layers = nn.Sequential(
            nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(self.words(x))


class Table(nn.Module):
    """Three layers with batch norm and dropout, for one number or several classes."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, outputs),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def samples(path: Path) -> TensorDataset:
    """Inputs and labels of a file of numpy."""
    with np.load(path) as file:
        return TensorDataset(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]))


def _loss(model: Any, batch: Any) -> Any:
    inputs, labels = batch
    loss = functional.mse_loss if labels.is_floating_point() else functional.cross_entropy
    return loss(model(inputs), labels)


def plain(model: Any, optimizer: Any, batch: Any) -> Any:
    optimizer.zero_grad()
    loss = _loss(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def clipped(model: Any, optimizer: Any, batch: Any, *, norm: float) -> Any:
    optimizer.zero_grad()
    loss = _loss(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), norm)
    optimizer.step()
    return loss


def scheduled(model: Any, optimizer: Any, batch: Any, *, scheduler: Any) -> Any:
    loss = plain(model, optimizer, batch)
    scheduler.step()
    return loss


NETS: dict[str, Callable[..., nn.Module]] = {"images": Images, "texts": Texts, "table": Table}

_RMSPROP = (torch.optim.RMSprop, {"lr": 1e-3})
_ADAM = (torch.optim.Adam, {"lr": 1e-3})
_SGD = (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9})

TRAININGS: dict[str, tuple[Any, str]] = {
    "RMSprop": (_RMSPROP, "plain"),
    "Adam": (_ADAM, "plain"),
    "SGD, momentum": (_SGD, "plain"),
    "Adam, clipped gradients": (_ADAM, "clipped"),
    "SGD, momentum, schedule": (_SGD, "scheduled"),
}
"""The optimizer with its arguments, and what makes a step."""
