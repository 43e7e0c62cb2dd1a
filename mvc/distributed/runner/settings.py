"""The settings of a run: of the command, of ``join``, or of both together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mvc.distributed.protocols.named import PROTOCOLS, Protocol, check_values, protocol_named, takes
from mvc.distributed.protocols.options import ProtocolOptions
from mvc.distributed.safe import Threshold
from mvc.errors import UnknownPath, WrongUsage
from mvc.model.names import check_ref

__all__ = [
    "BEAT",
    "PROTOCOLS",
    "START",
    "TIMEOUT",
    "TOKEN",
    "check_alone",
    "check_worker_models",
    "checked",
    "protocol_of",
]

TIMEOUT = 120.0
"""Seconds for which a process may say nothing, unless the settings say otherwise."""

START = 15.0
"""Seconds that a process may take to start, and to end, in addition."""

BEAT = 5.0
"""Seconds after which a process that has nothing else to say says that it is alive; less if a
quarter of the timeout is less."""

TOKEN = "MVC_RUN_TOKEN"  # noqa: S105 (its name)
"""A secret of one run, in the environment of its processes: who does not know it takes no part."""

_THRESHOLD = ("radius", "relative", "rho", "rate")
_NUMBERS = (*_THRESHOLD, "barrier", "rebalance", "outer_rate", "outer_momentum", "timeout")
_WHOLE = ("every", "seed")
_TEXTS = ("protocol", "safe", "balancing", "summary", "up", "down")
_RUN = ("repo", "target", "branch", "push", "log")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(_WHOLE, (int,)),
    **dict.fromkeys(_TEXTS + _RUN, (str,)),
    "worker_models": (bool,),
}
_YEAR = 366 * 24 * 3600.0  # seconds
_PROTOCOL = {*_NUMBERS, *_WHOLE, *_TEXTS} - {*_THRESHOLD, "timeout", "protocol"}


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are None. Raises WrongUsage for what cannot be one."""
    found = {name: value for name, value in settings.items() if value is not None}
    for name, value in found.items():
        if name not in _KINDS:
            raise WrongUsage(f"there is no setting {name}")
        kinds = _KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise WrongUsage(f"the setting {name} cannot be {value!r}")
    if not 0 < found.get("timeout", 1) <= _YEAR:
        raise WrongUsage(f"timeout is {found['timeout']:g}: it must be a number of seconds")
    return found


def protocol_of(settings: Mapping[str, Any]) -> Protocol:
    """The protocol that the settings name, fgm by default. Raises WrongUsage."""
    units = {name: settings[name] for name in _THRESHOLD if name in settings}
    options = {name: settings[name] for name in _PROTOCOL & settings.keys()}
    if units:
        options["threshold"] = Threshold(**units)
    return protocol_named(settings.get("protocol", "fgm"), **options)


def check_alone(settings: Mapping[str, Any]) -> None:
    """Raises WrongUsage for what is wrong whatever the script adds to the settings by ``join``."""
    for kind in ("target", "branch"):
        if kind in settings:
            check_ref(kind, settings[kind])
    if "log" in settings and not (folder := Path(settings["log"]).parent).is_dir():
        raise UnknownPath(f"there is no folder {folder} for the log")
    if "protocol" in settings:
        check_worker_models(settings, protocol_of(settings))
        return
    units = {name: settings[name] for name in _THRESHOLD if name in settings}
    if units.keys() <= {"rho", "rate"}:  # the script may name the other
        units = {"rho": 1.0, "rate": 1.0, **units}
    options = {name: settings[name] for name in _PROTOCOL & settings.keys()}
    check_values(ProtocolOptions("fgm", threshold=Threshold(**units), **options))
    given = options.keys() | ({"threshold"} if settings.keys() & {*_THRESHOLD} else set())
    if not any(given <= takes(name) for name in PROTOCOLS):
        raise WrongUsage(
            f"no protocol takes {', '.join(sorted(given))} together",
            hint="--protocol chooses one; docs/distributed.md says what each takes",
        )


def check_worker_models(settings: Mapping[str, Any], protocol: Protocol) -> None:
    """Raises WrongUsage if workers' models are wanted that the coordinator does not know."""
    if settings.get("worker_models") and protocol.rebalance is not None:
        raise WrongUsage(
            f"with {protocol.name} the coordinator does not know the models of workers",
            hint="leave --worker-models out, or take another protocol",
        )
