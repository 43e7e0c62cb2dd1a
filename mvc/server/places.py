"""Limits how many requests of one kind run concurrently, in total and for each caller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from mvc.server.authority import Caller


class PlacesTaken(Exception):
    """The limit of concurrent requests is reached for this caller."""


class Places:
    """Permits ``most`` concurrent requests: each request occupies a *place*.

    A caller with n places gets one more place only if more than n places are free. So one caller
    gets at most half of the places, rounded up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = Counter[str]()
        self._released = asyncio.Event()  # the next release sets and replaces this event

    @property
    def used(self) -> int:
        return self._used.total()

    def acquire(self, caller: Caller) -> Callable[[], None]:
        """Acquires a place. Returns a function that releases the place. Raises PlacesTaken."""
        if not self._may_acquire(caller.name):
            raise PlacesTaken
        return self._acquire(caller.name)

    async def wait(self, caller: Caller, acquired: ExitStack) -> None:
        """Waits until a place is free, and acquires it. Closing ``acquired`` releases the place."""
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
