"""Real steps of torch's optimizers on a small network, and what predicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

Tensors = dict[str, np.ndarray]
Version = tuple[list[Tensors], list[dict[str, float]], dict[str, object]]
"""Of every parameter the tensors and the scalars of its state, and the values of the group."""


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(24, 40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 6)
    return nn.Sequential(*layers).to(dtype)


def version(model: nn.Module, optimizer: torch.optim.Optimizer) -> Version:
    tensors: list[Tensors] = []
    scalars: list[dict[str, float]] = []
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        whole = {"param": parameter, **{k: v for k, v in state.items() if v is not None}}
        arrays = {k: v.detach().clone() for k, v in whole.items() if torch.is_tensor(v)}
        tensors.append({k: v.numpy().reshape(-1) for k, v in arrays.items() if k not in SCALARS})
        scalars.append({k: float(v) for k, v in arrays.items() if k in SCALARS})
    values = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    return tensors, scalars, {k: float(v) if torch.is_tensor(v) else v for k, v in values.items()}


SCALARS = {"step"}


def steps(
    make: Callable[[Any], torch.optim.Optimizer],
    at: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    schedule: Callable[[Any], Any] | None = None,
    gradient: Callable[[torch.Tensor], None] = lambda grad: None,
) -> Iterator[tuple[int, Version, Version]]:
    """The versions before and after some steps."""
    torch.manual_seed(1)
    model = net(dtype)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    for step in range(1, max(at) + 1):
        x = torch.randn(32, 24, dtype=dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, :6].argmax(1) + step) % 6).backward()
        for parameter in model.parameters():
            gradient(parameter.grad)
        before = version(model, optimizer) if step in at else None
        optimizer.step()
        if scheduler:
            scheduler.step()
        if before:
            yield step, before, version(model, optimizer)


def hypers(old: Version, new: Version, index: int = 0) -> list[Mapping[str, object]]:
    return [{**new[2], **new[1][index]}, {**old[2], **old[1][index]}]
