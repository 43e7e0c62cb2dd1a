"""Pieces that were made on the way to others, kept while somebody takes a version part by part.

Weights are predicted from the moments of the same version. Whoever writes the weights' file first
and the optimizer's file after it would otherwise decode the moments twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from mvc.limits import PIECE

_MOST = 4 * PIECE  # bytes


class _ByProduct(Struct, frozen=True):
    """``checked``: every payload that led to it fits its checksum."""

    piece: memoryview
    checked: bool


class ByProducts:
    """Each is given out once. Safe across threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[bytes, int], _ByProduct] = OrderedDict()
        self._size = 0
        self._users = 0

    @property
    def wanted(self) -> bool:
        """Whether any are kept at all."""
        return self._users > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While the block runs, they are kept, the last ones up to a limit of bytes."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._kept.clear()
                    self._size = 0

    def add(self, start: int, pieces: Mapping[bytes, memoryview], *, checked: bool) -> None:
        """Pieces of objects that begin at ``start``; the caller no longer writes to them."""
        with self._lock:
            if not self._users:
                return
            for id_, piece in pieces.items():
                self._drop((id_, start))
                self._kept[id_, start] = _ByProduct(piece, checked)
                self._size += len(piece)
            while self._size > _MOST:
                self._drop(next(iter(self._kept)))

    def take(
        self, id_: bytes, start: int, nbytes: int, *, checked: bool = False
    ) -> memoryview | None:
        """A piece, which is no longer kept then; ``checked``: only such a one."""
        if not self._kept:
            return None
        with self._lock:
            found = self._kept.get((id_, start))
            if found is None or len(found.piece) != nbytes or found.checked < checked:
                return None
            self._drop((id_, start))
            return found.piece

    def _drop(self, key: tuple[bytes, int]) -> None:
        found = self._kept.pop(key, None)
        self._size -= 0 if found is None else len(found.piece)
