"""The settings of a run: of the command, of ``join``, or of both together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mvc.distributed.protocols.named import PROTOCOLS, Protocol, protocol_named
from mvc.distributed.safe import Threshold
from mvc.errors import WrongUsage

__all__ = ["PROTOCOLS", "checked", "protocol_of"]

_THRESHOLD = ("radius", "relative", "rho", "rate")
_PROTOCOL = (
    *("safe", "every", "balancing", "barrier", "rebalance", "summary"),
    *("outer_rate", "outer_momentum", "up", "down", "seed"),
)
_RUN: dict[str, tuple[type, ...]] = {
    "protocol": (str,),
    "repo": (str,),
    "target": (str,),
    "branch": (str,),
    "worker_models": (bool,),
    "timeout": (int, float),
    "log": (str,),
}


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are None. Raises WrongUsage for what cannot be one."""
    found = {name: value for name, value in settings.items() if value is not None}
    for name, value in found.items():
        if name not in {*_RUN, *_THRESHOLD, *_PROTOCOL}:
            raise WrongUsage(f"there is no setting {name}")
        if not isinstance(value, _RUN.get(name, (str, int, float))):
            raise WrongUsage(f"the setting {name} cannot be {value!r}")
    return found


def protocol_of(settings: Mapping[str, Any]) -> Protocol:
    """The protocol that the settings name, fgm by default. Raises WrongUsage."""
    units = {name: settings[name] for name in _THRESHOLD if name in settings}
    options = {name: settings[name] for name in _PROTOCOL if name in settings}
    if units:
        options["threshold"] = Threshold(**units)
    return protocol_named(settings.get("protocol", "fgm"), **options)
