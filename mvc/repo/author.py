"""Who commits, and in which zone they live."""

from __future__ import annotations

from datetime import UTC, datetime

from mvc.errors import InvalidName
from mvc.io.process import host_name, user_name
from mvc.limits import MAX_NAME_BYTES
from mvc.model.names import printable
from mvc.repo.context import Context

__all__ = ["author_of", "check_author", "zone_minutes"]


def check_author(name: str) -> str:
    """``name`` if it is printable text of one line; InvalidName otherwise."""
    if not name.strip():
        raise InvalidName(
            "the author's name is empty",
            hint="leave it out to take user.name, or the login and host name",
        )
    if printable(name) != name:
        raise InvalidName(
            f"the author's name holds a control character: {printable(name)}",
            hint="write it on one line, without control or invisible characters",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"the author's name is longer than {MAX_NAME_BYTES} bytes")
    return name


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
