"""Writes to the program's log: loggers ``mvc.*`` of the standard ``logging`` (layer 1).

Fields of an event become attributes of its record, for formatters that write them. If nothing has
imported ``logging``, nothing is logged, and no command waits for that import.
"""

from __future__ import annotations

import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


def log_event(
    logger: str, message: str, *, level: Level = "info", **fields: str | float | None
) -> None:
    """Logs a message, with fields as extra attributes of its record."""
    if (logging := sys.modules.get("logging")) is not None:
        getattr(logging.getLogger(logger), level)("%s", message, extra=fields)
