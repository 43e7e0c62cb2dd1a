"""Trainings that are recorded in a line."""

from __future__ import annotations

from typing import Any

import torch

import mvc
from mvc.recipes.recording import Run

__all__ = ["recorded"]


def recorded(
    repo: mvc.Repository,
    model: Any,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    service: Any,
    data: Any = None,
    verify: bool = False,
    **arguments: Any,
) -> Run:
    """One training with these arguments, which is recorded and committed."""
    record = mvc.record(repo, model, optimizer, data=data, service=service, verify=verify)
    with record as run:
        run.train(**arguments)
    assert run.result is not None
    return run
