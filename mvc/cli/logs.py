"""Prints the records of a logger as lines of the program."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mvc.cli.output import Output


class _ToOutput(logging.Handler):
    """Passes each record on, as a text."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except (OSError, ValueError):  # stderr is closed
            self.handleError(record)


@contextmanager
def shown(out: Output, name: str) -> Iterator[None]:
    """While the block runs, each record of the logger is a line on stderr: UTC time, message."""
    handler = _ToOutput(out.note)
    lines = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    lines.converter = time.gmtime
    handler.setFormatter(lines)
    logger = logging.getLogger(name)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
