"""Creates protocols of distributed training by name, such as ``fgm``, and checks their options.

A protocol determines when workers exchange their models. It has a class for the coordinator and a
class for the workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert
from numpy.typing import NDArray

from mvc.distributed.codecs import VectorLayout, codec_named
from mvc.distributed.protocols.base import Coordinator, Protocol, SafeName, Worker
from mvc.distributed.protocols.functional import FunctionalCoordinator, FunctionalWorker
from mvc.distributed.protocols.geometric import GeometricCoordinator, GeometricWorker
from mvc.distributed.protocols.variance import VarianceCoordinator, VarianceWorker
from mvc.errors import WrongUsage


class NamedProtocol(Protocol, frozen=True):
    """The name and options of a protocol. Creates coordinators and workers with these options.

    Call ``protocol_named`` to create a ``NamedProtocol``.
    """

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


OPTIONS: Mapping[str, Any] = get_type_hints(Protocol, include_extras=True) | {"safe": SafeName}
"""Maps the name of each option to the type of its values.

The value of ``safe`` may also be an object with methods ``value`` and ``gradient``.
"""

_UNITS = {"radius", "relative", "rho", "period"}
_MONITORS = {*_UNITS, "safe"}
_OUTER = {"outer_rate", "outer_momentum"}
_ALL = {"rate", "up", "down", "seed"}
_NESTEROV = {"outer_rate": 0.7, "outer_momentum": 0.9}
_GM = (GeometricCoordinator, GeometricWorker)
_FGM = (FunctionalCoordinator, FunctionalWorker)
_PERIODIC = (Coordinator, Worker)
_FDA = (VarianceCoordinator, VarianceWorker)

_KINDS: dict[str, tuple[type[Coordinator], type[Worker], dict[str, Any], set[str]]] = {
    "gm": (*_GM, {}, _MONITORS),
    "gm-hedge": (*_GM, {"balancing": "hedge"}, _MONITORS),
    "gm-full": (*_GM, {"balancing": "none"}, _MONITORS),
    "fgm": (*_FGM, {}, _MONITORS | {"barrier"}),
    "fgm-rebalancing": (*_FGM, {"rebalance": 0.7}, _MONITORS | {"barrier", "rebalance"}),
    "fgm-nesterov": (*_FGM, _NESTEROV, _MONITORS | {"barrier"} | _OUTER),
    "fda": (*_FDA, {}, _UNITS),
    "sync": (*_PERIODIC, {"every": 1}, set()),
    "local-sgd": (*_PERIODIC, {"every": 16}, {"every"}),
    "diloco": (*_PERIODIC, {"every": 16, **_NESTEROV}, {"every"} | _OUTER),
}
"""Maps each protocol to its coordinator class, its worker class, its preset options, and a set.

The set names the options that a caller may set in addition to ``_ALL``.
"""

PROTOCOLS = tuple(_KINDS)


def protocol_named(name: str, **options: Any) -> NamedProtocol:
    """The protocol with this name. Raises WrongUsage for invalid names, options and values.

    ``options``: fields of ``Protocol``. None means the default. The options ``radius``,
    ``relative``, ``rho`` and ``period`` exclude each other. If none of these four is set, a
    protocol that uses a radius measures the radius.
    """
    if name not in _KINDS:
        raise WrongUsage(f"there is no protocol {name}: use one of {', '.join(PROTOCOLS)}")
    *_, preset, chosen = _KINDS[name]
    chosen_options = {key: value for key, value in options.items() if value is not None}
    for key, value in chosen_options.items():
        if key not in chosen | _ALL:
            raise WrongUsage(f"the protocol {name} has no option {key}")
        chosen_options[key] = valid(key, value, OPTIONS[key])
    if len(chosen_options.keys() & _UNITS) > 1:
        raise WrongUsage("set only one of radius, relative (T), rho and period")
    if "rho" in chosen_options and "rate" not in chosen_options:
        raise WrongUsage(
            "a threshold in rho needs the learning rate",
            hint="-O rate=0.01, or join(model, optimizer) in the script",
        )
    protocol = NamedProtocol(name, **{**preset, **chosen_options})
    for codec in (protocol.up, protocol.down):
        codec_named(codec)
    return protocol


def valid(name: str, value: Any, kind: Any, *, strict: bool = True) -> Any:
    """The value of the option ``name``, converted to the type ``kind``. Raises WrongUsage.

    If ``strict`` is false, texts are converted, too: ``"0.5"`` becomes 0.5.
    """
    own = kind is SafeName and callable(getattr(value, "gradient", None))
    try:
        return value if own else convert(value, kind, strict=strict)
    except ValidationError as error:
        reason = re.sub(r"`(\w+)[^`]*`", r"\1", str(error)).replace("Expected", "it must be")
        if get_origin(kind) is Literal:
            reason = f"it must be one of {', '.join(get_args(kind))}"
        raise WrongUsage(
            f"{name} cannot be {value}: {reason}",
            hint="or pass an object with methods value and gradient" if kind is SafeName else None,
        ) from None
