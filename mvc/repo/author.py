"""Who commits, and in which zone they live."""

from __future__ import annotations

from datetime import UTC, datetime

from mvc.io.process import host_name, user_name
from mvc.repo.context import Context

__all__ = ["author_of", "zone_minutes"]


def author_of(context: Context) -> str:
    """``user.name`` of the configuration, else the login and host name."""
    return str(context.config.get("user.name") or f"{user_name()}@{host_name()}")


def zone_minutes(time_ns: int) -> int:
    """The local offset from UTC at a moment, in minutes; 0 where the system cannot say."""
    try:
        offset = datetime.fromtimestamp(time_ns // 10**9, UTC).astimezone().utcoffset()
    except (OverflowError, OSError, ValueError):
        return 0
    return int(offset.total_seconds() // 60) if offset else 0
