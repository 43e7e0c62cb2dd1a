"""What an accelerator has prepared. Only this module uses accelerate's private names (of 1.15)."""

from __future__ import annotations

from typing import Any

import accelerate
import torch

from mvc.errors import NotInstalled


def prepared(accelerator: Any, what: str) -> list[Any]:
    """The ``models``, ``optimizers``, ``schedulers``, ``dataloaders`` or ``custom_objects``."""
    found = getattr(accelerator, f"_{what}", None)
    if not isinstance(found, list):
        raise NotInstalled(
            f"mvc needs accelerate 1.15, and {accelerate.__version__} keeps its {what} elsewhere",
            hint="pip install accelerate==1.15.*",
        )
    return found


def model_of(accelerator: Any) -> torch.nn.Module:
    """The prepared model. Several models become one whose names begin with their numbers."""
    models = [accelerator.unwrap_model(model) for model in prepared(accelerator, "models")]
    return models[0] if len(models) == 1 else torch.nn.ModuleList(models)


def optimizers_of(accelerator: Any) -> list[torch.optim.Optimizer]:
    """The prepared optimizers themselves."""
    return [wrapper.optimizer for wrapper in prepared(accelerator, "optimizers")]
