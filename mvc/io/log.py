"""What mvc tells the program's log: loggers ``mvc.*`` of the standard ``logging`` (layer 1).

Fields of an event are attributes of its record, for formatters that write them. Who listens has
imported ``logging``; otherwise nothing is told, and no command waits for that import.
"""

from __future__ import annotations

import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


def tell(logger: str, message: str, *, level: Level = "info", **fields: str | float | None) -> None:
    """Says it to a logger, with fields that no record has by itself."""
    if (logging := sys.modules.get("logging")) is not None:
        getattr(logging.getLogger(logger), level)("%s", message, extra=fields)
