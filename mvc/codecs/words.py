"""Arithmetic on tensors seen as unsigned little-endian words.

Deltas never touch floating point: -0.0, NaN payloads and subnormals are bit
patterns like any other (a float comparison loses sign-only changes, and a
float register may quiet a NaN). Everything wraps around, so it is exact and
can be undone from either end.

Zigzag is the map of Protocol Buffers' ``sint``: 0, -1, 1, -2 become 0, 1, 2, 3,
so that small differences of both signs have small words.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mvc.errors import WrongUsage

__all__ = [
    "WIDTHS",
    "Words",
    "combine",
    "difference",
    "unzigzag",
    "word_type",
    "words_of",
    "zigzag",
]

Words: TypeAlias = NDArray[Any]  # unsigned, little-endian, one of WIDTHS
WIDTHS = (1, 2, 4, 8)
_UNSIGNED = {w: np.dtype(f"<u{w}") for w in WIDTHS}
_SIGNED = {w: np.dtype(f"<i{w}") for w in WIDTHS}


def word_type(width: int) -> np.dtype[Any]:
    """The unsigned little-endian dtype of ``width`` bytes; WrongUsage if there is none."""
    try:
        return _UNSIGNED[width]
    except KeyError:
        raise WrongUsage(f"an element has 1, 2, 4 or 8 bytes, not {width}") from None


def words_of(data: memoryview | bytes, width: int) -> Words:
    """The whole words of ``data`` without a copy; bytes that fill no word are left out."""
    dtype = word_type(width)
    return np.frombuffer(data, dtype, len(data) // width)


def difference(operator: str, new: Words, base: Words, out: Words) -> None:
    """``out`` = what leads from ``base`` to ``new``; operator ``sub`` or ``xor``."""
    if operator == "xor":
        np.bitwise_xor(new, base, out=out)
    else:
        np.subtract(new, base, out=out)


def combine(
    operator: str, state: memoryview, delta: memoryview, width: int, *, reverse: bool = False
) -> None:
    """Move ``state`` along ``delta`` in place: base to new, or back if ``reverse``.

    Both have the same length. The bytes after the last whole word are combined
    as bytes, by the same operator. Deltas of one operator may be combined in
    any order.
    """
    if len(state) != len(delta):
        raise WrongUsage(f"a delta of {len(delta)} bytes does not fit a state of {len(state)}")
    words = words_of(state, width)
    whole = words.nbytes
    move(operator, words, words_of(delta, width), reverse=reverse)
    if whole < len(state):
        tail = words_of(state[whole:], 1)
        move(operator, tail, words_of(delta[whole:], 1), reverse=reverse)


def move(operator: str, state: Words, delta: Words, *, reverse: bool) -> None:
    """``state`` (+) ``delta`` in place, or (-) if ``reverse``."""
    if operator == "xor":
        np.bitwise_xor(state, delta, out=state)
    elif reverse:
        np.subtract(state, delta, out=state)
    else:
        np.add(state, delta, out=state)


def zigzag(words: Words, spare: Words) -> None:
    """Fold signs into the lowest bit, in place; ``spare`` is as large as ``words``."""
    bits = 8 * words.itemsize
    signed = _SIGNED[words.itemsize]
    np.right_shift(words.view(signed), bits - 1, out=spare.view(signed))
    np.left_shift(words, 1, out=words)
    np.bitwise_xor(words, spare, out=words)


def unzigzag(words: Words, spare: Words) -> None:
    """Undo :func:`zigzag`, in place."""
    np.bitwise_and(words, 1, out=spare)
    np.negative(spare, out=spare)
    np.right_shift(words, 1, out=words)
    np.bitwise_xor(words, spare, out=words)
