"""The protocols by name, with their options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import fields
from numpy.typing import NDArray

from mvc.distributed.codecs import codec_named
from mvc.distributed.protocols.base import Coordinator, Protocol, VectorLayout, Worker
from mvc.distributed.protocols.functional import FunctionalCoordinator, FunctionalWorker
from mvc.distributed.protocols.geometric import GeometricCoordinator, GeometricWorker
from mvc.distributed.protocols.periodic import PeriodicCoordinator, PeriodicWorker
from mvc.distributed.protocols.variance import VarianceCoordinator, VarianceWorker
from mvc.distributed.safe import SAFE_FUNCTIONS, Threshold
from mvc.errors import WrongUsage


class NamedProtocol(Protocol, frozen=True):
    """A protocol that makes its two sides. Make one with ``protocol_named``."""

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


def protocol_named(name: str, **options: Any) -> NamedProtocol:
    """The protocol of this name. Raises WrongUsage for names, options and values it does not take.

    ``options``: as of ``Protocol``; None stands for the default. Without a threshold the training
    finds one.
    """
    chosen = takes(name)
    preset = _KINDS[name][2]
    given = {key: value for key, value in options.items() if value is not None}
    known = {field.name for field in fields(Protocol)}
    for key in given:
        if key not in known:
            raise WrongUsage(f"there is no option {key}")
        if key not in chosen:
            raise WrongUsage(f"the protocol {name} takes no {key}")
    if "threshold" in chosen:
        given.setdefault("threshold", Threshold())
    made = NamedProtocol(name, **{**preset, **given})
    check_values(made)
    return made


def takes(name: str) -> set[str]:
    """The options that can be chosen for the protocol of this name. Raises WrongUsage."""
    if name not in _KINDS:
        raise WrongUsage(f"there is no protocol {name}: it must be one of {', '.join(PROTOCOLS)}")
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
