"""The clocks, as an object that tests replace (layer 1)."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The system's clocks."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970 UTC; may be set back, so order nothing by it."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
