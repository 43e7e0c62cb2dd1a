"""Limits concurrent requests of one kind, and shares the places fairly between callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from mvc.server.authority import Caller


class PlacesTaken(Exception):
    """No place is free for this caller now."""


class Places:
    """``most`` places for concurrent requests. One caller gets at most half, rounded up.

    A caller gets another place only if more places are free than the caller has already. So a
    caller with many slow requests leaves places for other callers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = Counter[str]()
        self._released = asyncio.Event()  # each event is set once, by the next release

    @property
    def used(self) -> int:
        return self._used.total()

    def acquire(self, caller: Caller) -> Callable[[], None]:
        """Acquires a place. Returns the function that releases it. Raises PlacesTaken."""
        if not self._may_acquire(caller.name):
            raise PlacesTaken
        return self._acquire(caller.name)

    async def wait(self, caller: Caller, acquired: ExitStack) -> None:
        """Acquires a place, and waits if necessary. Closing ``acquired`` releases the place."""
        while not self._may_acquire(caller.name):
            await self._released.wait()
        acquired.callback(self._acquire(caller.name))

    def _may_acquire(self, name: str) -> bool:
        return self._used[name] < self._most - self._used.total()

    def _acquire(self, name: str) -> Callable[[], None]:
        self._used[name] += 1
        return partial(self._release, name)

    def _release(self, name: str) -> None:
        self._used[name] -= 1
        self._released.set()
        self._released = asyncio.Event()
