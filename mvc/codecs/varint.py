"""Reads bytes and numbers from stored data. Numbers are encoded as in ``mvc.canonical``.

``Cursor`` raises DamagedData for a read beyond the end, and for an invalid number. Numbers must be
below 2^63.
"""

from __future__ import annotations

from mvc.canonical import encode_uint, read_uint
from mvc.errors import DamagedData

_MOST = (1 << 63) - 1

varint = encode_uint


class Cursor:
    """A position in ``data``. It moves only forward, and never past the end of ``data``."""

    __slots__ = ("data", "position")

    def __init__(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        self.data = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.position = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def byte(self) -> int:
        return self.read(1)[0]

    def read(self, count: int) -> memoryview:
        """The next ``count`` bytes, without a copy."""
        start, end = self.position, self.position + count
        if end > len(self.data):
            raise DamagedData("stored data ends too early")
        self.position = end
        return self.data[start:end]

    def varint(self) -> int:
        try:
            value, self.position = read_uint(self.data, self.position, _MOST)
        except (IndexError, ValueError) as error:
            raise DamagedData("a stored number is damaged or truncated") from error
        return value

    def end(self) -> None:
        """Raises DamagedData unless every byte has been read."""
        if self.left:
            raise DamagedData(f"{self.left} bytes too many in stored data")
