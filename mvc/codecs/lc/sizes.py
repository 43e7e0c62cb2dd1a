"""The paper's sizes of a step, in bits: E, E+P and E+P+H.

They count symbols, numbers and code lengths and nothing else; a payload has headers as well.
The paper's formula for E leaves out that an index has a whole number of bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.lc.coders.huffman import lengths_of
from mvc.codecs.lc.step import Step

__all__ = ["Sizes", "bits_of_e", "bits_of_ep", "bits_of_eph", "breakdown", "entropy"]

_LENGTH = 4  # bits in which the length of a code's word is stored

Counts = Sequence[int] | NDArray[Any]


class Sizes(Struct, frozen=True):
    """Bits of a step: uncompressed, with buckets by exponent, with promotion, with Huffman."""

    raw: int
    e: int
    ep: int
    eph: int


def bits_of_e(entries: int, symbols: int, width: int = 32) -> int:
    """Exponent buckets alone: an index for each entry, a number of ``width`` bits a symbol.

    >>> bits_of_e(10, 5)
    190
    """
    return entries * max(symbols - 1, 0).bit_length() + symbols * width


def bits_of_ep(entries: int, x: int, width: int = 32) -> int:
    """With promotion to ``x`` bits: 2^x - 1 buckets and zero.

    >>> bits_of_ep(10, 2)
    116
    """
    return entries * x + ((1 << x) - 1) * width


def bits_of_eph(counts: Counts, width: int = 32) -> int:
    """With a Huffman code for symbols that occur ``counts`` times; the first is zero.

    >>> bits_of_eph([6, 1, 1, 2]) - 3 * 32 - 4 * 4
    16
    """
    lengths = lengths_of(counts)
    words = int((lengths * np.asarray(counts)).sum())
    return words + _LENGTH * len(lengths) + (len(lengths) - 1) * width


def breakdown(step: Step, x: int) -> Sizes:
    """The sizes of a step that was made with all buckets (``expq`` without ``promote``)."""
    width = 8 * step.table.itemsize
    counts = np.bincount(step.symbols, minlength=len(step.table))
    kept = counts[: 1 << x].copy()
    kept[0] += counts[1 << x :].sum()
    entries = len(step.symbols)
    return Sizes(
        entries * width,
        bits_of_e(entries, int(np.count_nonzero(counts)), width),
        bits_of_ep(entries, x, width),
        bits_of_eph(kept, width),
    )


def entropy(counts: Counts) -> float:
    """Bits of all symbols together if each takes its order-0 entropy."""
    known = np.asarray(counts, np.float64)
    known = known[known > 0]
    return float((known * np.log2(known.sum() / known)).sum())
