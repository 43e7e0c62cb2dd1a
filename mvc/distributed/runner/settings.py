"""The settings of a run: of the command, of ``join``, or of both together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, ValidationError, convert

from mvc.distributed.protocols.base import Protocol
from mvc.distributed.protocols.named import (
    PROTOCOLS,
    NamedProtocol,
    check_values,
    protocol_named,
    takes,
)
from mvc.distributed.safe import Threshold
from mvc.errors import UnknownPath, WrongUsage
from mvc.names import check_ref

TIMEOUT = 120.0
"""Seconds for which a process may say nothing, unless the settings say otherwise."""

START = 15.0
"""Seconds that a process may take to start, and to end, in addition."""

BEAT = 5.0
"""Seconds after which a process that has nothing else to say says that it is alive; less if a
quarter of the timeout is less."""

TOKEN = "MVC_RUN_TOKEN"  # noqa: S105 (its name)
"""A secret of one run, in the environment of its processes: who does not know it takes no part."""

_THRESHOLD = Threshold.__struct_fields__
_PROTOCOL = {*Protocol.__struct_fields__} - {"name", "threshold"}
_KINDS: dict[str, Any] = {
    **get_type_hints(Threshold),
    **{name: kind for name, kind in get_type_hints(Protocol).items() if name in _PROTOCOL},
    **dict.fromkeys(("protocol", "repo", "target", "branch", "push", "log"), str),
    "timeout": float,
    "worker_models": bool,
}
_OF_THE_LAUNCH: dict[str, Any] = {
    "host": str,
    "port": Annotated[int, Meta(ge=0, le=65535)],
    "resume": bool,
    "restarts": Annotated[int, Meta(ge=0)],
}
_YEAR = 366 * 24 * 3600.0  # seconds


def from_texts(texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the launch takes (host, port, resume, restarts), and the settings. Raises WrongUsage."""
    found = checked(texts, {**_KINDS, **_OF_THE_LAUNCH}, strict=False)
    job = {name: found.pop(name) for name in found.keys() & _OF_THE_LAUNCH}
    return job, found


def checked(
    settings: Mapping[str, Any], kinds: Mapping[str, Any] = _KINDS, *, strict: bool = True
) -> dict[str, Any]:
    """The settings without those that are None. Raises WrongUsage for what cannot be one.

    Unless ``strict``, values may be texts.
    """
    found = {name: value for name, value in settings.items() if value is not None}
    for name, value in found.items():
        if name not in kinds:
            raise WrongUsage(f"there is no setting {name}")
        try:
            converted = convert(value, kinds[name], strict=strict)
        except ValidationError:
            raise WrongUsage(f"the setting {name} cannot be {value!r}") from None
        found[name] = value if strict else converted
    if not 0 < found.get("timeout", 1) <= _YEAR:
        raise WrongUsage(f"timeout is {found['timeout']:g}: it must be a number of seconds")
    return found


def protocol_of(settings: Mapping[str, Any]) -> NamedProtocol:
    """The protocol that the settings name; by default fgm, and fgm-nesterov where the training
    finds the threshold. Raises WrongUsage.
    """
    units, options = _units(settings), _options(settings)
    given = units.keys() & {"radius", "relative", "rho"}
    name = settings.get("protocol", "fgm" if given else "fgm-nesterov")
    if units and (units.keys() != {"rate"} or "threshold" in takes(name)):
        options["threshold"] = Threshold(**units)
    return protocol_named(name, **options)


def _units(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _THRESHOLD if name in settings}


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _PROTOCOL & settings.keys()}


def check_alone(settings: Mapping[str, Any]) -> None:
    """Raises WrongUsage for what is wrong whatever the script adds to the settings by ``join``."""
    for kind in ("target", "branch"):
        if kind in settings:
            check_ref(kind, settings[kind])
    if "log" in settings and not (folder := Path(settings["log"]).parent).is_dir():
        raise UnknownPath(f"there is no folder {folder} for the log")
    if "rho" in settings:  # the script may name the rate, or its optimizer
        settings = {"rate": 1.0, **settings}
    if "protocol" in settings:
        check_worker_models(settings, protocol_of(settings))
        return
    units, options = _units(settings), _options(settings)
    given = options.keys() | ({"threshold"} if units.keys() - {"rate"} else set())
    check_values(Protocol("fgm", threshold=Threshold(**units), **options))
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
            hint="leave worker_models out, or take another protocol",
        )
