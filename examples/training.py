"""Training steps for the examples: one way to train each network, nothing configurable beyond it.

Invariant: given the same weights, data, generator state and thread count, the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from digits import Batch
from models import ResNet50


def rmsprop(model: nn.Module) -> torch.optim.RMSprop:
    """Make the optimizer of the VSOL convolutional net."""
    return torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-8)


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Take one step on one batch in train mode; return the loss before the step.

    Dropout draws from torch's global generator.
    """
    images, labels = batch
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Batch, batch_size: int = 80
) -> float:
    """Go once over ``data`` in an order drawn from torch's global generator; return mean loss."""
    images, labels = data
    parts = torch.split(torch.randperm(len(images)), batch_size)
    return sum(train_batch(model, optimizer, (images[p], labels[p])) for p in parts) / len(parts)


def train_head(model: ResNet50, batch: Batch, *, steps: int = 3, lr: float = 0.01) -> None:
    """Fit only ``fc`` to a batch. The body runs in eval mode: its BN buffers stay, bit for bit."""
    images, labels = batch
    model.eval()
    with torch.no_grad():
        seen = model.features(images)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model.fc(seen), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """Give the share of a batch that the model labels rightly, in eval mode."""
    images, labels = batch
    model.eval()
    guesses: Tensor = model(images).argmax(1)
    return (guesses == labels).double().mean().item()
