"""Functions that several coders share. They choose types, check symbols, and pack symbols into
bytes.

Symbols are integers from 0. ``alphabet`` is the number of different symbols.
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
    """``count`` equal symbols, stored as one symbol: a variable-length integer."""
    symbol = cursor.varint()
    check_below(symbol, alphabet)
    return np.full(count, symbol, symbol_type(alphabet))


def per_byte(alphabet: int) -> int:
    """How many symbols below ``alphabet`` fit in a byte: 8, 4, 2, 1, or 0 if not even one."""
    return next((n for n in (8, 4, 2, 1) if alphabet <= 1 << 8 // n), 0)


def index_of(symbols: Bytes, count: int) -> NDArray[Any]:
    """Packs each ``count`` symbols (2 or 4) into one byte, the first symbol in the lowest bits.

    Each symbol has at most 8 / count bits. ``symbols`` is contiguous, and its length is a multiple
    of ``count``. One multiplication moves all symbols of an integer into its highest byte.
    """
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
    """The first ``total`` symbols of bytes with ``count`` symbols each."""
    if count == 1:
        return packed[:total]
    if count == 8:
        return np.unpackbits(packed, count=total, bitorder="little")
    bits = 8 // count
    shifts = np.arange(0, 8, bits)
    rows = (np.arange(256)[:, np.newaxis] >> shifts & (1 << bits) - 1).astype(np.uint8)
    symbols: Bytes = rows.view(f"<u{count}").ravel().take(packed).view(np.uint8)
    return symbols[:total]
