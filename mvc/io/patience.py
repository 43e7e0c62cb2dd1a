"""A wait with a limit, and with a word: after five seconds it says what it waits for."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from mvc.errors import MvcWarning

SLICE = 1.0
"""Seconds for which a wait may sleep between two calls of ``look``."""

FIRST_WORD = 5.0
"""Seconds after which a wait says for the first time what it waits for."""


class StillWaiting(MvcWarning):
    """Something takes longer than usual; the message names it."""


class Patience:
    """Counts how long something has been waited for, up to ``limit`` seconds.

    ``say`` is called with the seconds after 5 of them, after 10, 20, and so on. Time in which
    this process was itself stopped does not count.
    """

    def __init__(self, limit: float, say: Callable[[float], object]) -> None:
        self._limit, self._say = limit, say
        self._word = FIRST_WORD
        self.renew()

    def renew(self) -> None:
        """What was waited for has come: the next wait begins. A shorter one gets no word."""
        self._waited, self._looked = 0.0, time.monotonic()

    def await_(self, arrived: Callable[[float], bool]) -> bool:
        """Whether it came in time. ``arrived`` waits for it so many seconds, and says if it did."""
        while not arrived(min(SLICE, max(0.0, self._limit - self._waited))):
            if self.look():
                return False
        return True

    def look(self) -> bool:
        """Whether the limit has passed. To be called every ``SLICE`` seconds."""
        now = time.monotonic()
        self._waited += min(now - self._looked, 2 * SLICE)
        self._looked = now
        if self._waited >= self._word:
            self._word = 2 * self._waited
            self._say(self._waited)
        return self._waited >= self._limit


def warn(what: str, seconds: float) -> None:
    """Says by Python's ``warnings`` what is waited for."""
    warnings.warn(f"waits for {what} ({seconds:.0f} s)", StillWaiting, stacklevel=2)


@contextmanager
def speaking(what: str) -> Iterator[None]:
    """Says by Python's ``warnings`` if the block takes long."""
    done = Event()
    patience = Patience(math.inf, lambda seconds: warn(what, seconds))
    thread = Thread(target=patience.await_, args=(done.wait,), name="mvc-patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
