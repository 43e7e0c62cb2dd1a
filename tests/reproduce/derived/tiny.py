"""A network of a few thousand weights with a normalised layer, and its ten models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from reproduce.data import Dataset
from reproduce.derived.architectures import Architecture
from reproduce.derived.flow import Experiment, Models, Settings, record

SETTINGS = Settings(batches=1, batch_size=4, size=32)
LAST, STATISTICS = {"fc.weight", "fc.bias"}, {"norm.running_mean", "norm.running_var",
                                              "norm.num_batches_tracked"}  # fmt: skip


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, 16, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


TINY = Architecture("tiny", "Tiny", Tiny, "fc")


def images(count: int = 64) -> Dataset:
    """Noise of four classes, 8 x 8."""
    pixels = np.random.default_rng(5).integers(0, 256, (count, 8, 8), np.uint8)
    return Dataset("noise", "images", pixels, np.arange(count) % 4, tuple("abcd"))


def experiment(relation: str = "version", settings: Settings = SETTINGS) -> Experiment:
    return Experiment.of(TINY, relation, images(), settings)


def recorded(folder: Path, relation: str = "version") -> Models:
    torch.set_num_threads(1)
    return record(experiment(relation), folder)
