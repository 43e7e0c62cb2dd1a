"""States that wait to be written: in order, bounded in bytes, every one accounted for.

``held`` counts what is being filled, waits or is being written. There is always room for two
states: one that is written and one that waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mvc.errors import WrongUsage
from mvc.training.staging import Slot

__all__ = ["MODES", "Item", "Queue"]

MODES = ("block", "coalesce", "drop")


@dataclass
class Item:
    """A state on its way. ``called_ns``: when it was taken, in nanoseconds since 1970.

    ``loss`` and ``data`` are those of its batch, for a lossy pipeline; ``awaited``: somebody
    waits for its production weights.
    """

    slot: Slot
    nbytes: int
    step: int = 0
    called_ns: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    data: Any = None
    awaited: bool = False


class Queue:
    """Between the thread that trains and the one that writes."""

    def __init__(self, mode: str, limit: int | None) -> None:
        """``limit``: bytes of staged states, None for twice the newest one."""
        if mode not in MODES:
            raise WrongUsage(f"when_full is {mode!r}", hint="it takes " + ", ".join(MODES))
        self._mode = mode
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._free: list[Slot] = []
        self._held = 0
        self._busy = 0  # items being filled or written
        self._closed = False
        self.dropped = 0
        self.coalesced = 0
        self.peak = 0

    @property
    def held(self) -> int:
        """Bytes that are staged and not yet durable."""
        return self._held

    def reserve(self, nbytes: int) -> tuple[Item | None, bool]:
        """Room for a state, and whether it had to be waited for; None if it is to be dropped."""
        with self._changed:
            waited = False
            while not self._fits(nbytes):
                if self._mode == "drop":
                    self.dropped += 1
                    return None, waited
                waited = True
                self._changed.wait()
            if self._mode == "coalesce" and self._waiting:
                item = self._waiting.pop()
                self._held -= item.nbytes
                self._free.append(item.slot)
                self.coalesced += 1
            self._held += nbytes
            self.peak = max(self.peak, self._held)
            self._busy += 1
            return Item(self._free.pop() if self._free else Slot(), nbytes), waited

    def _fits(self, nbytes: int) -> bool:
        held = self._held
        if self._mode == "coalesce" and self._waiting:
            held -= self._waiting[-1].nbytes
        return held + nbytes <= max(self._limit or 0, 2 * nbytes)

    def put(self, item: Item) -> None:
        """Hands a filled item over."""
        with self._changed:
            self._busy -= 1
            self._waiting.append(item)
            self._changed.notify_all()

    def give_back(self, item: Item) -> None:
        """The item is durable, or has failed: its room is free."""
        with self._changed:
            self._busy -= 1
            self._held -= item.nbytes
            if self._closed:
                self._free.clear()
            else:
                self._free.append(item.slot)
            self._changed.notify_all()

    def take(self) -> Item | None:
        """The oldest item, when there is one; None once the queue is closed and empty."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                self._free.clear()
                return None
            self._busy += 1
            return self._waiting.popleft()

    def join(self) -> None:
        """Waits until nothing is on its way."""
        with self._changed:
            while self._waiting or self._busy:
                self._changed.wait()

    def close(self) -> None:
        """Nothing more comes; what waits is still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
