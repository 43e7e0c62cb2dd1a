"""Who commits."""

from __future__ import annotations

from mvc.errors import InvalidName
from mvc.io.process import host_name, user_name
from mvc.limits import MAX_NAME_BYTES
from mvc.model.names import printable
from mvc.repo.context import Context

__all__ = ["author_of", "check_author"]


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
