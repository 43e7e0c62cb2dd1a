"""How long operations still count for ``gc``: given, or the setting ``gc.grace_days``."""

from __future__ import annotations

from datetime import timedelta

from mvc.errors import InvalidTime
from mvc.repo.context import Context
from mvc.repo.times import parse_duration

__all__ = ["grace_of"]

_MOST = timedelta(days=36_500)


def grace_of(context: Context, given: timedelta | str | None = None) -> timedelta:
    """``14d``, ``36h``, ``0``; None is the setting. InvalidTime for anything else."""
    if given is None:
        return timedelta(days=float(context.config.get("gc.grace_days")))
    if isinstance(given, str):
        seconds = 0.0 if given.strip() == "0" else parse_duration(given)
        given = timedelta(seconds=min(seconds, 2 * _MOST.total_seconds()))
    if not timedelta(0) <= given <= _MOST:
        raise InvalidTime("a grace is a span from 0 to 36500 days")
    return given
