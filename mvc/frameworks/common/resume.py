"""Helpers for framework callbacks (Lightning, accelerate) that continue a recorded training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mvc.training.resume import load_model
from mvc.training.state.component_types import check_type
from mvc.training.state.optimizers import Placement


def alone(states: list[Any]) -> tuple[Any, list[Any]]:
    """The form in which the Recorder stores the states of optimizers, schedulers or scalers.

    One state: ``(state, [])``. Any other number of states: ``(None, states)``.
    """
    return (states[0], []) if len(states) == 1 else (None, states)


def several(single: Any, states: list[Any]) -> list[Any]:
    """The inverse of ``alone``."""
    return states if single is None else [single]


def check_schedulers(kinds: Iterable[Any], schedulers: Iterable[Any]) -> list[str]:
    """Compares the types of schedulers with the recorded types ``kinds``.

    Raises CannotResume if a type differs. Returns one line for each function of a LambdaLR whose
    name differs from the recorded name.
    """
    pairs = zip(kinds, schedulers, strict=False)
    return [line for kind, one in pairs for line in check_type("scheduler", kind, one)]


def load_with_optimizers(
    model: torch.nn.Module,
    weights: Mapping[str, Any],
    buffers: Mapping[str, Any],
    optimizers: Iterable[tuple[torch.optim.Optimizer, Any]],
) -> None:
    """Loads weights and buffers into ``model``, and each state into its optimizer.

    If a state does not fit its optimizer, raises CannotResume, and nothing has changed.
    """
    placements = [Placement(model, optimizer, state) for optimizer, state in optimizers]
    load_model(model, weights, buffers)
    for placement in placements:
        placement.apply()
