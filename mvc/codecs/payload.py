"""A payload: the container of the encoded chunks of one tensor.

"Payload of a single member" in docs/format.md defines the bytes of a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData
from mvc.types import Bytes

_SMALLEST_CHUNK = 6  # log2: 64 bytes, a multiple of every width
_LARGEST_CHUNK = 40


def pack_chunks(chunks: Sequence[Bytes], width: int, chunk_size: int) -> list[Bytes]:
    """The payload in parts: a head with the lengths of chunks, then each of ``chunks``.

    ``width``: the size of an element in bytes. ``chunk_size``: the size of a chunk before encoding,
    in bytes; a power of two, at least 64. The last chunk may be smaller.
    """
    head = bytes((chunk_size.bit_length() - 1 << 2 | width.bit_length() - 1,))
    return [head + b"".join(varint(len(c)) for c in chunks[:-1]), *chunks]


class Payload:
    """Read access to the chunks of a stored tensor. The constructor validates their lengths."""

    __slots__ = ("_cuts", "_data", "chunk_size", "count", "width")

    def __init__(self, data: memoryview | bytes, nbytes: int, *, stored: int | None = None) -> None:
        """``nbytes``: the size of the tensor. Raises DamagedData unless all lengths match.

        ``stored``: the total length of the payload, if ``data`` has only the head.
        """
        cursor = Cursor(data)
        end = len(cursor.data) if stored is None else stored
        head = cursor.byte()
        exponent = head >> 2
        if not _SMALLEST_CHUNK <= exponent <= _LARGEST_CHUNK:
            raise DamagedData(f"stored chunks of 2^{exponent} bytes are not allowed")
        self.width = 1 << (head & 3)
        self.chunk_size = 1 << exponent
        self.count = -(-nbytes // self.chunk_size)
        if self.count > cursor.left + 1:
            raise DamagedData("stored data is too short for its number of chunks")
        lengths = [cursor.varint() for _ in range(self.count - 1)]
        self._cuts = list(accumulate(lengths, initial=cursor.position))
        if self.count:
            self._cuts.append(end)
        if any(a >= b for a, b in pairwise(self._cuts)):
            raise DamagedData("a stored chunk is empty or outside the data")
        if self._cuts[-1] != end:
            raise DamagedData("stored data continues after the last chunk")
        self._data = cursor.data

    @property
    def sizes(self) -> list[int]:
        return [b - a for a, b in pairwise(self._cuts)]

    def place(self, index: int) -> slice:
        """The byte range of a chunk in the stored data."""
        return slice(self._cuts[index], self._cuts[index + 1])

    def chunk(self, index: int) -> memoryview:
        return self._data[self.place(index)]
