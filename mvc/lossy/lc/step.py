"""Adds a *step* to a tensor. A step is the change of a tensor from one version to the next.

A step stores a small integer (a symbol) for each element, and a table with the number that each
symbol adds. A zero is added, too, because the addition of zero can change bits: -0.0 becomes 0.0
(docs/format.md, "Payload of steps"). With ``root``, the step is added to the square roots of the
elements. This is for Adam's second moment, which spans many orders of magnitude and must not become
negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import FORMATS, Format, Numbers, subnormals, values_of, words_of_values
from mvc.codecs.words import scratch_bytes
from mvc.errors import WrongUsage
from mvc.lossy.lc.packing import check_below, index_of

Symbols = NDArray[Any]  # uint8 or uint16

BLOCK = 1 << 16  # elements of a block, which fits into the CPU's cache


class Addition(Struct, frozen=True):
    """The numbers to add to one tensor.

    ``symbols``: one uint8 or uint16 for each element, in flat order. ``table[s]``: the number that
    symbol s adds, in the tensor's dtype (bfloat16 is stored as uint16). Symbol 0 adds +0.0.
    ``dtype``: float64, float32, float16 or bfloat16. ``root``: whether the numbers are added to the
    square roots of the elements.
    """

    symbols: Symbols
    table: NDArray[Any]
    dtype: str
    root: bool = False

    @property
    def nbytes(self) -> int:
        return len(self.symbols) * FORMATS[self.dtype].width

    def apply(self, state: memoryview) -> None:
        """Adds the step to a tensor in place. ``state``: the raw bytes of the tensor.

        From equal tensors, encoder and decoder compute the same bits. Raises WrongUsage if the
        length of ``state`` is wrong, and DamagedData if a symbol is not in the table. Raises
        MvcError if the thread treats subnormal numbers as zero, because the bits would differ.
        """
        kind = FORMATS[self.dtype]
        if state.nbytes != self.nbytes:
            raise WrongUsage(f"a step for {self.nbytes} bytes does not fit {state.nbytes}")
        is_checked = len(self.table) > 255 and self.symbols.itemsize == 1
        if not is_checked:
            check_below(int(self.symbols.max(initial=0)), len(self.table))
        words = np.frombuffer(state, f"<u{kind.width}")
        with np.errstate(all="ignore"), subnormals():
            look_up = _LookUp(values_of(self.table, kind))
            for at in range(0, len(words), BLOCK):
                symbols = self.symbols[at : at + BLOCK]
                _add(words[at : at + BLOCK], look_up.values(symbols), kind, root=self.root)


def _add(words: NDArray[Any], values: Numbers, kind: Format, *, root: bool) -> None:
    state = values_of(words, kind)
    if root:
        values = np.sqrt(state) + values
        np.maximum(values, 0, out=values)
        np.multiply(values, values, out=state)
    else:
        np.add(state, values, out=state)
    if kind.width < 4:  # wider floats: ``state`` shares the memory of ``words``
        words[:] = words_of_values(state, kind)


class _LookUp:
    """Looks up the numbers of symbols in a table. In a small table, looks up several at a time."""

    def __init__(self, table: Numbers) -> None:
        self.table, self.width = table, table.itemsize
        self.together = 4 if len(table) <= 4 else 2 if len(table) <= 16 else 1
        if self.together * self.width > 16:
            self.together = 16 // self.width
        if self.together > 1:
            self.rows = _combinations(table, self.together)

    def values(self, symbols: Symbols) -> Numbers:
        """One number for each symbol, in memory that the next call overwrites."""
        out = scratch_bytes("lc values", len(symbols) * self.width).view(self.table.dtype)
        whole = len(symbols) // self.together * self.together if self.together > 1 else 0
        if symbols.itemsize > 1 or not symbols.flags.c_contiguous:
            whole = 0
        if whole:
            index = index_of(symbols[:whole], self.together)
            self.rows.take(index, out=out[:whole].view(self.rows.dtype), mode="clip")
        self.table.take(symbols[whole:], out=out[whole:], mode="clip")
        return out


def _combinations(table: Numbers, count: int) -> NDArray[Any]:
    """A table whose item i combines the numbers of the ``count`` symbols that are packed in i."""
    bits = 8 // count if count == 4 else 4
    full = np.zeros(1 << bits, table.dtype)
    full[: len(table)] = table
    index = np.arange(1 << bits * count)
    rows = np.stack([full[index >> bits * i & (1 << bits) - 1] for i in range(count)], axis=1)
    wide = {8: "<u8", 16: "<c16"}[count * table.itemsize]
    return np.ascontiguousarray(rows).view(wide).ravel()
