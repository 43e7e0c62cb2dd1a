"""Tensors that a lossy delta quantises together, and statistics of the tensors' changes.

A lossy delta stores a *symbol* for each element of a tensor, and a table with the value of each
symbol. The value approximates the *change* of the element, which is the new minus the old number.
A *step* is the symbols of one tensor with the table. A *pattern* is the bits of a change as an
unsigned integer of 4 or 8 bytes (2 for float16). A *key* is the high bits of a pattern: sign,
exponent, and the first ``finer`` bits of the fraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import FORMATS, Format, Numbers, values_of, words_of_values
from mvc.lossy.lc.step import BLOCK, Addition, Symbols

Data = memoryview | bytes | bytearray

_TOO_LARGE = {"float64": 1023 + 480, "float32": 255, "bfloat16": 254, "float16": 31}
"""A tensor is not quantised if a change has this biased exponent or a larger exponent.

For float32 and float16, this exponent means infinity or NaN. For bfloat16 it is one less, because a
sum may round to infinity. For float64 it is so small that a sum of squares fits into a float64.
"""


class TensorChange(Struct, frozen=True):
    """The change of one tensor. ``index``: the tensor's position in the list of all tensors.

    ``before``, ``after``: the bits of the old and the new numbers as unsigned integers, in one
    dimension. ``root``: changes are differences between the square roots of the numbers.
    """

    index: int
    kind: Format
    before: NDArray[Any]
    after: NDArray[Any]
    root: bool

    @classmethod
    def between(
        cls, index: int, old: tuple[Data, str], new: tuple[Data, str], *, root: bool
    ) -> TensorChange | None:
        """The change from the old to the new state of a tensor, each given as data and dtype.

        None for a dtype that cannot be quantised.
        """
        (before, dtype), (after, _) = old, new
        kind = FORMATS.get(dtype)
        if kind is None:
            return None
        old_words, new_words = (np.frombuffer(data, f"<u{kind.width}") for data in (before, after))
        return cls(index, kind, before=old_words, after=new_words, root=root)

    def __len__(self) -> int:
        return len(self.before)

    def blocks(self) -> Iterator[tuple[int, Numbers, NDArray[Any]]]:
        """Yields for each block the position of its first element, its changes, and the patterns of
        these changes.

        Changes are in the format's ``number_type``. Changes of float16 are first rounded to
        float16.
        """
        for at in range(0, len(self), BLOCK):
            new = values_of(self.after[at : at + BLOCK], self.kind)
            old = values_of(self.before[at : at + BLOCK], self.kind)
            with np.errstate(all="ignore"):
                change = np.sqrt(new) - np.sqrt(old) if self.root else new - old
                if self.kind.name == "float16":
                    half = change.astype("<f2")
                    yield at, half.astype("<f4"), half.view("<u2")
                    continue
            yield at, change, change.view(f"<u{change.itemsize}")

    def stays_finite(self, step: Addition) -> bool:
        """Whether no number overflows when ``step`` is added to the tensor.

        Computes the sums only with ``root``, or if a value of ``step`` is large enough.
        """
        largest = float(np.abs(values_of(step.table, self.kind)).max())
        # Less than half the distance between the two largest finite numbers causes no overflow.
        if not self.root and largest < self.kind.largest * 2.0 ** -(self.kind.fraction + 2):
            return True
        state = bytearray(self.before.tobytes())
        step.apply(memoryview(state))
        return not bool(self.kind.infinite(np.frombuffer(state, self.before.dtype)).any())


class Group:
    """Tensors that share a table of values. ``counts``: how often each key occurs among the
    changes of these tensors.
    """

    def __init__(self, kind: Format) -> None:
        self.kind = kind
        single = kind.name == "bfloat16"  # bfloat16 changes are computed in float32
        self.pattern_width = 4 if single else kind.width
        self._fraction = 23 if single else kind.fraction
        self.finer = 4 if kind.width == 8 else 5
        self.shift = self._fraction - self.finer  # right shift from a pattern to its key
        self.changes: list[TensorChange] = []
        self.counts = np.zeros(1 << 8 * self.pattern_width - self.shift, np.int64)

    def add(self, change: TensorChange) -> None:
        """Adds a tensor. Ignores a tensor with a change that is NaN, infinite or too large
        (``_TOO_LARGE``).
        """
        counts = np.zeros_like(self.counts)
        for _, _, patterns in change.blocks():
            counts += np.bincount(patterns >> self.shift, minlength=len(counts))
        exponents = self.exponents(np.flatnonzero(counts))
        if int(exponents.max(initial=0)) < _TOO_LARGE[self.kind.name]:
            self.changes.append(change)
            self.counts += counts

    @property
    def entries(self) -> int:
        return sum(map(len, self.changes))

    @property
    def nbytes(self) -> int:
        return self.entries * self.kind.width

    def exponents(self, keys: NDArray[Any]) -> NDArray[Any]:
        mask = (1 << 8 * self.pattern_width - 1 - self._fraction) - 1
        exponents: NDArray[Any] = keys >> self.finer & mask
        return exponents

    def steps(self, rows: Sequence[Symbols], table: Numbers) -> list[tuple[TensorChange, Addition]]:
        """Pairs of the change of a tensor and the step that approximates this change.

        ``rows``: for each tensor, the symbols of its elements. ``table``: the value of each symbol.
        """
        words = words_of_values(table.astype(self.kind.number_type), self.kind)
        words = words.view(self.kind.table_type)
        return [
            (change, Addition(symbols, words, self.kind.name, change.root))
            for change, symbols in zip(self.changes, rows, strict=True)
        ]


def self_information(counts: Any) -> Any:
    """Returns n log2 n for each count n; 0 for n = 0."""
    return counts * np.log2(np.maximum(counts, 1))


class Representatives:
    """Computes the value of each symbol from the changes with this symbol.

    The value is the mean of the changes, or the middle between the smallest and the largest change.
    For the middle, only changes whose symbol is flagged in its highest bit are compared. The caller
    flags all changes that may be the smallest or the largest.
    """

    def __init__(self, symbols: int, kind: Format, *, mean: bool, errors: bool) -> None:
        self.mean, self.errors = mean, errors
        self.squares = 0.0  # sum of the squares of all changes, including changes with symbol 0
        self.sums = np.zeros(symbols, np.float64)
        self.low = np.full(symbols, np.inf, kind.number_type)
        self.high = np.full(symbols, -np.inf, kind.number_type)

    @staticmethod
    def flag(kind: np.dtype[Any]) -> int:
        return 1 << 8 * kind.itemsize - 1

    def add(self, symbols: Symbols, values: Numbers) -> None:
        """Adds a block of changes (``values``) with their symbols. Clears the flags."""
        if not self.mean:
            flag = self.flag(symbols.dtype)
            at = np.flatnonzero(symbols >= flag)
            symbols &= flag - 1
            ends, extremes = symbols.take(at), values.take(at)
            np.minimum.at(self.low, ends, extremes)
            np.maximum.at(self.high, ends, extremes)
        if self.mean or self.errors:
            self.sums += np.bincount(symbols, values, minlength=len(self.sums))
        if self.errors:
            wide = values.astype(np.float64)
            self.squares += float(wide @ wide)

    def table(self, counts: NDArray[Any]) -> Numbers:
        """The value of each symbol, as float64; 0 for symbol 0.

        ``counts``: how often each symbol except symbol 0 occurs.
        """
        if self.mean:
            numbers_of = self.sums[1:] / counts
        else:
            low = self.low[1:].astype(np.float64)
            numbers_of = low + (self.high[1:] - low) / 2
        return np.append(0.0, numbers_of)

    def explained(self, table: Numbers, counts: NDArray[Any]) -> NDArray[np.float64]:
        """By how much the value of each symbol except symbol 0 reduces the sum of squares."""
        explained: NDArray[np.float64] = table[1:] * (2 * self.sums[1:] - table[1:] * counts)
        return explained
