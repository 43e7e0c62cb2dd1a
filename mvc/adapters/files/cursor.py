"""A read position in a model file, for code that parses the file from its start to its end.

Only 64 KiB of the file, the *window*, are in memory. The number of reads is limited, because a
small damaged file can claim to have a huge number of parts.
"""

from __future__ import annotations

from typing import Literal

from mvc.adapters.parsed import Source
from mvc.errors import BadModelFile

_WINDOW = 1 << 16
_READS = 4_000_000


class FileCursor:
    """A position in a file.

    ``at``: position of the next byte. ``end``: length of the file. ``order``: byte order of
    numbers.
    """

    def __init__(self, source: Source, order: Literal["little", "big"] = "little") -> None:
        self.source, self.order = source, order
        self.at, self.end = 0, source.size()
        self._window, self._start, self._left = b"", 0, _READS

    def skip(self, length: int) -> None:
        """Moves the position by ``length`` bytes. Raises BadModelFile if the file ends earlier."""
        self.at += length
        if self.at > self.end:
            raise BadModelFile(f"it is truncated: {self.end:,} of {self.at:,} bytes")

    def read(self, length: int) -> bytes:
        """The next ``length`` bytes. Raises BadModelFile if the file ends earlier.

        Raises LookupError if ``length`` is more than 64 KiB, or after too many reads.
        """
        start, self._left = self.at, self._left - 1
        self.skip(length)
        if length > _WINDOW or not self._left:
            raise LookupError("it has too many parts, or a part that is too long")
        if not self._start <= start <= self.at <= self._start + len(self._window):
            self._window, self._start = self.source.read(start, _WINDOW), start
        return self._window[start - self._start : self.at - self._start]

    def number(self, width: int) -> int:
        return int.from_bytes(self.read(width), self.order)
