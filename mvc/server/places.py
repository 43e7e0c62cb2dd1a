"""Places for requests: how many of a kind are at work at once, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from mvc.server.authority import Caller


class PlacesTaken(Exception):
    """Too much at once."""


class Places:
    """Places for so many requests at once, of which nobody gets all.

    Who holds a place gets another one only while more are free than he holds: so those who hold
    theirs for long, by taking or giving slowly, leave some to others, however many they ask for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = Counter[str]()
        self._left = asyncio.Event()  # set once by the next one who leaves

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, caller: Caller) -> Callable[[], None]:
        """Takes a place, and returns what gives it back. Raises PlacesTaken."""
        if not self._has_one_for(caller.name):
            raise PlacesTaken
        return self._taken(caller.name)

    async def turn(self, caller: Caller, held: ExitStack) -> None:
        """Waits for a place, which ``held`` gives back."""
        while not self._has_one_for(caller.name):
            await self._left.wait()
        held.callback(self._taken(caller.name))

    def _has_one_for(self, name: str) -> bool:
        return self._held[name] < self._most - self._held.total()

    def _taken(self, name: str) -> Callable[[], None]:
        self._held[name] += 1
        return partial(self._leave, name)

    def _leave(self, name: str) -> None:
        self._held[name] -= 1
        self._left.set()
        self._left = asyncio.Event()
