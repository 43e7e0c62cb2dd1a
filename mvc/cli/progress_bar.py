"""A line on a terminal that says how far a command is."""

from __future__ import annotations

import threading
import time

from mvc.cli.output import Output
from mvc.cli.text import size
from mvc.names import printable

_EVERY = 0.1  # seconds between two drawings
_WIDTH = 30  # characters of the bar
_NAME = 24  # characters of what is being done


class ProgressBar:
    """Called as ``mvc.types.Progress``, from several threads, too.

    It counts bytes, or if ``counted`` a number of things.
    """

    def __init__(self, out: Output, verb: str, *, counted: bool) -> None:
        self._out, self._verb, self._counted = out, verb, counted
        self._began = time.monotonic()
        self._drawn = 0.0
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, what: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._drawn >= _EVERY:
                self._drawn = now
                self._out.draw(self._line(done, total, what, now - self._began))

    def _line(self, done: int, total: int, what: str, seconds: float) -> str:
        name = printable(what)
        parts = [self._verb, name if len(name) <= _NAME else "…" + name[1 - _NAME :]]
        text = f"{done:,}" if self._counted else size(done)
        if total:
            share = min(done / total, 1)
            parts.append(("━" * round(share * _WIDTH)).ljust(_WIDTH, "·"))
            text += f"/{total:,}" if self._counted else f"/{size(total)}"
        parts.append(text)
        if seconds and not self._counted:
            parts.append(f"{size(round(done / seconds))}/s")
        if done and total:
            minutes, left = divmod(round(seconds * max(total - done, 0) / done), 60)
            parts.append(f"{minutes}:{left:02} left")
        return " ".join(filter(None, parts))
