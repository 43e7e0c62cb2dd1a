"""A cache of optimizer moments that were decoded in order to decode weights.

mvc may store weights as a prediction from the optimizer's moments in the same version. The moments
are decoded before the weights can be decoded. A checkout then needs the moments a second
time, for the optimizer's file. The cache avoids decoding the moments twice. The cache contains
*pieces*: at most 32 MiB of a tensor.
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
    """A piece in the cache.

    ``checked``: whether the checksums of all data that were decoded for the piece were compared.
    """

    piece: memoryview
    checked: bool


class ByProducts:
    """The cache. Several threads may use the cache at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[bytes, int], _ByProduct] = OrderedDict()
        self._size = 0
        self._users = 0

    @property
    def wanted(self) -> bool:
        """Whether a ``with`` block of ``keeping`` is running."""
        return self._users > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While the ``with`` block runs, the newest pieces are cached, up to a limit of bytes."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._cached.clear()
                    self._size = 0

    def add(self, start: int, pieces: Mapping[bytes, memoryview], *, checked: bool) -> None:
        """Caches pieces that begin at ``start``; the caller must no longer write to them."""
        with self._lock:
            if not self._users:
                return
            for id_, piece in pieces.items():
                self._drop((id_, start))
                self._cached[id_, start] = _ByProduct(piece, checked)
                self._size += len(piece)
            while self._size > _MOST:
                self._drop(next(iter(self._cached)))

    def pop(
        self, id_: bytes, start: int, nbytes: int, *, checked: bool = False
    ) -> memoryview | None:
        """Removes and returns a piece; None if it is not cached.

        With ``checked``, returns the piece only if all checksums were compared.
        """
        if not self._cached:
            return None
        with self._lock:
            entry = self._cached.get((id_, start))
            if entry is None or len(entry.piece) != nbytes or entry.checked < checked:
                return None
            self._drop((id_, start))
            return entry.piece

    def _drop(self, key: tuple[bytes, int]) -> None:
        entry = self._cached.pop(key, None)
        self._size -= 0 if entry is None else len(entry.piece)
