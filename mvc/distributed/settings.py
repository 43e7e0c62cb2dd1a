"""The settings of a run: of the command, of ``join``, or of both together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from mvc.distributed.protocols.named import OPTIONS, NamedProtocol, protocol_named, valid
from mvc.errors import WrongUsage

TIMEOUT = 120.0
"""Seconds for which a process may say nothing, unless the settings say otherwise."""

_YEAR = 366 * 24 * 3600.0  # seconds
_SETTINGS = {
    **OPTIONS,
    **dict.fromkeys(("protocol", "repo", "target", "branch", "push"), str),
    "coordinator": Literal["rank0", "own"],
    "warmup": Annotated[int, Meta(ge=0)],
    "timeout": Annotated[float, Meta(gt=0, le=_YEAR)],
    "worker_models": bool,
    "resume": bool,
}
del _SETTINGS["name"]


def checked(settings: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """The settings without those that are None. Raises WrongUsage for what cannot be one.

    Unless ``strict``, values may be texts.
    """
    found = {name: value for name, value in settings.items() if value is not None}
    for name, value in found.items():
        if name not in _SETTINGS:
            raise WrongUsage(
                f"there is no setting {name}",
                hint="docs/distributed.md lists them; hosts, ports and restarts are torchrun's",
            )
        found[name] = valid(name, value, _SETTINGS[name], strict=strict)
    return found


def protocol_of(settings: Mapping[str, Any]) -> NamedProtocol:
    """The protocol that the settings name; by default fgm, and fgm-nesterov where the training
    finds the threshold. Raises WrongUsage.
    """
    options = {name: settings[name] for name in OPTIONS.keys() & settings.keys()}
    given = options.keys() & {"radius", "relative", "rho"}
    return protocol_named(settings.get("protocol", "fgm" if given else "fgm-nesterov"), **options)
