"""Converts floating-point tensors to words and to numbers.

A word is an unsigned integer with the bits of a float. Words keep every bit, even of NaNs and of
-0. Numbers are float32 or float64, for arithmetic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.cast import round_bfloat16
from mvc.codecs.words import Words, word_type
from mvc.errors import MvcError

Numbers = NDArray[Any]  # float32 or float64


class Format(Struct, frozen=True):
    """A floating-point format. ``width``: bytes of a number. ``fraction``: bits of the fraction."""

    name: str
    width: int
    fraction: int

    @property
    def exponent(self) -> int:
        """A mask of the exponent's bits. Infinities and NaNs have all these bits set."""
        return (1 << 8 * self.width - 1) - (1 << self.fraction)

    @property
    def largest(self) -> float:
        return math.ldexp(2 - 2.0**-self.fraction, (1 << 8 * self.width - self.fraction - 2) - 1)

    @property
    def number_type(self) -> np.dtype[Any]:
        """The dtype for arithmetic: float64 for float64, else float32."""
        return np.dtype("<f8") if self.width == 8 else np.dtype("<f4")

    @property
    def table_type(self) -> np.dtype[Any]:
        """The numpy dtype of this format; uint16 for bfloat16, which numpy does not have."""
        return np.dtype("<u2" if self.name == "bfloat16" else f"<f{self.width}")

    def infinite(self, words: Words) -> NDArray[np.bool_]:
        """Which words are infinities or NaNs."""
        exponent = word_type(self.width).type(self.exponent)
        flags: NDArray[np.bool_] = (words & exponent) == exponent
        return flags


FORMATS = {
    f.name: f
    for f in (
        Format("float64", 8, 52),
        Format("float32", 4, 23),
        Format("float16", 2, 10),
        Format("bfloat16", 2, 7),
    )
}

BY_CODE = tuple(FORMATS[name] for name in ("float32", "float64", "float16", "bfloat16"))
"""Formats by their codes in stored data."""


def values_of(words: NDArray[Any], kind: Format) -> Numbers:
    """Converts words, or an array of the ``table_type``, to the ``number_type`` of the format.

    The conversion is exact except for signalling NaNs.
    """
    if kind.name == "bfloat16":
        wide: Numbers = (words.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")
        return wide
    values: Numbers = words.view(kind.table_type)
    return values.astype("<f4") if kind.width == 2 else values


def words_of_values(values: Numbers, kind: Format) -> Words:
    """Converts numbers to words: rounds to the nearest, ties to even."""
    if kind.name == "bfloat16":
        single = values.astype("<f4", copy=False)
        return round_bfloat16(single.view("<u4")).astype("<u2")
    return values.astype(kind.table_type, copy=False).view(word_type(kind.width))


def flushes() -> bool:
    """Whether the CPU rounds subnormal numbers to zero in this thread.

    ``torch.set_flush_denormal(True)`` enables this mode. A new thread inherits the mode from the
    thread that creates it.
    """
    with np.errstate(all="ignore"):
        return bool(np.float32(2.0**-126) * np.float32(0.5) == 0)


@contextmanager
def subnormals() -> Iterator[None]:
    """In the ``with`` block, the CPU does not round subnormal numbers to zero in this thread.

    Raises MvcError if torch is not imported, or cannot switch this mode of the CPU off. After the
    block, the mode is as before.
    """
    if not flushes():
        yield
        return
    torch = sys.modules.get("torch")
    if torch is None or not torch.set_flush_denormal(False) or flushes():
        raise MvcError(
            "this thread rounds subnormal numbers to zero, and so cannot compute versions that "
            "are on a grid, approximated or predicted by an optimizer's steps",
            hint="switch this mode of the CPU off before using mvc in this thread",
        )
    try:
        yield
    finally:
        torch.set_flush_denormal(True)
