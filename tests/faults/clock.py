"""A clock that a test sets."""

from __future__ import annotations

from mvc.io.clock import Clock


class FixedClock(Clock):
    """Starts at ``start_ns`` and goes ``step_ns`` further each time it is asked the time."""

    def __init__(self, start_ns: int = 1_750_000_000_000_000_000, step_ns: int = 0) -> None:
        self.time_ns = start_ns
        self.step_ns = step_ns

    def now_ns(self) -> int:
        now = self.time_ns
        self.time_ns += self.step_ns
        return now

    def advance(self, ns: int) -> None:
        """Sets it forward, or back."""
        self.time_ns += ns
