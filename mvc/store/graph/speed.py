"""What decoding costs, for planning paths and bounding recovery."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.store.packs.records import Member

__all__ = ["Speed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """Raw bytes a second of one thread; ``latency`` is seconds for any one payload."""

    full: float = 3e9
    delta: float = 1e9
    read: float = 1e9
    latency: float = 30e-6

    def seconds(self, member: Member) -> float:
        """Estimated time to read, check and decode one payload."""
        rate = self.delta if member.base else self.full
        return self.latency + member.stored / self.read + member.nbytes / rate
