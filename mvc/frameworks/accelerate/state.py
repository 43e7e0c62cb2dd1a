"""The state of an accelerator's objects, without its wrappers and without files."""

from __future__ import annotations

from typing import Any

import torch

from mvc.frameworks.accelerate.data import Epochs
from mvc.frameworks.common.ranks import rng_of_others
from mvc.training.state.component_types import component_type
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.parts import TrainingParts, no_weights

__all__ = ["AcceleratorSource", "model_of", "optimizers_of", "pending_gradients"]


def model_of(accelerator: Any) -> torch.nn.Module:
    """The prepared model. Several models become one whose names begin with their numbers."""
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    return models[0] if len(models) == 1 else torch.nn.ModuleList(models)


def optimizers_of(accelerator: Any) -> list[torch.optim.Optimizer]:
    """The prepared optimizers themselves."""
    return [wrapper.optimizer for wrapper in accelerator._optimizers]


def pending_gradients(accelerator: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Accumulated gradients not yet applied, by parameter; accelerate does not save them."""
    if accelerator.sync_gradients:
        return {}
    parameters = model.named_parameters()
    return {name: p.grad for name, p in parameters if p.grad is not None}


class AcceleratorSource:
    """What the Recorder asks for states."""

    weights = True

    def __init__(self, accelerator: Any, epochs: Epochs) -> None:
        self._accelerator = accelerator
        self._epochs = epochs
        self._others: list[dict[str, Any]] = []

    def gather(self) -> None:
        """Gathers the generators of the other processes. Every process must call it."""
        self._others = rng_of_others()

    def exact(self) -> list[str]:
        """Names of the tensors that a lossy pipeline leaves as they are."""
        return no_weights(model_of(self._accelerator))

    def model_state(self) -> dict[str, Any]:
        """The tensors of all models by name."""
        return dict(model_of(self._accelerator).state_dict())

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """Everything else; ``step`` is the number of the save."""
        accelerator = self._accelerator
        model = model_of(accelerator)
        parts = TrainingParts(model, scaler=accelerator.scaler)
        optimizer, optimizers = _alone(
            [optimizer_state(model, o) for o in optimizers_of(accelerator)]
        )
        scheduler, schedulers = _alone([s.state_dict() for s in accelerator._schedulers])
        kinds = [component_type(s) for s in accelerator._schedulers]
        state = parts.training_state(step, batch)
        return {
            **state,
            "kinds": {**state["kinds"], "scheduler": _alone(kinds)[0]},
            "optimizer": optimizer,
            "scheduler": scheduler,
            "accelerate": {
                "step": accelerator.step,
                "processes": accelerator.num_processes,
                "others": self._others,
                "optimizers": optimizers,
                "schedulers": schedulers,
                "kinds": kinds,
                "objects": [o.state_dict() for o in accelerator._custom_objects],
                "loaders": self._epochs.state(),
                "draws": self._epochs.draws,
                "gradients": pending_gradients(accelerator, model),
            },
        }


def _alone(states: list[Any]) -> tuple[Any, list[Any]]:
    """Splits states into a single one, stored as the Recorder does, or a list of several."""
    return (states[0], []) if len(states) == 1 else (None, states)
