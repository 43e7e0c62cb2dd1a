"""The options of a Recorder that a callback is given, looked at before a training begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mvc.errors import WrongUsage
from mvc.training.checks import RecorderOptions, check_options
from mvc.training.state.parts import PARTS

__all__ = ["checked", "included"]


def checked(**options: Any) -> dict[str, Any]:
    """Returns ``options``. Raises WrongUsage, InvalidName or InvalidPipeline naming one of them."""
    check_options(RecorderOptions(**options))
    return options


def included(include: Sequence[str] | None, parts: Sequence[str] = PARTS) -> tuple[str, ...] | None:
    """The parts that ``include`` names, at least one. None if it is None. Raises WrongUsage."""
    if include is None:
        return None
    names = (include,) if isinstance(include, str) else tuple(include)
    if not names:
        raise WrongUsage("include names nothing", hint="it takes " + ", ".join(parts))
    for name in names:
        if name not in parts:
            raise WrongUsage(f"include names {name!r}", hint="it takes " + ", ".join(parts))
    return names
