"""Small trainings that the tests record and replay: a conv net, an LSTM, a class of a service."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Conv(nn.Module):
    """A conv net with dropout and batch norm."""

    def __init__(self, width: int = 4, *, dropout: float = 0.3) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout2d(dropout),
            nn.Flatten(),
            nn.Linear(width * 64, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Images(Dataset[Any]):
    """8 x 8 images out of a folder, turned and shifted at random."""

    def __init__(self, folder: Path, *, noise: float = 0.1) -> None:
        self.noise = noise
        self.images = np.load(folder / "images.npy")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = np.roll(self.images[i], np.random.randint(-1, 2), axis=1)
        image = image + self.noise * np.random.standard_normal(image.shape)
        return torch.as_tensor(image[None], dtype=torch.float32), int(self.labels[i])


def make_images(folder: Path, count: int = 48, seed: int = 0) -> Path:
    """A folder with images and labels."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", rng.random((count, 8, 8), np.float32))
    np.save(folder / "labels.npy", rng.integers(0, 10, count))
    return folder


def train_images(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Path,
    *,
    epochs: int = 1,
    batch: int = 8,
    scheduler: Any = None,
    generator: torch.Generator | None = None,
) -> float:
    """An ordinary training loop."""
    images = DataLoader(Images(data), batch_size=batch, shuffle=True, generator=generator)
    loss = torch.zeros(())
    for _ in range(epochs):
        for x, y in images:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return loss.item()


class ImageService:
    """A training service: its objects are those that it was given."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], loss: nn.Module
    ) -> None:
        self.optimizer, self.loader, self.loss = optimizer, loader, loss

    def train(self, model: nn.Module, *, epochs: int = 1) -> None:
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                self.loss(model(x), y).backward()
                self.optimizer.step()


class Tagger(nn.Module):
    """An LSTM over letters, its embedding tied to its output."""

    def __init__(self, letters: int = 12, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(width, letters)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(x))[0])


def train_text(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Path, *, rng: Any, steps: int = 6
) -> None:
    letters = torch.as_tensor([ord(c) - ord("a") for c in data.read_text()])
    for _ in range(steps):
        starts = torch.as_tensor(rng.integers(0, len(letters) - 9, 4))
        rows = torch.stack([letters[s : s + 9] for s in starts])
        optimizer.zero_grad()
        logits = model(rows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def nothing(model: nn.Module, **arguments: Any) -> None:
    """A service that keeps its arguments."""
    nothing.seen = arguments  # type: ignore[attr-defined]


def shift(model: nn.Module) -> None:
    """The shortest service that changes a model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1


class Counter:
    """Has a state that nobody can see."""

    def __init__(self) -> None:
        self.count = 0


class Sampler:
    """Holds a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


class Half:
    """Gives its state, and cannot take it."""

    def state_dict(self) -> dict[str, int]:
        return {"n": 1}


def spoil(model: nn.Module, data: Path) -> None:
    np.save(data / "labels.npy", np.arange(3))


def slow(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> None:
    """Takes half a second a step."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 1, 8, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.5)


def careless(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Its result depends on the process."""
    optimizer.zero_grad()
    (model(torch.ones(1, 1, 8, 8)).sum() * (os.getpid() % 1000 + 1)).backward()
    optimizer.step()


def division(model: nn.Module, *, pid: int, left: str) -> None:
    """Leaves a process behind that does nothing, in another process than ``pid``."""
    if os.getpid() != pid:
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        Path(left).write_text(str(child))


def deaf(model: nn.Module, *, pid: int, begun: str = "") -> None:
    """Keeps the lock of the interpreter for minutes, in another process than ``pid``."""
    if os.getpid() != pid:
        if begun:
            Path(begun).touch()
        ctypes.PyDLL(None).sleep(300)


def fails_elsewhere(model: nn.Module, *, pid: int) -> None:
    """Fails in another process."""
    if os.getpid() != pid:
        raise ValueError("another process")
