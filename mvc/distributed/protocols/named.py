"""The protocols by name, with their options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import fields
from numpy.typing import NDArray

from mvc.distributed.codecs import Wire, codec_named
from mvc.distributed.protocols.base import Coordinator, VectorLayout, Worker
from mvc.distributed.protocols.functional import FunctionalCoordinator, FunctionalWorker
from mvc.distributed.protocols.geometric import GeometricCoordinator, GeometricWorker
from mvc.distributed.protocols.periodic import PeriodicCoordinator, PeriodicWorker
from mvc.distributed.protocols.variance import VarianceCoordinator, VarianceWorker
from mvc.distributed.safe import SAFE_FUNCTIONS, SafeFunction, Threshold, Vector
from mvc.errors import WrongUsage


class Protocol(Struct, frozen=True):
    """A protocol with all its options. Make one with ``protocol_named``.

    ``threshold``, ``safe``: of gm, fgm and fda (which takes no safe function). ``every``: updates
    between averages, of the periodic ones. ``balancing``: random, hedge or none (gm). ``barrier``:
    a round ends when psi has come that near to zero, as a share of its first value (fgm).
    ``rebalance``: c_r, or None for no rebalancing (fgm): the round goes on after a flush if psi is
    below that share of its first value. ``outer_rate``, ``outer_momentum``: of the coordinator's
    step; 1 and 0 are plain averaging. ``up``, ``down``: codecs of drifts and of the model's change.
    """

    name: str
    threshold: Threshold | None = None
    safe: str = "norm"
    every: int = 16
    balancing: str = "random"
    barrier: float = 0.01
    rebalance: float | None = None
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    up: str = "none"
    down: str = "none"
    seed: int = 0

    @property
    def measured_in(self) -> int | None:
        """In how many updates the radius is found; None if there is none, or it is given."""
        return None if self.threshold is None else self.threshold.steps

    def describe(self, model: NDArray[Any], found: float | None = None) -> str:
        """The threshold in all units at this model, or the period."""
        if self.threshold is None:
            return f"every {self.every} updates"
        return self.threshold.describe(model.astype(np.float64), found)

    def safe_function(self, reference: Vector, found: float | None = None) -> SafeFunction:
        """The safe function of a round that begins with these parameters.

        ``found``: the radius, if the training finds it.
        """
        assert self.threshold is not None
        radius = self.threshold.radius_at(reference, found)
        assert radius is not None
        return SAFE_FUNCTIONS[self.safe](reference, radius)

    def wires(self, layout: VectorLayout) -> tuple[Wire, Wire]:
        up, down = (
            Wire(codec_named(name), layout.measured, layout.length, layout.dtype)
            for name in (self.up, self.down)
        )
        return up, down

    def coordinator(
        self,
        model: NDArray[Any],
        workers: Iterable[int],
        layout: VectorLayout | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> Coordinator:
        return _KINDS[self.name][0](self, model, workers, layout=layout, memory=memory)

    def worker(
        self, number: int, model: NDArray[Any], layout: VectorLayout | None = None
    ) -> Worker:
        return _KINDS[self.name][1](self, number, model, layout)


_MONITORS = {"threshold", "safe"}
_OUTER = {"outer_rate", "outer_momentum"}
_ALL = {"up", "down", "seed"}
_NESTEROV = {"outer_rate": 0.7, "outer_momentum": 0.9}
_GM = (GeometricCoordinator, GeometricWorker)
_FGM = (FunctionalCoordinator, FunctionalWorker)
_PERIODIC = (PeriodicCoordinator, PeriodicWorker)
_FDA = (VarianceCoordinator, VarianceWorker)

_KINDS: dict[str, tuple[type[Coordinator], type[Worker], dict[str, Any], set[str]]] = {
    "gm": (*_GM, {}, _MONITORS),
    "gm-hedge": (*_GM, {"balancing": "hedge"}, _MONITORS),
    "gm-full": (*_GM, {"balancing": "none"}, _MONITORS),
    "fgm": (*_FGM, {}, _MONITORS | {"barrier"}),
    "fgm-rebalancing": (*_FGM, {"rebalance": 0.7}, _MONITORS | {"barrier", "rebalance"}),
    "fgm-nesterov": (*_FGM, _NESTEROV, _MONITORS | {"barrier"} | _OUTER),
    "fda": (*_FDA, {}, {"threshold"}),
    "sync": (*_PERIODIC, {"every": 1}, set()),
    "local-sgd": (*_PERIODIC, {}, {"every"}),
    "diloco": (*_PERIODIC, _NESTEROV, {"every"} | _OUTER),
}
"""Of each: coordinator, worker, what it presets, and what else can be chosen."""

PROTOCOLS = tuple(_KINDS)


def protocol_named(name: str, **options: Any) -> Protocol:
    """The protocol of this name. Raises WrongUsage for names, options and values it does not take.

    ``options``: as of ``Protocol``; None stands for the default. Without a threshold the training
    finds one.
    """
    if name not in _KINDS:
        raise WrongUsage(f"there is no protocol {name}: it must be one of {', '.join(PROTOCOLS)}")
    preset, chosen = _KINDS[name][2], takes(name)
    given = {key: value for key, value in options.items() if value is not None}
    known = {field.name for field in fields(Protocol)}
    for key in given:
        if key not in known:
            raise WrongUsage(f"there is no option {key}")
        if key not in chosen:
            raise WrongUsage(f"the protocol {name} takes no {key}")
    if "threshold" in chosen:
        given.setdefault("threshold", Threshold())
    made = Protocol(name, **{**preset, **given})
    check_values(made)
    return made


def takes(name: str) -> set[str]:
    """The options that can be chosen for the protocol of this name."""
    return _KINDS[name][3] | _ALL


def check_values(made: Protocol) -> None:
    """Raises WrongUsage if an option has a value that no protocol takes."""
    if made.safe not in SAFE_FUNCTIONS:
        known = ", ".join(SAFE_FUNCTIONS)
        raise WrongUsage(f"there is no safe function {made.safe}: it must be one of {known}")
    if made.every < 1:
        raise WrongUsage(f"every is {made.every}: it must be at least 1")
    if made.seed < 0:
        raise WrongUsage(f"seed is {made.seed}: it must be at least 0")
    for name, value, most in (
        ("barrier", made.barrier, 1.0),
        ("rebalance", 0.5 if made.rebalance is None else made.rebalance, 1.0),
        ("outer_rate", made.outer_rate, 10.0),
    ):
        if not 0 < value < most:
            raise WrongUsage(f"{name} is {value}: it must be more than 0 and less than {most:g}")
    if not 0 <= made.outer_momentum < 1:
        raise WrongUsage(f"outer_momentum is {made.outer_momentum}: it must be in [0, 1)")
    for codec in (made.up, made.down):
        codec_named(codec)
