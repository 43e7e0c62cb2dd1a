"""Rice codes: whole numbers that are mostly small, without tables and without loops.

A number v with parameter k is the quotient v >> k in unary (that many 0 bits, then a 1) and
the k low bits as they are. All low bits lie together and all quotients lie together, so that
either side is a handful of array operations. For the gaps between changed entries, which
are nearly geometric, this is within some per cent of the entropy (Golomb 1966; Rice 1979).

Stored: k, one byte; the sum of all quotients; then two streams, the low bits of every number,
lowest first, and the quotients. The bits of a stream fill bytes from the highest down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.streams import Bytes, Parts, StreamCoder
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData

__all__ = ["decode_numbers", "encode_numbers", "put_stream", "take_stream"]

_MOST_LOW = 40  # bits of a number's low part
_MOST_UNARY = 4  # a quotient on the average: the parameter that fits best leaves 3.5 at most

Numbers = NDArray[np.int64]


def encode_numbers(numbers: Numbers, compressor: StreamCoder | None) -> Parts:
    """Parts to be joined. ``numbers`` are not negative and below 2^40."""
    low_bits = _parameter(numbers)
    quotients = numbers >> low_bits
    ends = np.cumsum(quotients + 1)
    unary = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    unary[ends - 1] = 1
    low = (numbers[:, np.newaxis] >> np.arange(low_bits)) & 1
    return [
        bytes((low_bits,)) + varint(len(unary) - len(numbers)),
        *put_stream(np.packbits(low.astype(np.uint8)), compressor),
        *put_stream(np.packbits(unary), compressor),
    ]


def decode_numbers(
    cursor: Cursor, count: int, most: int, compressor: StreamCoder | None
) -> Numbers:
    """The next ``count`` numbers, none above ``most``; DamagedData unless that is what is there.

    Allocates a fixed multiple of ``count``.
    """
    low_bits = cursor.byte()
    total = cursor.varint()
    if low_bits > min(_MOST_LOW, most.bit_length()) or total > _MOST_UNARY * count:
        raise DamagedData("numbers larger than there can be")
    low = take_stream(cursor, -(-count * low_bits // 8), compressor, "low")
    unary = take_stream(cursor, -(-(count + total) // 8), compressor, "unary")
    bits = np.unpackbits(unary)
    ends = np.flatnonzero(bits)
    if len(ends) != count or (count and int(ends[-1]) != count + total - 1):
        raise DamagedData("a row of numbers does not end where it should")
    if np.unpackbits(low)[count * low_bits :].any():
        raise DamagedData("bits behind the last number")
    numbers = ends.astype(np.int64)
    numbers[1:] -= ends[:-1] + 1
    numbers <<= low_bits
    if low_bits:
        rows = np.unpackbits(low, count=count * low_bits).reshape(count, low_bits)
        for i in range(low_bits):
            numbers |= rows[:, i].astype(np.int64) << i
    if count and int(numbers.max()) > most:
        raise DamagedData("a number larger than there can be")
    return numbers


def put_stream(stream: Bytes, compressor: StreamCoder | None) -> Parts:
    """A stream whose length the reader knows."""
    return compressor.encode(stream) if compressor else [stream.tobytes()]


def take_stream(cursor: Cursor, count: int, compressor: StreamCoder | None, slot: str) -> Bytes:
    """The next stream of ``count`` bytes, not to be written to; valid until ``slot`` is reused."""
    if compressor is None:
        return np.frombuffer(cursor.take(count), np.uint8)
    stream = compressor.decode(cursor, count, slot)
    return np.full(count, stream, np.uint8) if isinstance(stream, int) else stream


def _parameter(numbers: NDArray[Any]) -> int:
    """The k that takes fewest bits, among those around the mean."""
    if not len(numbers):
        return 0
    middle = int(numbers.mean() * np.log(2)).bit_length()
    around = range(max(0, middle - 2), min(_MOST_LOW, middle + 2) + 1)
    return min(around, key=lambda k: int((numbers >> k).sum()) + k * len(numbers))
