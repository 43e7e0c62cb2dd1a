"""Writes messages to the loggers ``mvc.*`` of Python's module ``logging``.

If the program has not imported ``logging``, nothing is logged. mvc does not import ``logging`` for
this, because the import would delay every command.
"""

from __future__ import annotations

import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


def log_event(
    logger: str, message: str, *, level: Level = "info", **fields: str | float | None
) -> None:
    """Logs a message. ``fields``: additional attributes of the log record, for formatters."""
    if (logging := sys.modules.get("logging")) is not None:
        getattr(logging.getLogger(logger), level)("%s", message, extra=fields)
