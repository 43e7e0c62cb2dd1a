"""Limits of concurrent requests of one kind, shared fairly between callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from mvc.server.authority import Caller


class PlacesTaken(Exception):
    """The caller gets no place now."""


class Places:
    """At most ``most`` requests at once, of which one caller gets at most half, rounded up.

    A caller gets another place only if more places are free than it already has. So a caller with
    many slow requests leaves places for other callers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = Counter[str]()
        self._released = asyncio.Event()  # set once, by the next release

    @property
    def used(self) -> int:
        return self._used.total()

    def acquire(self, caller: Caller) -> Callable[[], None]:
        """Acquires a place and returns the function that releases it. Raises PlacesTaken."""
        if not self._may_acquire(caller.name):
            raise PlacesTaken
        return self._acquire(caller.name)

    async def wait(self, caller: Caller, acquired: ExitStack) -> None:
        """Acquires a place, waiting if necessary; ``acquired`` releases it when it closes."""
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
