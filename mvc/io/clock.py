"""The system's clock, as an object that tests replace."""

from __future__ import annotations

import time

from mvc.errors import InvalidTime

_END = (1 << 63) - 1  # April 2262: the largest number of ns in a signed integer of 64 bits
_SECOND = 1_000_000_000


class Clock:
    """The system's clock."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970 UTC. The clock may be set back, so do not sort by this time."""
        return time.time_ns()


def check_now(time_ns: int) -> int:
    """Returns the time ``time_ns``. Raises InvalidTime for a time before 1970 or after 2262."""
    if not 0 <= time_ns < _END:
        raise InvalidTime(
            f"the system's clock shows {time_ns // _SECOND} s since 1970, "
            "but only times from 1970 to 2262 can be recorded",
            hint="set the clock, then retry",
        )
    return time_ns
