"""Encodes tensors on a *grid*: their entries are multiples of the same power of two.

A delta stores the positions of the changed entries, and each change as a number of *steps*
(multiples of the power). Only the changed entries must be on the grid. docs/format.md defines the
bytes ("Multiples and steps").

The gaps between positions and the numbers of steps are mostly small. They are stored in Rice codes
(Golomb 1966; Rice 1979). A Rice code divides a number into its low bits and the *quotient* (the
high bits), which is stored in unary. The low bits of all numbers are stored together, and then all
quotients. So encoding and decoding take a few array operations.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.compressors import Compressor
from mvc.codecs.floats import BY_CODE, Format, subnormals, values_of, words_of_values
from mvc.codecs.streams import Parts, decode_array, decode_stream, encode_stream
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes, Words, join, positions, scratch_words, split, word_type
from mvc.errors import DamagedData

Numbers: TypeAlias = NDArray[np.int64]

_EXPONENTS = range(-1074, 972)
_EXACT = float(1 << 53)
_FARTHEST = 1 << 15  # maximum of steps; a tensor with a larger change is not encoded
_SAMPLE = 256
_MOST_LOW = 40  # bits of a number's low part
_MOST_UNARY = 4  # maximum of the mean quotient; encoders stay at or below 3.5


def _formats_of(width: int) -> dict[int, Format]:
    """The formats whose words have ``width`` bytes, by code."""
    return {code: kind for code, kind in enumerate(BY_CODE) if kind.width == width}


def common_exponent(words: Words, kind: Format) -> int | None:
    """The largest e for which all words are multiples of 2^e; 0 if all words are zero.

    None if a word is infinite, NaN or -0.0, or if e is not in ``_EXPONENTS``.
    """
    bits = words.astype(np.uint64)
    fraction = np.uint64(kind.fraction)
    most = kind.exponent >> kind.fraction
    biased = (bits & np.uint64(kind.exponent)) >> fraction
    magnitude = bits & np.uint64((1 << 8 * kind.width - 1) - 1)
    if bool((biased == most).any()) or bool(((magnitude == 0) & (bits != 0)).any()):
        return None
    nonzero = magnitude != 0
    if not nonzero.any():
        return 0
    significand = (bits & np.uint64((1 << kind.fraction) - 1)) | ((biased > 0) << fraction)
    lowest = (significand & (~significand + np.uint64(1)))[nonzero].astype(np.float64)
    zeros = np.frexp(lowest)[1] - 1
    least = int((zeros + np.maximum(biased[nonzero], 1).astype(np.int64)).min())
    exponent = least - (most // 2) - kind.fraction
    return exponent if exponent in _EXPONENTS else None


def multiples(words: Words, kind: Format, exponent: int) -> Numbers | None:
    """The numbers n (int64) for which words = n * 2^exponent.

    None unless every n is a whole number below 2^53.
    """
    with np.errstate(all="ignore"):
        scaled = np.ldexp(values_of(words, kind).astype(np.float64), -exponent)
        if not bool((np.abs(scaled) < _EXACT).all()):
            return None
        whole = scaled.astype(np.int64)
    return whole if bool((whole == scaled).all()) else None


def words_of_multiples(numbers: Numbers, kind: Format, exponent: int) -> Words | None:
    """The words of numbers * 2^exponent; +0.0 for 0. None if a word would have to be rounded."""
    with np.errstate(all="ignore"):
        exact = np.ldexp(numbers.astype(np.float64), exponent)
        words = words_of_values(exact, kind)
        same = values_of(words, kind) == exact
    return words if bool(same.all()) else None


@subnormals()
def encode(
    new: Words, base: Words | None, marks: Bytes | None, method: Compressor | None
) -> Parts | None:
    """Encodes a delta from ``base`` to ``new``, or without ``base`` a full record of ``new``.

    ``marks``: a bitmap of the words that differ. Returns parts to be joined. Returns None if the
    words are on no grid, or if a multiple or a change is too large.
    """
    if base is None or marks is None:
        return _encode_full(new, method)
    at = positions(marks, len(new))
    grid = _moves(new[at], base[at]) if len(at) else None
    if grid is None:
        return None
    code, exponent, moves = grid
    further = np.abs(moves) - 1
    far = np.flatnonzero(further)
    parts = [
        _head(code, exponent) + varint(len(at)),
        *encode_numbers(np.diff(at, prepend=-1) - 1, method),
        *encode_stream(np.packbits(moves < 0), method),
        varint(len(far)),
    ]
    if len(far):
        parts += encode_numbers(np.diff(far, prepend=-1) - 1, method)
        parts += encode_numbers(further[far] - 1, method)
    return parts


@subnormals()
def decode(
    cursor: Cursor, state: Words, method: Compressor | None, *, full: bool, reverse: bool
) -> Words:
    """Decodes the words of a full record, or for a delta the exclusive or of old and new words.

    ``state``: the old words (with ``reverse``, the new words), which do not change. Raises
    DamagedData for invalid data, and if a result would have to be rounded.
    """
    if full:
        return _decode_full(cursor, len(state), state.itemsize, method)
    kind, exponent = _read_head(cursor, state.itemsize)
    at = _positions(cursor, len(state), cursor.varint(), method)
    signs = decode_array(cursor, -(-len(at) // 8), method, "signs")
    negative = np.unpackbits(signs, count=len(at)).view(np.bool_) ^ reverse
    if len(at) % 8 and int(signs[-1]) & (0xFF >> len(at) % 8):
        raise DamagedData("a sign belongs to no entry")
    moves = np.ones(len(at), np.int64)
    count = cursor.varint()
    if count:
        far = _positions(cursor, len(at), count, method)
        moves[far] += decode_numbers(cursor, count, _FARTHEST, method) + 1
    np.negative(moves, out=moves, where=negative)
    old = multiples(state[at], kind, exponent)
    moved = None if old is None else words_of_multiples(old + moves, kind, exponent)
    if moved is None:
        raise DamagedData("a delta in whole steps does not fit its base")
    patterns = scratch_words("delta", len(state), state.itemsize)
    patterns.fill(0)
    patterns[at] = state[at] ^ moved
    return patterns


def _encode_full(words: Words, method: Compressor | None) -> Parts | None:
    for code, kind in _formats_of(words.itemsize).items():
        if _narrow(words[:_SAMPLE], kind) is None or (grid := _narrow(words, kind)) is None:
            continue
        exponent, numbers = grid
        folded = (numbers << 1) ^ (numbers >> 63)
        width = 1 if int(folded.max(initial=0)) < 256 else 2
        streams = split(folded.astype(word_type(width)))
        parts = [_head(code, exponent) + bytes((width,))]
        return parts + [part for s in streams for part in encode_stream(s, method)]
    return None


def _decode_full(cursor: Cursor, count: int, width: int, method: Compressor | None) -> Words:
    kind, exponent = _read_head(cursor, width)
    size = cursor.byte()
    if size not in (1, 2):
        raise DamagedData(f"multiples of {size} bytes are not allowed")
    folded = np.empty(count, word_type(size))
    join([decode_stream(cursor, count, method, f"plane{i}") for i in range(size)], folded)
    numbers = folded.astype(np.int64)
    words = words_of_multiples((numbers >> 1) ^ -(numbers & 1), kind, exponent)
    if words is None:
        raise DamagedData("a multiple has no exact word")
    return words


def _moves(new: Words, base: Words) -> tuple[int, int, Numbers] | None:
    """The format, the exponent of a step, and the change of each entry in steps."""
    for code, kind in _formats_of(new.itemsize).items():
        exponents = common_exponent(new, kind), common_exponent(base, kind)
        if None in exponents:
            continue
        exponent = min(e for e in exponents if e is not None)
        after, before = multiples(new, kind, exponent), multiples(base, kind, exponent)
        if after is not None and before is not None:
            moves = after - before
            if int(np.abs(moves).max()) <= _FARTHEST:
                return code, exponent, moves
    return None


def _narrow(words: Words, kind: Format) -> tuple[int, Numbers] | None:
    """The exponent and the multiples; None if a multiple does not fit into two bytes."""
    exponent = common_exponent(words, kind)
    numbers = None if exponent is None else multiples(words, kind, exponent)
    if exponent is None or numbers is None or int(np.abs(numbers).max(initial=0)) >= _FARTHEST:
        return None
    return exponent, numbers


def _positions(cursor: Cursor, size: int, count: int, method: Compressor | None) -> Numbers:
    """``count`` ascending positions below ``size``."""
    if count > size:
        raise DamagedData(f"{count} of {size} entries are recorded as changed")
    at = np.cumsum(decode_numbers(cursor, count, size, method) + 1)
    at -= 1
    if count and int(at[-1]) >= size:
        raise DamagedData("a changed entry is past the end")
    return at


def _head(code: int, exponent: int) -> bytes:
    return bytes((code,)) + varint(exponent << 1 if exponent >= 0 else ~(exponent << 1))


def _read_head(cursor: Cursor, width: int) -> tuple[Format, int]:
    code, folded = cursor.byte(), cursor.varint()
    exponent = (folded >> 1) ^ -(folded & 1)
    kind = _formats_of(width).get(code)
    if kind is None or exponent not in _EXPONENTS:
        raise DamagedData("the steps have an unknown number format or exponent")
    return kind, exponent


def encode_numbers(numbers: Numbers, method: Compressor | None) -> Parts:
    """Encodes numbers from 0 to 2^40 - 1; returns parts to be joined."""
    low_bits = _parameter(numbers)
    quotients = numbers >> low_bits
    ends = np.cumsum(quotients + 1)
    unary = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    unary[ends - 1] = 1
    low = (numbers[:, np.newaxis] >> np.arange(low_bits)) & 1
    return [
        bytes((low_bits,)) + varint(len(unary) - len(numbers)),
        *encode_stream(np.packbits(low.astype(np.uint8)), method),
        *encode_stream(np.packbits(unary), method),
    ]


def decode_numbers(cursor: Cursor, count: int, most: int, method: Compressor | None) -> Numbers:
    """The next ``count`` numbers. Raises DamagedData if a number is greater than ``most``.

    Raises DamagedData, too, unless exactly ``count`` numbers are stored. The memory that it
    allocates is in proportion to ``count``.
    """
    low_bits = cursor.byte()
    total = cursor.varint()
    if low_bits > min(_MOST_LOW, most.bit_length()) or total > _MOST_UNARY * count:
        raise DamagedData("stored numbers exceed their limit")
    low = decode_array(cursor, -(-count * low_bits // 8), method, "low")
    unary = decode_array(cursor, -(-(count + total) // 8), method, "unary")
    bits = np.unpackbits(unary)
    ends = np.flatnonzero(bits)
    if len(ends) != count or (count and int(ends[-1]) != count + total - 1):
        raise DamagedData("a list of numbers has another length than recorded")
    if np.unpackbits(low)[count * low_bits :].any():
        raise DamagedData("bits are set after the last number")
    numbers = ends.astype(np.int64)
    numbers[1:] -= ends[:-1] + 1
    numbers <<= low_bits
    if low_bits:
        rows = np.unpackbits(low, count=count * low_bits).reshape(count, low_bits)
        for i in range(low_bits):
            numbers |= rows[:, i].astype(np.int64) << i
    if count and int(numbers.max()) > most:
        raise DamagedData("a stored number exceeds its limit")
    return numbers


def _parameter(numbers: Numbers) -> int:
    """The number of low bits for which the Rice codes are shortest.

    Tries five values around a value that is computed from the mean.
    """
    if not len(numbers):
        return 0
    middle = int(numbers.mean() * np.log(2)).bit_length()
    around = range(max(0, middle - 2), min(_MOST_LOW, middle + 2) + 1)
    return min(around, key=lambda k: int((numbers >> k).sum()) + k * len(numbers))
