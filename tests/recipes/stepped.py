"""A training by steps, in a module whose source a recipe can keep."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

__all__ = ["Net", "Samples", "scheduled", "step", "unseeded"]


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Samples(Dataset[Any]):
    """The rows of a file of numpy with ``x`` and ``y``."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.x, self.y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


def step(model: Any, optimizer: Any, batch: Any) -> Any:
    inputs, labels = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss


def unseeded(model: Any, optimizer: Any, batch: Any) -> Any:
    """Draws from a generator that nobody seeds."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(random.SystemRandom().random())
    return step(model, optimizer, batch)


def scheduled(model: Any, optimizer: Any, batch: Any, scheduler: Any) -> Any:
    loss = step(model, optimizer, batch)
    scheduler.step()
    return loss
