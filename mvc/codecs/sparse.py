"""Encodes words of which most are zero: stores the positions and values of the nonzero words.

A word is nonzero if any of its bits is 1. So the float -0.0 is a nonzero word. docs/format.md,
"Positions and values", defines the bytes. The method is GCXS from VSOL, the thesis of C.
Heitenberger (§3.2.6, see docs/pipelines.md).
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from mvc.codecs.compressors import Compressor
from mvc.codecs.streams import Parts, decode_segments, encode_segments
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes, Words, word_type
from mvc.errors import DamagedData

OPTIONS = ("values", "layers", "indices", "diff")
_SHARE = 0.5  # if a larger share of words is nonzero, all words are stored, without positions


def encode_sparse(words: Words, options: Set[str], method: Compressor | None) -> Parts:
    """Encodes words. Returns the parts of the encoded bytes, which the caller joins."""
    at = np.flatnonzero(words)
    if len(at) > _SHARE * len(words):
        columns = [(words, "values")]
    else:
        steps = at.astype(word_type(8))
        if "diff" in options:
            steps[1:] -= steps[:-1].copy()
        columns = [(steps, "indices"), (words[at], "values")]
    parts: Parts = [varint(len(columns[-1][0]))]
    for column, option in columns:
        rows = _bytes_of(column).T if option in options else [column.view(np.uint8)]
        for row in rows:
            parts += encode_segments(np.ascontiguousarray(row), method)
    return parts


def decode_sparse(
    cursor: Cursor, size: int, width: int, options: Set[str], *, method: Compressor | None
) -> tuple[Words, Words | None]:
    """The nonzero words among ``size`` words, and their positions.

    If all words are stored, the positions are None. Raises DamagedData. Allocates at most a fixed
    multiple of ``size``.
    """
    count = cursor.varint()
    if count > size:
        raise DamagedData(f"{count} of {size} words are recorded as nonzero")
    if count == size:
        return _column(cursor, count, width, method, split="values" in options), None
    steps = _column(cursor, count, 8, method, split="indices" in options)
    values = _column(cursor, count, width, method, split="values" in options)
    return values, _positions(steps, size, "diff" in options)


def _column(
    cursor: Cursor, count: int, width: int, method: Compressor | None, *, split: bool
) -> Words:
    column = np.empty(count, word_type(width))
    if not split:
        decode_segments(cursor, column.view(np.uint8), method)
        return column
    row = np.empty(count, np.uint8)
    for plane in _bytes_of(column).T:
        decode_segments(cursor, row, method)
        plane[:] = row
    return column


def _positions(steps: Words, size: int, differences: bool) -> Words:
    """The positions that ``steps`` stores. Raises DamagedData if positions are not ascending, or
    if a position is ``size`` or more.
    """
    later = steps[1:]
    if differences:
        # Every step must be below ``size``. So the sum of all steps cannot overflow.
        sound = bool((steps < size).all() and (later > 0).all())
        at = np.cumsum(steps, dtype=steps.dtype)
    else:
        sound = bool((later > steps[:-1]).all())
        at = steps
    if not sound or (len(at) and int(at[-1]) >= size):
        raise DamagedData("positions of words are out of order or past the end")
    return at.view("<i8")


def _bytes_of(words: Words) -> Bytes:
    """The bytes of words, one row per word, without a copy."""
    return words.view(np.uint8).reshape(-1, words.itemsize)
