"""One training step, and the number of samples that a network classifies correctly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.models import tensors_of
from mvc.evaluation.drift.split import Drift

__all__ = ["Sample", "correct", "learn", "learn_epoch"]

Sample = tuple[Tensor, Tensor]
"""Inputs as the network takes them, and labels int64 ``(n,)``."""


@dataclass(frozen=True)
class Order:
    """In which order an epoch goes through the offline rows: a matter of seed and number."""

    drift: Drift
    batch_size: int
    seed: int

    def batches(self, epoch: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Rows of each batch; the last one may be short."""
        generator = np.random.default_rng((self.seed, epoch))
        rows = generator.permutation(self.drift.offline)
        return [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, sample: Sample) -> float:
    """One step on one batch; gives the batch's loss before the step, dropout on."""
    inputs, labels = sample
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def learn_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Dataset,
    order: Order,
    epoch: int,
    tell: Callable[[int, int], object] | None = None,
) -> float:
    """Goes once through the offline data; gives the mean of the batches' losses."""
    batches = order.batches(epoch)
    losses = []
    for done, rows in enumerate(batches, start=1):
        losses.append(learn(model, optimizer, tensors_of(data, rows)))
        if tell is not None:
            tell(done, len(batches))
    return sum(losses) / len(losses)


@torch.no_grad()
def correct(model: nn.Module, sample: Sample) -> int:
    """How many samples of a batch the network labels rightly, dropout off."""
    inputs, labels = sample
    model.eval()
    guesses: Tensor = model(inputs).argmax(1)
    return int((guesses == labels).sum())
