"""Reuses memory for encoding, because the first access to newly allocated memory is slow."""

from __future__ import annotations

import threading

import numpy as np

_ALIGN = 64


class Arena:
    """Allocates memory from one buffer. ``reset`` makes the whole buffer free again.

    If too little of the buffer is free, ``allocate`` returns new memory. Several threads may call
    ``allocate``.
    """

    def __init__(self, size: int) -> None:
        self._buffer: memoryview | None = None
        self._size = size
        self._at = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """How many bytes of the buffer are allocated."""
        return self._at

    def allocate(self, size: int) -> memoryview:
        """``size`` writable bytes of arbitrary content. Do not use them after ``reset``."""
        with self._lock:
            at = self._at
            if at + size > self._size:
                return np.empty(size, np.uint8).data
            if self._buffer is None:
                self._buffer = np.empty(self._size, np.uint8).data
            self._at += -(-size // _ALIGN) * _ALIGN
            return self._buffer[at : at + size]

    def reset(self) -> None:
        self._at = 0


class Arenas:
    """A pool of arenas of one size. Their memory is not freed between uses."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._spare: list[Arena] = []
        self._lock = threading.Lock()

    def lend(self) -> Arena:
        with self._lock:
            return self._spare.pop() if self._spare else Arena(self._size)

    def give_back(self, arena: Arena) -> None:
        """Returns an arena to the pool. Memory that it allocated must not be used afterwards."""
        arena.reset()
        with self._lock:
            self._spare.append(arena)
