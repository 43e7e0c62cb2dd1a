"""Deltas and full records of tensors that lie on a grid: whole steps of a power of two.

A delta: the format of the floats (one byte), the exponent of the step (zigzag), how many
entries changed; the gaps between them, as Rice codes; a bit for each sign; then the steps
beyond the first: how many entries moved further, the gaps between those, and how far, again
as Rice codes. The exponent is that of the changed entries alone, so entries
off the grid that did not change are no obstacle.

A full record: format and exponent likewise, the bytes of a number (1 or 2), and the byte
planes of all multiples with their sign folded into the lowest bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs import planes
from mvc.codecs.lossy.floats import FORMATS, Format, values_of
from mvc.codecs.rice import decode_numbers, encode_numbers, put_stream, take_stream
from mvc.codecs.scratch import scratch_words
from mvc.codecs.streams import Bytes, Parts, StreamCoder
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, word_type
from mvc.errors import DamagedData

__all__ = [
    "BY_CODE",
    "apply_delta",
    "common_exponent",
    "decode_full",
    "encode_delta",
    "encode_full",
    "multiples",
    "words_of_multiples",
]

BY_CODE = tuple(FORMATS[name] for name in ("float32", "float64", "float16", "bfloat16"))
"""Formats by the number that stored data names them with."""

EXPONENTS = range(-1074, 972)
_EXACT = float(1 << 53)


def formats_of(width: int) -> list[int]:
    """The codes of the formats whose words have ``width`` bytes."""
    return [code for code, kind in enumerate(BY_CODE) if kind.width == width]


def common_exponent(words: Words, kind: Format) -> int | None:
    """The largest e for which all words are multiples of 2^e; 0 if all are zero.

    None where one is infinite, no number or -0.0.
    """
    bits = words.astype(np.uint64)
    fraction = np.uint64(kind.fraction)
    most = kind.exponent >> kind.fraction
    biased = (bits & np.uint64(kind.exponent)) >> fraction
    magnitude = bits & np.uint64((1 << 8 * kind.width - 1) - 1)
    if bool((biased == most).any()) or bool(((magnitude == 0) & (bits != 0)).any()):
        return None
    taken = magnitude != 0
    if not taken.any():
        return 0
    significand = (bits & np.uint64((1 << kind.fraction) - 1)) | ((biased > 0) << fraction)
    lowest = (significand & (~significand + np.uint64(1)))[taken].astype(np.float64)
    zeros = np.frexp(lowest)[1] - 1
    least: int = (zeros + np.maximum(biased[taken], 1).astype(np.int64)).min()
    return int(least) - (most // 2) - kind.fraction


def multiples(words: Words, kind: Format, exponent: int) -> NDArray[np.int64] | None:
    """The n with words = n * 2^exponent (int64); None unless every n is whole and below 2^53."""
    with np.errstate(all="ignore"):
        scaled = np.ldexp(values_of(words, kind).astype(np.float64), -exponent)
        if not bool((np.abs(scaled) < _EXACT).all()):
            return None
        whole = scaled.astype(np.int64)
    return whole if bool((whole == scaled).all()) else None


def words_of_multiples(numbers: NDArray[np.int64], kind: Format, exponent: int) -> Words | None:
    """The words of numbers * 2^exponent; None where one has no exact word. 0 is +0.0."""
    with np.errstate(all="ignore"):
        exact = np.ldexp(numbers.astype(np.float64), exponent)
        words = _rounded(exact, kind)
        same = values_of(words, kind) == exact
    return words if bool(same.all()) else None


def _rounded(values: NDArray[np.float64], kind: Format) -> Words:
    if kind.name == "bfloat16":
        high: NDArray[Any] = values.astype("<f4").view("<u4") >> 16
        return high.astype(word_type(2))
    return values.astype(f"<f{kind.width}").view(word_type(kind.width))


_FARTHEST = 1 << 15  # steps; what moves further is on no grid worth the name
_SAMPLE = 256


def encode_delta(
    new: Words, base: Words, changed: NDArray[np.bool_], compressor: StreamCoder | None
) -> Parts | None:
    """Parts that lead from ``base`` to ``new`` and back; None if not in whole steps."""
    at = np.flatnonzero(changed)
    found = _moves(new[at], base[at]) if len(at) else None
    if found is None:
        return None
    code, exponent, moves = found
    further = np.abs(moves) - 1
    far = np.flatnonzero(further)
    parts = [
        _head(code, exponent) + varint(len(at)),
        *encode_numbers(_gaps(at), compressor),
        *put_stream(np.packbits(moves < 0), compressor),
        varint(len(far)),
    ]
    if len(far):
        parts += encode_numbers(_gaps(far), compressor)
        parts += encode_numbers(further[far] - 1, compressor)
    return parts


def apply_delta(
    cursor: Cursor, state: Words, *, reverse: bool, compressor: StreamCoder | None
) -> Words:
    """What ``state``, left as it is, has to be combined with by exclusive or.

    Raises DamagedData unless every entry can be moved as far as it says.
    """
    kind, exponent = _read_head(cursor, state.itemsize)
    at = _positions(cursor, len(state), cursor.varint(), compressor)
    signs = take_stream(cursor, -(-len(at) // 8), compressor, "signs")
    negative = np.unpackbits(signs, count=len(at)).view(np.bool_) ^ reverse
    if len(at) % 8 and int(signs[-1]) & (0xFF >> len(at) % 8):
        raise DamagedData("a sign for no entry")
    moves = np.ones(len(at), np.int64)
    count = cursor.varint()
    if count:
        far = _positions(cursor, len(at), count, compressor)
        moves[far] += decode_numbers(cursor, count, _FARTHEST, compressor) + 1
    np.negative(moves, out=moves, where=negative)
    there = multiples(state[at], kind, exponent)
    moved = None if there is None else words_of_multiples(there + moves, kind, exponent)
    if moved is None:
        raise DamagedData("a delta in whole steps does not fit what it is applied to")
    patterns = scratch_words("delta", len(state), state.itemsize)
    patterns.fill(0)
    patterns[at] = state[at] ^ moved
    return patterns


def encode_full(words: Words, compressor: StreamCoder | None) -> Parts | None:
    """Parts for all of ``words``; None if they lie on no grid, or on too fine a one."""
    for code in formats_of(words.itemsize):
        kind = BY_CODE[code]
        if _narrow(words[:_SAMPLE], kind) is None or (found := _narrow(words, kind)) is None:
            continue
        exponent, numbers = found
        folded = (numbers << 1) ^ (numbers >> 63)
        width = 1 if int(folded.max(initial=0)) < 256 else 2
        streams = planes.split(folded.astype(word_type(width)))
        parts = [_head(code, exponent) + bytes((width,))]
        return parts + [part for s in streams for part in put_stream(s, compressor)]
    return None


def decode_full(cursor: Cursor, count: int, width: int, compressor: StreamCoder | None) -> Words:
    """The words that ``encode_full`` was given; DamagedData if that is not what is there."""
    kind, exponent = _read_head(cursor, width)
    size = cursor.byte()
    if size not in (1, 2):
        raise DamagedData(f"multiples of {size} bytes are not allowed")
    folded = np.empty(count, word_type(size))
    streams: list[Bytes | int] = [
        take_stream(cursor, count, compressor, f"plane{i}") for i in range(size)
    ]
    planes.join(streams, folded)
    numbers = folded.astype(np.int64)
    words = words_of_multiples((numbers >> 1) ^ -(numbers & 1), kind, exponent)
    if words is None:
        raise DamagedData("a multiple that no word stands for")
    return words


def _moves(new: Words, base: Words) -> tuple[int, int, NDArray[np.int64]] | None:
    """Format, exponent of the step, and by how many steps each entry moves."""
    for code in formats_of(new.itemsize):
        kind = BY_CODE[code]
        exponents = common_exponent(new, kind), common_exponent(base, kind)
        if None in exponents:
            continue
        exponent = min(e for e in exponents if e is not None)
        there, here = multiples(new, kind, exponent), multiples(base, kind, exponent)
        if there is not None and here is not None:
            moves = there - here
            if int(np.abs(moves).max()) <= _FARTHEST:
                return code, exponent, moves
    return None


def _narrow(words: Words, kind: Format) -> tuple[int, NDArray[np.int64]] | None:
    """Exponent and multiples, if these are small enough for two bytes."""
    exponent = common_exponent(words, kind)
    numbers = None if exponent is None else multiples(words, kind, exponent)
    if exponent is None or numbers is None or int(np.abs(numbers).max(initial=0)) >= _FARTHEST:
        return None
    return exponent, numbers


def _gaps(at: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.diff(at, prepend=-1) - 1


def _positions(
    cursor: Cursor, size: int, count: int, compressor: StreamCoder | None
) -> NDArray[np.int64]:
    """``count`` ascending positions below ``size``."""
    if count > size:
        raise DamagedData(f"{count} of {size} entries are said to change")
    at = np.cumsum(decode_numbers(cursor, count, size, compressor) + 1)
    at -= 1
    if count and int(at[-1]) >= size:
        raise DamagedData("an entry that changes lies past the end")
    return at


def _head(code: int, exponent: int) -> bytes:
    return bytes((code,)) + varint(exponent << 1 if exponent >= 0 else ~(exponent << 1))


def _read_head(cursor: Cursor, width: int) -> tuple[Format, int]:
    code, folded = cursor.byte(), cursor.varint()
    exponent = (folded >> 1) ^ -(folded & 1)
    if code not in formats_of(width) or exponent not in EXPONENTS:
        raise DamagedData("a grid of no known format")
    return BY_CODE[code], exponent
