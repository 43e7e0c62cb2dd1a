"""Helpers for callbacks that restore a version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mvc.training.resume import load_model
from mvc.training.state.component_types import check_type
from mvc.training.state.optimizers import Placement


def alone(states: list[Any]) -> tuple[Any, list[Any]]:
    """The form in which the Recorder stores states, depending on their number.

    One state: ``(state, [])``. Several: ``(None, states)``.
    """
    return (states[0], []) if len(states) == 1 else (None, states)


def several(single: Any, states: list[Any]) -> list[Any]:
    """The inverse of ``alone``."""
    return states if single is None else [single]


def check_schedulers(kinds: Iterable[Any], schedulers: Iterable[Any]) -> list[str]:
    """How the functions of schedulers differ from the recorded ones.

    Raises CannotResume for a scheduler of another type.
    """
    pairs = zip(kinds, schedulers, strict=False)
    return [line for kind, one in pairs for line in check_type("scheduler", kind, one)]


def load_with_optimizers(
    model: torch.nn.Module,
    weights: Mapping[str, Any],
    buffers: Mapping[str, Any],
    optimizers: Iterable[tuple[torch.optim.Optimizer, Any]],
) -> None:
    """Loads weights, buffers and optimizers. If the states do not match, raises CannotResume before
    any change.
    """
    placements = [Placement(model, optimizer, state) for optimizer, state in optimizers]
    load_model(model, weights, buffers)
    for placement in placements:
        placement.apply()
