"""What the full state of a Keras training is.

The model's path of a version holds its weights and nothing else. The rest is beside it: the
optimizer's variables (moments, iterations, learning rate, loss scale), the seed generators of
layers, running metrics, random generators, and the place in ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mvc.frameworks.common.options import included
from mvc.frameworks.keras.random import Order, random_state
from mvc.frameworks.keras.variables import (
    by_path,
    no_weights,
    optimizer_kind,
    optimizer_variables,
    seeds,
    stale_gradients,
    tensor_of,
    weights,
)
from mvc.training.state.parts import setting

__all__ = ["PARTS", "SCHEMA", "Place", "TrainingSource", "keras_setting"]

SCHEMA = "mvc.keras/1"
PARTS = ("model", "optimizer", "rng")


@dataclass
class Place:
    """Where ``fit`` is: ``batch`` batches of epoch ``epoch`` (from 0) are done."""

    epoch: int = 0
    batch: int = 0
    batches: int | None = None  # of a whole epoch, where Keras knows
    logs: Mapping[str, float] = field(default_factory=dict)


@dataclass
class TrainingSource:
    """States of a model in ``fit``, for a Recorder; ``place`` and ``order`` move on with it."""

    model: Any
    include: Sequence[str]
    order: Order
    place: Place = field(default_factory=Place)

    @property
    def weights(self) -> bool:
        """Whether the model's own state is included."""
        return "model" in self.include

    def exact(self) -> list[str]:
        """Names of the weights that a lossy pipeline leaves as they are."""
        return no_weights(self.model)

    def model_state(self) -> dict[str, Any]:
        """The model's weights by path."""
        return _tensors(weights(self.model)) if self.weights else {}

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """Everything else; a part that is not included is None."""
        model, order = self.model, self.order
        rng = "rng" in self.include
        within = rng and self.place.batch > 0
        return {
            "schema": SCHEMA,
            "step": step,
            "batch": batch,
            "batches": self.place.batches,
            "logs": dict(self.place.logs),
            "setting": keras_setting(),
            "optimizer": _optimizer(model.optimizer) if "optimizer" in self.include else None,
            "seeds": _tensors(seeds(model)),
            "gradients": stale_gradients(model),
            "metrics": _tensors(by_path(model.metrics_variables)),
            "rng": random_state() if rng else None,
            "order": {
                "unrepeatable": order.unrepeatable,
                "sizes": order.sizes,
                "before": order.before if within else None,
                "digest": order.digest if within else None,
            },
        }


def _optimizer(optimizer: Any) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    return {
        "kind": optimizer_kind(optimizer),
        "variables": _tensors(optimizer_variables(optimizer)),
    }


def _tensors(named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: tensor_of(target) for name, target in named.items()}


def keras_setting() -> dict[str, str]:
    """The settings of Keras and torch that the bits of the next batch depend on."""
    import keras

    return {**setting(), "keras": str(keras.__version__)}


def chosen(include: Sequence[str] | None) -> tuple[str, ...]:
    """The parts that ``include`` names; by default all."""
    return included(include, PARTS) or PARTS
