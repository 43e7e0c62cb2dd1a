"""Variable-length integers and a bounded reader over stored bytes.

Little-endian groups of seven bits, the high bit set on all but the last byte
(LEB128), one encoding a number: a padded form is refused. Reading never goes
past the end; whatever does not fit raises :class:`~mvc.errors.DamagedData`.
"""

from __future__ import annotations

from mvc.errors import DamagedData

_MAX_BITS = 63


def varint(value: int) -> bytes:
    """Encode ``value`` (0 to 2^63 - 1).

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A position in ``data`` that only moves forward and never past its end."""

    __slots__ = ("data", "position")

    def __init__(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        self.data = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.position = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes, without a copy."""
        if count > self.left:
            raise DamagedData("stored data ends too early")
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= _MAX_BITS:
                raise DamagedData("a stored number is too large")
        if shift and not byte:
            raise DamagedData("a stored number is padded")
        return value

    def end(self) -> None:
        """Check that every byte has been read."""
        if self.left:
            raise DamagedData(f"{self.left} bytes too many in stored data")
