"""Deltas between a tensor and its base, and what works on them word by word.

XOR is VSOL's delta creator (thesis §3.2.3). Both operators are undirected.
"""

from __future__ import annotations

import numpy as np

from mvc.codecs import words
from mvc.codecs.scratch import scratch_words
from mvc.codecs.stages.base import Kind, Stage
from mvc.codecs.streams import Parts, decode_marks, encode_stream
from mvc.codecs.varint import Cursor
from mvc.codecs.words import Words

__all__ = ["Elide", "Operator", "Sub", "Xor", "Zigzag"]


class Operator(Stage):
    """``sub`` or ``xor``: the delta between a tensor and its base."""

    takes = frozenset({Kind.PAIR, Kind.CHOSEN})
    needs = "to stand first, or right after the choice of what changes"
    delta = True

    def encode(self, new: Words, base: Words, out: Words) -> None:
        """``out`` = the delta from ``base`` to ``new``."""
        words.difference(self.text, new, base, out)

    def decode(self, state: Words, delta: Words, *, reverse: bool) -> None:
        """Move ``state`` along ``delta`` in place."""
        words.move(self.text, state, delta, reverse=reverse)


class Sub(Operator):
    """Wrap-around subtraction."""

    usage = "sub"
    about = "delta: wrap-around integer subtraction of the base's words"
    gives = Kind.DIFFERENCES


class Xor(Operator):
    """Exclusive or."""

    usage = "xor"
    about = "delta: exclusive or with the base's words"
    gives = Kind.PATTERNS


class Zigzag(Stage):
    """Folds the sign of a difference into its lowest bit."""

    usage = "zigzag"
    about = "folds the sign of a difference into its lowest bit"
    takes = frozenset({Kind.DIFFERENCES})
    gives = Kind.FOLDED
    needs = "the differences of sub directly before it"
    delta = True

    def encode(self, data: Words) -> None:
        """In place."""
        words.zigzag(data, scratch_words("zigzag", len(data), data.itemsize))

    def decode(self, data: Words) -> None:
        """In place."""
        words.unzigzag(data, scratch_words("zigzag", len(data), data.itemsize))


class Elide(Stage):
    """Leaves out the words that are zero, where enough of them are."""

    usage = "elide"
    about = "leaves out unchanged words and marks the others in a bitmap"
    takes = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET, Kind.FOLDED})
    gives = Kind.KEPT
    needs = "a delta (sub or xor) before it"
    delta = True

    SHARE = 0.92  # of changed words; above it the bitmap costs more than it saves
    METHOD = "1"

    def encode(self, data: Words, marked: Words, changed: int) -> Words:
        """The ``changed`` words of ``data`` where ``marked`` is true (scratch)."""
        kept = scratch_words("kept", changed, data.itemsize)
        np.compress(marked, data, out=kept)
        return kept

    def decode(self, kept: Words, positions: Words, out: Words) -> None:
        """``out`` = zeros, with ``kept`` at ``positions``."""
        out.fill(0)
        out[positions] = kept

    def encode_marks(self, marked: Words) -> Parts:
        """The bitmap; idle units leave it repeating at the length of a row."""
        return encode_stream(np.packbits(marked), self.METHOD, repeats=True)

    def decode_marks(self, cursor: Cursor, count: int) -> Words:
        """Positions of the kept words among ``count``."""
        return decode_marks(cursor, count, "mask")
