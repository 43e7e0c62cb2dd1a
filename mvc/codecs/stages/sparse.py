"""Positions and values of the words that are not zero: VSOL's GCXS (thesis §3.2.6).

Zero means the word 0, never the number: a change of sign alone is the pattern 80000000, which
a float comparison takes for nothing.

Stored: how many words are not zero; then their positions as unsigned words of 8 bytes, and
their values. Where more than half of the words are not zero, all of them are values, and
no positions are stored. Options: ``values`` and ``indices`` split either into byte planes,
``diff`` keeps the first position and then differences, ``layers`` joins all tensors of a
record first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mvc.codecs.segments import decode_segments, encode_segments
from mvc.codecs.stages.base import CODINGS_2, DELTAS, Kind, Stage
from mvc.codecs.stages.compress import Compressor
from mvc.codecs.stages.rearrange import Planes, PlanesOfAll
from mvc.codecs.streams import Bytes, Parts
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, word_type
from mvc.errors import DamagedData, InvalidPipeline

__all__ = ["OPTIONS", "Positions", "Sparse", "SparseOfAll"]

OPTIONS = ("values", "layers", "indices", "diff")
_SHARE = 0.5  # of words that are not zero, above which positions cost more than they save


class Positions(Stage):
    """A coding of the words that are not zero, by itself: the words of one chunk or of a group."""

    delta = True

    def encode_words(self, words: Words, compressor: Compressor | None) -> Parts:
        """Parts to be joined."""
        raise NotImplementedError

    def decode_words(self, cursor: Cursor, out: Words, compressor: Compressor | None) -> Words:
        """Fills ``out``, zeros included; returns the positions of all words that are not zero.

        Raises DamagedData, and allocates a fixed multiple of ``out`` at most.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Sparse(Positions):
    """``sparse`` for every tensor by itself."""

    options: frozenset[str]
    usage: ClassVar[str] = "sparse[:none|values,layers,indices,diff]"
    about = "positions and values of what changed; all options unless some are named"
    takes = DELTAS
    gives = Kind.STREAMS
    feature = CODINGS_2
    needs = "a delta (sub or xor) before it"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """``sparse`` (all options), ``sparse:none`` or ``sparse:OPTION,OPTION``."""
        if not parameter:
            return SparseOfAll(name, frozenset(OPTIONS))
        chosen = [] if parameter == "none" else [p.strip() for p in parameter.split(",")]
        wrong = next((p for p in chosen if p not in OPTIONS or chosen.count(p) > 1), None)
        if wrong is not None:
            raise InvalidPipeline(
                f"stage {name} has no option {wrong!r}, or has it twice",
                hint=f"use {name}:none, or some of {', '.join(OPTIONS)}",
            )
        text = ",".join(o for o in OPTIONS if o in chosen) or "none"
        text = name if len(chosen) == len(OPTIONS) else f"{name}:{text}"
        kind = SparseOfAll if "layers" in chosen else Sparse
        return kind(text, frozenset(chosen))

    def full(self) -> Stage | None:
        """Nothing is zero in a full record, so its values are all that is coded."""
        if "values" not in self.options:
            return None
        return Planes("planes")

    def encode_words(self, words: Words, compressor: Compressor | None) -> Parts:
        """As ``Positions.encode_words``."""
        at = np.flatnonzero(words)
        if len(at) > _SHARE * len(words):
            columns = [(words, "values")]
        else:
            steps = at.astype(word_type(8))
            if "diff" in self.options:
                steps[1:] -= steps[:-1].copy()
            columns = [(steps, "indices"), (words[at], "values")]
        parts: Parts = [varint(len(columns[-1][0]))]
        for column, option in columns:
            rows = _bytes_of(column).T if option in self.options else [column.view(np.uint8)]
            for row in rows:
                parts += encode_segments(np.ascontiguousarray(row), compressor)
        return parts

    def decode_words(self, cursor: Cursor, out: Words, compressor: Compressor | None) -> Words:
        """As ``Positions.decode_words``."""
        count = cursor.varint()
        if count > len(out):
            raise DamagedData(f"{count} of {len(out)} words are said not to be zero")
        if count == len(out):
            out[:] = self._column(cursor, count, out.itemsize, "values", compressor)
            return np.arange(count)
        steps = self._column(cursor, count, 8, "indices", compressor)
        values = self._column(cursor, count, out.itemsize, "values", compressor)
        at = self._positions(steps, len(out))
        out.fill(0)
        out[at] = values
        return at

    def _column(
        self, cursor: Cursor, count: int, width: int, option: str, compressor: Compressor | None
    ) -> Words:
        column = np.empty(count, word_type(width))
        if option not in self.options:
            decode_segments(cursor, column.view(np.uint8), compressor)
            return column
        row = np.empty(count, np.uint8)
        for plane in _bytes_of(column).T:
            decode_segments(cursor, row, compressor)
            plane[:] = row
        return column

    def _positions(self, steps: Words, size: int) -> Words:
        """Positions below ``size``, in ascending order, none twice."""
        first, later = steps[:1], steps[1:]
        if "diff" in self.options:
            # No step is longer than 'size', so that their sum cannot wrap around.
            sound = not len(steps) or bool((steps < size).all() and (later > 0).all())
            at = np.cumsum(steps, dtype=steps.dtype)
        else:
            sound = bool((later > steps[:-1]).all())
            at = steps
        if not sound or (len(first) and int(at[-1]) >= size):
            raise DamagedData("positions of words are not in order, or lie past the end")
        return at.view("<i8")


class SparseOfAll(Sparse):
    """``sparse`` over the words of all tensors of a record, joined."""

    scope = "group"

    def full(self) -> Stage | None:
        """As of one tensor, of all."""
        return None if super().full() is None else PlanesOfAll("planes:all")


def _bytes_of(words: Words) -> Bytes:
    """The bytes of words, one row a word, without a copy."""
    return words.view(np.uint8).reshape(-1, words.itemsize)
