"""The settings of a run: of the command, of ``join``, or of both together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta, ValidationError, convert

from mvc.distributed.protocols.base import Protocol
from mvc.distributed.protocols.named import (
    NamedProtocol,
    protocol_named,
    takes,
)
from mvc.distributed.safe import Threshold
from mvc.errors import WrongUsage

TIMEOUT = 120.0
"""Seconds for which a process may say nothing, unless the settings say otherwise."""

_THRESHOLD = Threshold.__struct_fields__
_PROTOCOL = {*Protocol.__struct_fields__} - {"name", "threshold"}
_KINDS: dict[str, Any] = {
    **get_type_hints(Threshold),
    **{name: kind for name, kind in get_type_hints(Protocol).items() if name in _PROTOCOL},
    **dict.fromkeys(("protocol", "repo", "target", "branch", "push"), str),
    "coordinator": Literal["rank0", "own"],
    "warmup": Annotated[int, Meta(ge=0)],
    "timeout": float,
    "worker_models": bool,
    "resume": bool,
}
_YEAR = 366 * 24 * 3600.0  # seconds


def checked(settings: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """The settings without those that are None. Raises WrongUsage for what cannot be one.

    Unless ``strict``, values may be texts.
    """
    found = {name: value for name, value in settings.items() if value is not None}
    for name, value in found.items():
        if name not in _KINDS:
            raise WrongUsage(
                f"there is no setting {name}",
                hint="docs/distributed.md lists them; hosts, ports and restarts are torchrun's",
            )
        try:
            converted = convert(value, _KINDS[name], strict=strict)
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
    units = {name: settings[name] for name in _THRESHOLD if name in settings}
    options = {name: settings[name] for name in _PROTOCOL & settings.keys()}
    given = units.keys() & {"radius", "relative", "rho"}
    name = settings.get("protocol", "fgm" if given else "fgm-nesterov")
    if units and (units.keys() != {"rate"} or "threshold" in takes(name)):
        options["threshold"] = Threshold(**units)
    return protocol_named(name, **options)
