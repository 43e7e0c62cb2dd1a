"""Floating-point words as whole multiples of a power of two, and back, without rounding.

The difference of two multiples is a small whole number, whatever the exponents of the floats
are; adding it is exact, so that such a difference can be undone from either end. What is
no multiple (infinities and NaNs, -0.0, and words that are no floats at all) is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.lossy.floats import FORMATS, Format, values_of
from mvc.codecs.words import Words, word_type

__all__ = [
    "BY_CODE",
    "EXPONENTS",
    "common_exponent",
    "formats_of",
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
