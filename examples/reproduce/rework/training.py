"""A training that can be set back: its batches depend on the seed and the iteration alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from mvc.errors import WrongUsage

from ..workspace import digest
from .workloads import OPTIMIZERS, Source, Workload

__all__ = ["Experiment", "State", "Training", "Vector"]

Vector = NDArray[np.float32]

State = dict[str, Vector]
"""``weights``, and the moments of the optimizer: ``momentum``, or ``first`` and ``second``.

Each is one flat vector over all parameters in the network's order.
"""

_MOMENTS = {
    "sgd": {},
    "momentum": {"momentum": "momentum_buffer"},
    "adam": {"first": "exp_avg", "second": "exp_avg_sq"},
}


@dataclass(frozen=True)
class Experiment:
    """A network, its data and its optimizer (sgd, momentum 0.9, or adam)."""

    workload: Workload
    source: Source
    optimizer: str

    def __post_init__(self) -> None:
        """Raises WrongUsage for an unknown optimizer and for data that are too small."""
        if self.optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise WrongUsage(f"there is no optimizer {self.optimizer}: it must be one of {known}")
        if len(self.source) < self.workload.batch_size:
            raise WrongUsage(
                f"{self.source.name} has {len(self.source)} samples, but a batch of "
                f"{self.workload.name} is {self.workload.batch_size}"
            )

    @property
    def name(self) -> str:
        """A name for a folder: equal parameters, equal name."""
        return f"{self.workload.name}-{self.optimizer}-{digest(self.parameters, 8)}"

    @property
    def parameters(self) -> dict[str, object]:
        """What a training depends on beside its seed, as plain values."""
        return {
            "model": self.workload.name,
            "data": self.source.name,
            "samples": len(self.source),
            "optimizer": self.optimizer,
            "rate": self.workload.rates[self.optimizer],
            **self.workload.parameters,
            "evaluated": min(len(self.source), self.workload.evaluated),
        }


class Training:
    """A training from its start. ``iteration`` counts the steps that ``model`` has seen.

    ``batches`` make an epoch. ``seed`` determines the initial weights and the order of the batches.
    """

    def __init__(self, experiment: Experiment, seed: int) -> None:
        self._source, self._seed = experiment.source, seed
        self._batch_size = experiment.workload.batch_size
        torch.manual_seed(seed)
        self.model = self._source.build(experiment.workload)
        self._flat = _flattened(self.model)
        self.batches = len(self._source) // self._batch_size
        self._moments = _MOMENTS[experiment.optimizer]
        rate = experiment.workload.rates[experiment.optimizer]
        self._optimizer: torch.optim.Optimizer
        if experiment.optimizer == "adam":
            self._optimizer = torch.optim.Adam([self._flat], rate)
        else:
            momentum = 0.9 if experiment.optimizer == "momentum" else 0.0
            self._optimizer = torch.optim.SGD([self._flat], rate, momentum)
        count = len(self._source)
        rows = np.random.default_rng(0).permutation(count)[: experiment.workload.evaluated]
        self._evaluated = self._source.batch(rows)
        self.iteration = 0

    def step(self) -> None:
        """Trains with the next batch."""
        epoch, index = divmod(self.iteration, self.batches)
        order = _order(self._seed, epoch, len(self._source))
        batch = self._source.batch(order[index * self._batch_size :][: self._batch_size])
        assert self._flat.grad is not None
        self._flat.grad.zero_()
        self._source.loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.iteration += 1

    def loss(self) -> float:
        """The mean loss over the fixed samples, in float64 of float32 arithmetic."""
        with torch.no_grad():
            return float(self._source.loss(self.model, self._evaluated))

    @property
    def state(self) -> State:
        """A copy."""
        own = self._optimizer.state.get(self._flat, {})
        state = {"weights": self._flat.detach().numpy().copy()}
        for name, key in self._moments.items():
            kept = own.get(key)
            state[name] = np.zeros_like(state["weights"]) if kept is None else kept.numpy().copy()
        return state

    def restore(self, iteration: int, state: State) -> None:
        """Continues from this state with the batches after ``iteration``."""
        self.iteration = iteration
        with torch.no_grad():
            self._flat.copy_(torch.from_numpy(state["weights"]))
        kept = {key: torch.from_numpy(state[name].copy()) for name, key in self._moments.items()}
        if "exp_avg" in kept:
            kept["step"] = torch.tensor(float(iteration))
        self._optimizer.state[self._flat] = kept


def _flattened(model: torch.nn.Module) -> torch.Tensor:
    """One vector whose parts are the model's parameters, with a gradient laid out likewise."""
    parameters = list(model.parameters())
    flat = torch.cat([each.detach().reshape(-1) for each in parameters]).requires_grad_()
    flat.grad = torch.zeros_like(flat)
    start = 0
    for each in parameters:
        part = slice(start, start := start + each.numel())
        each.data = flat.data[part].view_as(each)
        each.grad = flat.grad[part].view_as(each)
    return flat


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(count)
