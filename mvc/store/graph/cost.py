"""What decoding costs, roughly: enough to choose between paths.

Times of recoveries in seconds of the machine at hand: ``mvc.store.recovery.timing``.
"""

from __future__ import annotations

from msgspec import Struct

from mvc.store.packs.records import Member

__all__ = ["Speed"]


class Speed(Struct, frozen=True):
    """Raw bytes per second of one thread; ``latency`` is seconds per payload."""

    full: float = 3e9
    delta: float = 1e9
    read: float = 1e9
    latency: float = 30e-6

    def seconds(self, member: Member) -> float:
        """Estimated time to read, check and decode one payload."""
        rate = self.delta if member.base else self.full
        return self.latency + member.stored / self.read + member.nbytes / rate
