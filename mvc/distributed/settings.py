"""The settings of a distributed training, as given to ``mvc train-distributed`` or ``join``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from mvc.distributed.protocols.named import OPTIONS, NamedProtocol, protocol_named, valid
from mvc.errors import WrongUsage

TIMEOUT = 120.0
"""Default of the setting ``timeout``: how many seconds a process may be silent."""

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
    """The settings that are not None. Raises WrongUsage for an invalid setting.

    If ``strict`` is false, values may be texts, as in a command line.
    """
    valid_settings = {name: value for name, value in settings.items() if value is not None}
    for name, value in valid_settings.items():
        if name not in _SETTINGS:
            raise WrongUsage(
                f"there is no setting {name}",
                hint="docs/distributed.md lists the settings; torchrun has options for hosts, "
                "ports and restarts",
            )
        valid_settings[name] = valid(name, value, _SETTINGS[name], strict=strict)
    return valid_settings


def protocol_of(settings: Mapping[str, Any]) -> NamedProtocol:
    """The protocol that the settings name.

    The default is fgm if the settings have a threshold (``radius``, ``relative`` or ``rho``), and
    fgm-nesterov otherwise. Raises WrongUsage.
    """
    options = {name: settings[name] for name in OPTIONS.keys() & settings.keys()}
    thresholds = options.keys() & {"radius", "relative", "rho"}
    return protocol_named(
        settings.get("protocol", "fgm" if thresholds else "fgm-nesterov"), **options
    )
