"""Writes to the program's log: loggers ``mvc.*`` of the standard module ``logging``.

Fields of an event become attributes of its log record, for formatters that write these attributes.
If no module has imported ``logging``, nothing is logged. This module never imports ``logging``,
because the import would delay every command.
"""

from __future__ import annotations

import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


def log_event(
    logger: str, message: str, *, level: Level = "info", **fields: str | float | None
) -> None:
    """Logs a message. ``fields`` become attributes of its log record."""
    if (logging := sys.modules.get("logging")) is not None:
        getattr(logging.getLogger(logger), level)("%s", message, extra=fields)
