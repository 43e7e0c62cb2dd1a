"""Waits with a time limit. After five seconds, a warning says what the wait is for."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from mvc.errors import MvcWarning

SLICE = 1.0
"""Maximum seconds between two calls of ``Patience.is_over``."""

FIRST_WORD = 5.0
"""Seconds before the first warning of a wait."""


class StillWaiting(MvcWarning):
    """A wait takes longer than usual. The message says what the wait is for."""


class Patience:
    """Measures a wait of at most ``limit`` seconds.

    ``say`` is called after 5, 10, 20, ... seconds. Its argument is the number of seconds waited so
    far. Time during which this process was stopped does not count.
    """

    def __init__(self, limit: float, say: Callable[[float], object]) -> None:
        self._limit, self._say = limit, say
        self._word = FIRST_WORD
        self.renew()

    def renew(self) -> None:
        """Starts a new wait: sets the waited time to zero."""
        self._waited, self._last = 0.0, time.monotonic()

    def await_(self, arrived: Callable[[float], bool]) -> bool:
        """Calls ``arrived`` until it returns True or the limit has passed.

        ``arrived`` gets the number of seconds for which it may wait. Returns whether ``arrived``
        returned True.
        """
        while not arrived(min(SLICE, max(0.0, self._limit - self._waited))):
            if self.is_over():
                return False
        return True

    def is_over(self) -> bool:
        """Whether the limit has passed. Call this method at least every ``SLICE`` seconds."""
        now = time.monotonic()
        self._waited += min(now - self._last, 2 * SLICE)
        self._last = now
        if self._waited >= self._word:
            self._word = 2 * self._waited
            self._say(self._waited)
        return self._waited >= self._limit


def warn(reason: str, seconds: float) -> None:
    """Warns, by Python's ``warnings``, that this process waits for ``reason``."""
    warnings.warn(f"waiting for {reason} ({seconds:.0f} s)", StillWaiting, stacklevel=2)


@contextmanager
def speaking(reason: str) -> Iterator[None]:
    """Calls ``warn`` if the ``with`` block takes long. ``reason``: what the block waits for."""
    done = Event()
    patience = Patience(math.inf, lambda seconds: warn(reason, seconds))
    thread = Thread(target=patience.await_, args=(done.wait,), name="mvc-patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
