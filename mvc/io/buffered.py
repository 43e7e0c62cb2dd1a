"""Buffered reading of a file from front to back."""

from __future__ import annotations

from mvc.io.files import ReadFile

__all__ = ["ReadAhead"]

_WINDOW = 1 << 20


class ReadAhead:
    """Reads a file through a window of 1 MiB; larger requests go to the file itself.

    For one pass by one thread: what is appended or removed meanwhile may not be seen.
    """

    def __init__(self, file: ReadFile) -> None:
        self.path = file.path
        self._file = file
        self._start = 0
        self._data = b""

    def size(self) -> int:
        """Length in bytes, as of now."""
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``, or fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            if length > _WINDOW:
                return self._file.read(offset, length)
            self._start, self._data, at = offset, self._file.read(offset, _WINDOW), 0
        return self._data[at : at + length]
