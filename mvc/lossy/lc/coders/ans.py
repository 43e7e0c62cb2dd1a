"""Entropy coding by asymmetric numeral systems (Duda 2013; the range variant).

docs/format.md, "Payload of steps", describes the encoded bytes and how to decode them. A *letter*
is one symbol, or a byte of 2, 4 or 8 symbols if the encoded letters need hardly more bytes. The
encoder codes the last letter first. It has many states, called *lanes*, because a coder with one
state would need a Python loop over letters. A row of letters, one letter for each lane, takes a few
array operations. The final state of each lane is stored in about 3 bytes. So a short input gets few
lanes, and is coded slowly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData
from mvc.lossy.lc.coders import packed
from mvc.lossy.lc.packing import (
    check_below,
    decode_constant,
    occurrences,
    pack,
    per_byte,
    symbol_type,
    unpack,
)
from mvc.lossy.lc.step import BLOCK, Symbols

Letters = NDArray[Any]

CONSTANT, RAW, CODED, PACKED = range(4)
_WORD = 16  # bits
_SPARE = 4  # bits of a state in addition to the precision; they keep the loss below 0.1 %
_PRECISION = (12, 16)
_LANE_SHARE = 0.0125  # at most this share of the bytes is for the states of lanes
_ROWS = (256, 8192)  # least and most letters of a lane; a lane of a short input has fewer letters
_LANES = (4, 2048)  # least and most lanes; a long input has more lanes
_WORTH = 1.005  # letters of several symbols are used if they need at most 0.5 % more bytes
_DEAR = 1.05  # if the states of lanes add more than 5 %, the coder ``packed`` is tried, too


def encode(symbols: Symbols, alphabet: int) -> Parts:
    """Encodes the symbols, which are below ``alphabet``; returns parts to join."""
    if not len(symbols):
        return []
    if bool((symbols == symbols[0]).all()):
        return [bytes((CONSTANT,)) + varint(int(symbols[0]))]
    together, letters, counts, size = _letters(symbols, alphabet)
    precision = _precision(len(letters))
    least, most = -(-len(letters) // _ROWS[1]), len(letters) // _ROWS[0]
    cost = _state_bytes(precision)
    lanes = max(min(int(size * _LANE_SHARE / cost), most, _LANES[1]), least, _LANES[0])
    expected = size + lanes * cost
    if expected > _DEAR * size:
        parts = packed.encode(symbols, alphabet)
        if sum(map(len, parts)) <= expected:
            return [bytes((PACKED,)), *parts]
    if expected >= len(symbols) * _width(alphabet):
        return [bytes((RAW,)), symbols.astype(f"<u{_width(alphabet)}").tobytes()]
    frequencies = _frequencies(counts, precision)
    states, words = _encode(letters, frequencies, precision, lanes)
    return [
        bytes((CODED, together, precision)) + varint(lanes) + varint(len(frequencies)),
        *(varint(int(f)) for f in frequencies),
        states.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _state_bytes(precision)].tobytes(),
        varint(len(words)),
        words.tobytes(),
    ]


def decode(cursor: Cursor, count: int, alphabet: int) -> Symbols:
    """Decodes the next ``count`` symbols."""
    if not count:
        return np.empty(0, np.uint8)
    width, form = _width(alphabet), cursor.byte()
    if form == CONSTANT:
        return decode_constant(cursor, count, alphabet)
    if form == RAW:
        symbols: Symbols = np.frombuffer(cursor.read(count * width), f"<u{width}")
    elif form == PACKED:
        symbols = packed.decode(cursor, count, alphabet)
    elif form == CODED:
        symbols = _decode_coded(cursor, count, alphabet)
    else:
        raise DamagedData(f"symbols of unknown form {form}")
    check_below(int(symbols.max()), alphabet)
    return symbols


def _width(alphabet: int) -> int:
    return 1 if alphabet <= 256 else 2


def _letters(symbols: Symbols, alphabet: int) -> tuple[int, Letters, NDArray[Any], float]:
    """Divides symbols into letters.

    Returns the number of symbols per letter, the letters, how often each letter occurs, and the
    estimated number of encoded bytes.
    """
    counts = occurrences(symbols)
    size = _size(counts)
    together = per_byte(alphabet)
    if together > 1:
        letters = pack(symbols.astype(np.uint8, copy=False), together)
        of_letters = occurrences(letters)
        if (joined_size := _size(of_letters)) <= _WORTH * size:
            return together, letters, of_letters, joined_size
    return 1, symbols, counts, size


def _size(counts: NDArray[Any]) -> float:
    """The estimated number of encoded bytes: letters and frequencies, without states of lanes."""
    total = int(counts.sum())
    precision = _precision(total)
    frequencies = _frequencies(counts, precision)
    used = np.flatnonzero(counts)
    bits = float((counts[used] * (precision - np.log2(frequencies[used]))).sum())
    return bits / 8 + len(counts) + np.count_nonzero(frequencies > 0x7F)


def _precision(letters: int) -> int:
    least, most = _PRECISION
    return max(least, min(most, letters.bit_length() - 1))


def _state_bytes(precision: int) -> int:
    return -(-(precision + _SPARE + _WORD) // 8)


def _frequencies(counts: NDArray[Any], precision: int) -> NDArray[np.int64]:
    """Scales ``counts`` to whole numbers with the sum 2^precision.

    The frequency of a letter that occurs is at least 1.
    """
    exact = counts * ((1 << precision) / int(counts.sum()))
    frequencies = np.maximum(np.rint(exact), counts > 0).astype(np.int64)
    while excess := int(frequencies.sum()) - (1 << precision):
        largest = int(frequencies.argmax())
        frequencies[largest] -= min(excess, int(frequencies[largest]) // 2)
    return frequencies


def _encode(
    letters: Letters, frequencies: NDArray[np.int64], precision: int, lanes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the final states, and the words (16 bits each) in the order of decoding.

    States are whole numbers below 2^36, stored as float64. So no rounding error changes a result.
    """
    share = frequencies.astype(np.float64)
    before = (np.cumsum(frequencies) - frequencies).astype(np.float64)
    state = np.full(lanes, 1 << precision + _SPARE, np.float64)
    quotients, full = np.empty(lanes), np.empty(lanes, np.bool_)
    words: list[NDArray[Any]] = []
    rows = max(1, BLOCK // lanes)
    for first in reversed(range(0, -(-len(letters) // lanes), rows)):
        block = letters[first * lanes : (first + rows) * lanes]
        f, c = share.take(block), before.take(block)
        gap, limit = 2.0**precision - f, f * 2.0 ** (_WORD + _SPARE)
        for at in reversed(range(0, len(block), lanes)):
            row = slice(at, at + lanes)
            divisor = f[row]
            lane = slice(len(divisor))
            x, q, m = state[lane], quotients[lane], full[lane]
            np.greater_equal(x, limit[row], out=m)
            moving = m.nonzero()[0]
            if len(moving):
                moved = x.take(moving)
                moved *= 2.0**-_WORD
                quotient_ = np.floor(moved)
                moved -= quotient_
                words.append(moved)
                x[moving] = quotient_
            np.divide(x, divisor, out=q)
            np.floor(q, out=q)
            q *= gap[row]
            x += q
            x += c[row]
    fractions = np.concatenate(words[::-1]) if words else np.empty(0)
    return state.astype(np.int64), (fractions * 2.0**_WORD).astype("<u2")


def _decode_coded(cursor: Cursor, count: int, alphabet: int) -> Symbols:
    together, precision = cursor.byte(), cursor.byte()
    known_kind = together and together in {1, per_byte(alphabet)}
    if not known_kind or not _PRECISION[0] <= precision <= _PRECISION[1]:
        raise DamagedData("coded symbols have an unknown letter size or precision")
    letters = -(-count // together)
    lanes, known = cursor.varint(), cursor.varint()
    least = -(-letters // _ROWS[1])
    if not least <= lanes <= max(letters, _LANES[0]) or known > 1 << precision:
        raise DamagedData("letters in too few or too many lanes, or of too many kinds")
    frequencies = np.array([cursor.varint() for _ in range(known)], np.int64)
    if int(frequencies.sum()) != 1 << precision or int(frequencies.max()) > 1 << precision:
        raise DamagedData("frequencies do not add up")
    stored = np.zeros((lanes, 8), np.uint8)
    width = _state_bytes(precision)
    stored[:, :width] = np.frombuffer(cursor.read(width * lanes), np.uint8).reshape(lanes, width)
    states = stored.view("<i8").ravel().copy()
    words = np.frombuffer(cursor.read(2 * cursor.varint()), "<u2")
    letters_ = _decode(letters, frequencies, precision, state=states, words=words)
    return unpack(letters_.astype(np.uint8), together, count) if together > 1 else letters_


def _decode(
    count: int,
    frequencies: NDArray[np.int64],
    precision: int,
    *,
    state: NDArray[np.int64],
    words: NDArray[Any],
) -> Letters:
    lanes, least = len(state), 1 << precision + _SPARE
    if int(state.min()) < least or int(state.max()) >= least << _WORD:
        raise DamagedData("a state out of its range")
    kinds = np.arange(len(frequencies), dtype=symbol_type(len(frequencies)))
    letter_of = np.repeat(kinds, frequencies)
    share = np.repeat(frequencies, frequencies)
    place = np.arange(1 << precision) - np.repeat(np.cumsum(frequencies) - frequencies, frequencies)
    out = np.empty(count, kinds.dtype)
    mask, used = (1 << precision) - 1, 0
    wide = words.astype(np.int64)
    rows = max(1, BLOCK // lanes)
    slots = np.empty(rows * lanes, np.int64)
    numbers, low = np.empty(lanes, np.int64), np.empty(lanes, np.bool_)
    for first in range(0, count, rows * lanes):
        block = min(rows * lanes, count - first)
        for at in range(0, block, lanes):
            slot = slots[at : min(at + lanes, block)]
            lane = slice(len(slot))
            x, n, m = state[lane], numbers[lane], low[lane]
            np.bitwise_and(x, mask, out=slot)
            x >>= precision
            share.take(slot, out=n, mode="clip")
            x *= n
            place.take(slot, out=n, mode="clip")
            x += n
            np.less(x, least, out=m)
            empty = m.nonzero()[0]
            if len(empty):
                fetched = wide[used : used + len(empty)]
                used += len(empty)
                if used > len(words):
                    raise DamagedData("coded letters end too early")
                moved = x.take(empty)
                moved <<= _WORD
                moved |= fetched
                x[empty] = moved
        letter_of.take(slots[:block], out=out[first : first + block], mode="clip")
    if used != len(words) or bool((state != least).any()):
        raise DamagedData("coded letters do not end where they should")
    return out
