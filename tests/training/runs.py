"""A small training whose every bit depends on everything that resuming has to restore."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

Bits = dict[str, bytes]

SAMPLES, BATCH = 40, 8
_generator = torch.Generator().manual_seed(7)
INPUTS = torch.randn(SAMPLES, 6, generator=_generator)
LABELS = torch.randint(3, (SAMPLES,), generator=_generator)


class Net(nn.Module):
    """Dropout, batch norm, a frozen layer and a buffer outside the state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.drop = nn.Dropout(0.4)
        self.last = nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.first(x)))
        x = self.last(self.drop(torch.tanh(self.frozen(x))))
        return x + 1e-3 * self.calls


@dataclass
class Run:
    """What is trained; ``position`` counts batches over all epochs."""

    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    make_scaler: Callable[[], Any] | None = None
    seed: int = 0
    position: int = 0
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        np.random.seed(self.seed)
        random.seed(self.seed)
        self.model = Net()
        self.optimizer = self.make_optimizer(self.model)
        self.scheduler = self.make_scheduler(self.optimizer) if self.make_scheduler else None
        self.scaler = self.make_scaler() if self.make_scaler else None

    @property
    def parts(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler, "scaler": self.scaler}

    def batch(self) -> torch.Tensor:
        """The order of an epoch comes from its number, so it can be entered in the middle."""
        epoch, index = divmod(self.position, SAMPLES // BATCH)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(100 + epoch))
        return order[index * BATCH : (index + 1) * BATCH]

    def train(self) -> float:
        """One batch; draws from torch, numpy and Python."""
        rows = self.batch()
        noise = float(np.random.standard_normal()) + random.gauss(0, 1)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(INPUTS[rows] + 0.01 * noise), LABELS[rows])
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.position += 1
        return loss.item()

    def bits(self) -> Bits:
        """Every bit that goes on: weights, buffers, moments, learning rates."""
        found = tensor_bits(self.model.state_dict())
        found["calls"] = bits_of(self.model.calls)
        names = {id(p): name for name, p in self.model.named_parameters()}
        for parameter, values in self.optimizer.state.items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    found[f"{names[id(parameter)]}/{key}"] = bits_of(value)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                found[f"{names[id(parameter)]}/lr"] = repr(group["lr"]).encode()
        return found


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_bits(state: Any) -> Bits:
    return {key: bits_of(value) for key, value in state.items()}
