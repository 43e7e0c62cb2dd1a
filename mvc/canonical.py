"""Canonical bytes: one encoding per value, so that equal values have equal hashes.

Unsigned integers are encoded in LEB128 without redundant bytes. A signed integer is first mapped to
an unsigned integer (zigzag: 0, -1, 1, -2 become 0, 1, 2, 3). The length of a byte string is written
before its bytes. ``Reader`` refuses bytes that ``Writer`` would not write (docs/format.md,
"Primitives").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mvc.errors import DamagedData
from mvc.names import encode_text

_MAX_UINT_BYTES = 10
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]  # most numbers are small


@lru_cache(maxsize=4096)  # the same lengths of tensors are encoded many times
def encode_uint(value: int) -> bytes:
    """LEB128 of 0 <= ``value`` < 2**64.

    >>> encode_uint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} does not fit 64 unsigned bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uint(data: bytes | memoryview, at: int, limit: int) -> tuple[int, int]:
    """The number at offset ``at``, and the offset of the byte after the number.

    Raises IndexError if the bytes end within the number; ValueError if the number is not canonical
    or exceeds ``limit``.
    """
    value = shift = 0
    for byte in data[at : at + _MAX_UINT_BYTES]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if shift > 7 and byte == 0:
                raise ValueError("a number has redundant bytes")
            if value > limit:
                raise ValueError(f"a number exceeds {limit}")
            return value, at + shift // 7
    data[at + _MAX_UINT_BYTES - 1]  # IndexError
    raise ValueError("a number is longer than 64 bits")


def signed(value: int) -> int:
    """Decodes a signed integer that was mapped to an unsigned integer (zigzag)."""
    return value >> 1 if not value & 1 else -((value + 1) >> 1)


def decode_text(data: bytes) -> str:
    """The inverse of ``encode_text``. Accepts any bytes."""
    return data.decode("utf-8", "surrogateescape")


class Writer:
    """Collects canonical bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def uint(self, value: int) -> Writer:
        self._data += encode_uint(value)
        return self

    def sint(self, value: int) -> Writer:
        return self.uint(value << 1 if value >= 0 else (-value << 1) - 1)

    def raw(self, data: bytes) -> Writer:
        """Appends bytes without their length. The reader must know the length."""
        self._data += data
        return self

    def blob(self, data: bytes) -> Writer:
        self._data += encode_uint(len(data))
        self._data += data
        return self

    def text(self, value: str) -> Writer:
        return self.blob(encode_text(value))

    def uints(self, values: Sequence[int]) -> Writer:
        self.uint(len(values))
        for value in values:
            self.uint(value)
        return self

    def done(self) -> bytes:
        return bytes(self._data)


class Reader:
    """Reads the output of ``Writer``; raises DamagedData for anything else.

    ``name``: how messages name the value, such as "a commit".
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 0
        self._name = name

    def fail(self, why: str) -> DamagedData:
        return DamagedData(f"{self._name} is damaged: {why} at byte {self._at}")

    @property
    def position(self) -> int:
        return self._at

    def uint(self, limit: int = (1 << 64) - 1) -> int:
        data, at = self._data, self._at
        try:
            byte = data[at]
            if byte < 0x80:  # the common case
                if byte <= limit:
                    self._at = at + 1
                    return byte
            elif 0 < (high := data[at + 1]) < 0x80 and (value := byte & 0x7F | high << 7) <= limit:
                self._at = at + 2
                return value
            value, self._at = read_uint(data, at, limit)
            return value
        except IndexError:
            raise self.fail("it ends within a number") from None
        except ValueError as error:
            raise self.fail(str(error)) from None

    def version(self) -> None:
        """Reads the version of the encoding. Only version 1 is known."""
        if self.uint() != 1:
            raise self.fail("its version is unknown")

    def sint(self) -> int:
        return signed(self.uint())

    def raw(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise self.fail(f"{length} bytes are missing")
        part = self._data[self._at : end]
        self._at = end
        return part

    def blob(self, limit: int) -> bytes:
        data, at = self._data, self._at + 1
        if (
            at <= len(data) and (length := data[at - 1]) < 0x80 and length <= limit
        ):  # the common case
            end = at + length
            if end <= len(data):
                self._at = end
                return data[at:end]
        return self.raw(self.uint(limit))

    def text(self, limit: int) -> str:
        return self.blob(limit).decode("utf-8", "surrogateescape")  # accepts all bytes

    def count(self, limit: int) -> int:
        """Reads the number of the items that follow. Each item has at least one byte."""
        data, at = self._data, self._at
        if at < len(data) and data[at] == 0:  # the common case
            self._at = at + 1
            return 0
        value = self.uint(limit)
        if value > len(self._data) - self._at:
            raise self.fail(f"{value} items cannot fit")
        return value

    def uints(self, limit: int) -> tuple[int, ...]:
        return tuple(self.uint() for _ in range(self.count(limit)))

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.fail(f"{len(self._data) - self._at} bytes follow its end")
