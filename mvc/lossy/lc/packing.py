"""Functions that the coders in ``mvc.lossy.lc.coders`` share: they check symbols and pack symbols
into bytes.

A *symbol* is an integer from 0 to ``alphabet - 1``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.varint import Cursor
from mvc.codecs.words import Bytes
from mvc.errors import DamagedData

_BLOCK = 1 << 16

_FACTORS = {
    4: np.uint32(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6),
    2: np.uint16(1 << 8 | 1 << 4),
}


def symbol_type(alphabet: int) -> Any:
    """The smallest unsigned integer type for symbols below ``alphabet``."""
    return np.uint8 if alphabet <= 256 else np.uint16


def check_below(most: int, alphabet: int) -> None:
    """Raises DamagedData unless ``most``, the largest symbol of a row, is below ``alphabet``."""
    if most >= alphabet:
        raise DamagedData(f"symbol {most} is not in its alphabet of {alphabet} symbols")


def decode_constant(cursor: Cursor, count: int, alphabet: int) -> NDArray[Any]:
    """Reads ``count`` equal symbols. They are stored as one variable-length integer."""
    symbol = cursor.varint()
    check_below(symbol, alphabet)
    return np.full(count, symbol, symbol_type(alphabet))


def per_byte(alphabet: int) -> int:
    """How many symbols below ``alphabet`` fit in a byte: 8, 4, 2, 1, or 0 if not even one."""
    return next((n for n in (8, 4, 2, 1) if alphabet <= 1 << 8 // n), 0)


def index_of(symbols: Bytes, count: int) -> NDArray[Any]:
    """Packs groups of ``count`` (2 or 4) symbols into one byte each, the first symbol in the lowest
    bits.

    Each symbol has at most 8 / count bits. ``symbols`` is contiguous. The length of ``symbols`` is
    a multiple of ``count``.
    """
    # A group is read as one integer. The multiplication copies all symbols into the highest byte.
    words: NDArray[Any] = symbols.view(f"<u{count}") * _FACTORS[count]
    words >>= words.dtype.type(8 * (count - 1))
    return words


def occurrences(symbols: NDArray[Any]) -> NDArray[np.int64]:
    """How often each symbol from 0 to the largest symbol occurs.

    Counts one block after another, so that a block fits the CPU's cache.
    """
    counts = np.zeros(int(symbols.max(initial=0)) + 1, np.int64)
    for at in range(0, len(symbols), _BLOCK):
        counts += np.bincount(symbols[at : at + _BLOCK], minlength=len(counts))
    return counts


def pack(symbols: Bytes, count: int) -> Bytes:
    """Packs ``count`` symbols (8, 4, 2 or 1) into each byte; the last byte is padded with zeros."""
    symbols = np.ascontiguousarray(symbols)
    if count == 1:
        return symbols
    if count == 8:
        return np.packbits(symbols, bitorder="little")
    whole = len(symbols) // count * count
    packed = np.empty(-(-len(symbols) // count), np.uint8)
    packed[: whole // count] = index_of(symbols[:whole], count)
    if whole < len(symbols):
        last = np.zeros(count, np.uint8)
        last[: len(symbols) - whole] = symbols[whole:]
        packed[-1:] = index_of(last, count)
    return packed


def unpack(packed: Bytes, count: int, total: int) -> Bytes:
    """The inverse of ``pack``. Returns the first ``total`` symbols."""
    if count == 1:
        return packed[:total]
    if count == 8:
        return np.unpackbits(packed, count=total, bitorder="little")
    bits = 8 // count
    shifts = np.arange(0, 8, bits)
    rows = (np.arange(256)[:, np.newaxis] >> shifts & (1 << bits) - 1).astype(np.uint8)
    symbols: Bytes = rows.view(f"<u{count}").ravel().take(packed).view(np.uint8)
    return symbols[:total]
