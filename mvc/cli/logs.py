"""What the loggers ``mvc.*`` are told, on stderr: as lines, or as one JSON object a line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps

from mvc.cli.output import Output

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every record has."""


class _ToOutput(logging.Handler):
    """Hands each record on, as a text."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(self.format(record))
        except (OSError, ValueError):  # nobody reads stderr any more
            self.handleError(record)


class _TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)[:19]}Z {record.getMessage()}"


class JsonLine(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        known = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            known["traceback"] = self.formatException(record.exc_info)
        fields = {k: v for k, v in vars(record).items() if k not in _OWN and k not in known}
        return dumps({**known, **fields}, default=str)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


@contextmanager
def shown(out: Output, name: str) -> Iterator[None]:
    """While the block runs, what is told to a logger is a line of the program.

    If the program writes JSON, it is written as such in any case.
    """
    if out.logger is not None:
        yield
        return
    handler = _ToOutput(out.note)
    handler.setFormatter(_TextLine())
    with _attached(handler, name):
        yield


@contextmanager
def as_json(out: Output) -> Iterator[None]:
    """While the block runs, all that would be said on stderr is a JSON object a line."""
    handler = _ToOutput(out.log_line)
    handler.setFormatter(JsonLine())
    handler.addFilter(lambda record: not out.quiet or record.levelno >= logging.WARNING)
    with _attached(handler, "mvc"):
        out.logger = logging.getLogger("mvc.cli")
        try:
            yield
        finally:
            out.logger = None


@contextmanager
def _attached(handler: logging.Handler, name: str) -> Iterator[None]:
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
