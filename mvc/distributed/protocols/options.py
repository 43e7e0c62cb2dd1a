"""The options of a protocol, and what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.distributed.codecs import Wire, codec_named
from mvc.distributed.protocols.layout import VectorLayout
from mvc.distributed.safe import SAFE_FUNCTIONS, SafeFunction, Threshold

Vector = NDArray[np.float64]


class OuterStep:
    """What the coordinator makes of the mean drift: Nesterov's momentum, or the drift itself."""

    def __init__(self, rate: float, momentum: float) -> None:
        self._rate, self._momentum = rate, momentum
        self.velocity: Any = 0.0

    def step(self, mean: Vector) -> Vector:
        """The change of the parameters."""
        if self._momentum == 0:
            return self._rate * mean
        self.velocity = self._momentum * self.velocity + mean
        change: Vector = self._rate * (mean + self._momentum * self.velocity)
        return change


class ProtocolOptions(Struct, frozen=True):
    """All options of a protocol.

    ``threshold``, ``safe``: of gm, fgm and fda (which takes the radius alone). ``every``: updates
    between averages, of the periodic ones. ``balancing``: random, hedge or none (gm). ``barrier``:
    a round ends when psi has come that near to zero, as a share of its first value (fgm).
    ``rebalance``: c_r, or None for no rebalancing (fgm): the round goes on after a flush if psi is
    below that share of its first value. ``summary``: linear or sketch (fda). ``outer_rate``,
    ``outer_momentum``: of the coordinator's step; 1 and 0 are plain averaging. ``up``, ``down``:
    codecs of drifts and of the model's changes.
    """

    name: str
    threshold: Threshold | None = None
    safe: str = "norm"
    every: int = 16
    balancing: str = "random"
    barrier: float = 0.01
    rebalance: float | None = None
    summary: str = "linear"
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    up: str = "none"
    down: str = "none"
    seed: int = 0

    def describe(self, model: NDArray[Any]) -> str:
        """The threshold in all units at this model, or the period."""
        if self.threshold is None:
            return f"every {self.every} updates"
        return self.threshold.describe(model.astype(np.float64))

    def safe_function(self, reference: Vector) -> SafeFunction:
        """The safe function of a round that begins with these parameters."""
        assert self.threshold is not None
        return SAFE_FUNCTIONS[self.safe](reference, self.threshold.radius_at(reference))

    def wires(self, layout: VectorLayout) -> tuple[Wire, Wire]:
        """How vectors travel up and down."""
        up, down = (
            Wire(codec_named(name), layout.measured, layout.length, layout.dtype)
            for name in (self.up, self.down)
        )
        return up, down

    def outer_step(self) -> OuterStep:
        """A new one, at rest."""
        return OuterStep(self.outer_rate, self.outer_momentum)
