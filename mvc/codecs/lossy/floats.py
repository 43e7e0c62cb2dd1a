"""Floating-point tensors as words and as numbers that can be compared.

Words carry the bits (a float operation may quiet a NaN or lose the sign of zero); numbers
are only looked at, to see how far an entry has moved.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.words import Words, word_type

__all__ = ["FORMATS", "FRACTION", "Format", "Weights", "values_of", "words_of_values"]

FRACTION = 23  # bits of a float32's fraction, which the parameters of bit reset count by


class Format(Struct, frozen=True):
    """An IEEE 754 binary format: bytes of a word, bits of its fraction."""

    name: str
    width: int
    fraction: int

    @property
    def exponent(self) -> int:
        """The mask of the exponent's bits, all set in infinities and NaNs."""
        return (1 << 8 * self.width - 1) - (1 << self.fraction)

    def low_mask(self, low: int) -> int:
        """The bits that are reset: for float32 the ``low`` lowest.

        Other formats keep ``23 - low`` bits of their fraction, or all that they have.
        """
        return (1 << self.fraction - min(self.fraction, FRACTION - low)) - 1

    def high_mask(self, high: int) -> int:
        """The ``high`` highest bits of the fraction, or all that there are."""
        return (1 << self.fraction) - (1 << self.fraction - min(high, self.fraction))

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return math.ldexp(2 - 2.0**-self.fraction, (1 << 8 * self.width - self.fraction - 2) - 1)


FORMATS = {
    f.name: f
    for f in (
        Format("float64", 8, 52),
        Format("float32", 4, 23),
        Format("float16", 2, 10),
        Format("bfloat16", 2, 7),
    )
}


class Weights(Struct):
    """One tensor on its way from training to production weights.

    ``before``: words of the production weights so far, not to be written to. ``after``: words
    of the new ones, changed in place. ``exact``: where the new ones are taken over whatever
    happens, because one side is infinite or no number; None if nowhere. All are flat.
    """

    format: Format
    before: Words
    after: Words
    exact: NDArray[np.bool_] | None

    @classmethod
    def pair(cls, kind: Format, before: Words, after: Words) -> Weights:
        """``after`` becomes the tensor's own."""
        wild = _infinite(before, kind) | _infinite(after, kind)
        return cls(kind, before, after, wild if bool(wild.any()) else None)

    def distance(self) -> NDArray[Any]:
        """|before - after| by entry (float32, or float64 for float64); -1 where ``exact``."""
        with np.errstate(all="ignore"):
            moved: NDArray[Any] = np.subtract(
                values_of(self.before, self.format), values_of(self.after, self.format)
            )
        np.abs(moved, out=moved)
        if self.exact is not None:
            moved[self.exact] = -1
        return moved

    def take_only(self, chosen: NDArray[np.bool_]) -> None:
        """Undoes every change outside ``chosen`` and ``exact``."""
        if self.exact is not None:
            chosen = chosen | self.exact
        np.copyto(self.after, self.before, where=~chosen)

    def reset_bits(self, low: int, high: int = 0) -> None:
        """Undoes the low bits of what changed (thesis §3.2.4).

        With ``high``, only in entries that changed in one of the ``high`` highest bits of the
        fraction. The mask acts on the exclusive or with the production weights, so what is
        cleared stays as it is: after any number of versions the low bits are those of the
        first weights.
        """
        kind = word_type(self.format.width).type
        changed = self.before ^ self.after
        undone = changed & kind(self.format.low_mask(low))
        if high:
            undone[(changed & kind(self.format.high_mask(high))) == 0] = 0
        if self.exact is not None:
            undone[self.exact] = 0
        np.bitwise_xor(self.after, undone, out=self.after)


def values_of(words: Words, kind: Format) -> NDArray[Any]:
    """The numbers that words stand for, as float32, or float64 for float64."""
    if kind.name == "bfloat16":
        words = words.astype("<u4") << 16
        return words.view("<f4")
    values: NDArray[Any] = words.view(f"<f{kind.width}")
    return values.astype("<f4") if kind.width == 2 else values


def words_of_values(values: NDArray[Any], kind: Format) -> Words:
    """Numbers (float32 or float64) as words; for bfloat16, of values that it holds exactly."""
    if kind.name != "bfloat16":
        return values.astype(f"<f{kind.width}").view(word_type(kind.width))
    high: Words = values.astype("<f4", copy=False).view("<u4") >> 16
    return high.astype(word_type(2))


def _infinite(words: Words, kind: Format) -> NDArray[np.bool_]:
    exponent = word_type(kind.width).type(kind.exponent)
    found: NDArray[np.bool_] = (words & exponent) == exponent
    return found
