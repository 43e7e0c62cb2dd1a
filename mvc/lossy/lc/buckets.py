"""The stages ``expq`` (buckets by sign and exponent) and ``promote`` (stored buckets).

docs/lc.md describes these stages of a lossy delta. A *change* is an element of the new tensor minus
the element of the old tensor. A *bucket* has all changes with the same sign and exponent. The
decoder adds the same number for all changes in a bucket. This number is computed in float64 and
rounded to the tensor's dtype. ``promote`` limits how many buckets are stored. The stored buckets
have the symbols 1, 2, ..., beginning with the largest exponent. All other changes, and all zero and
subnormal changes, have symbol 0, which adds 0. The next delta then includes the omitted changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.stage import Kind, Stage, read_options
from mvc.lossy.lc.groups import Group, Representatives, TensorChange, self_information
from mvc.lossy.lc.packing import symbol_type
from mvc.lossy.lc.payload import encode_steps
from mvc.lossy.lc.stages import LossyPipeline, Quantiser, with_flags
from mvc.lossy.lc.step import BLOCK, Addition, Symbols


class ExpQ(Quantiser, frozen=True):
    """lossy delta: one value for all changes of one sign and exponent

    ``mean``: the value is the mean of the bucket's changes, not the middle of their range.
    """

    mean: bool
    own: bool
    usage = "expq[:mean][,tensor]"
    returns = Kind.BUCKETS

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        known = ("mean", "tensor")
        _, options = read_options(name, f",{parameter}" if parameter else "", (), known)
        text = with_flags(name, [flag for flag in known if flag in options])
        return cls(text, mean="mean" in options, own="tensor" in options)

    def choose(
        self, pipeline: LossyPipeline, groups: Sequence[Group]
    ) -> list[tuple[TensorChange, Addition]]:
        promote = pipeline.promote
        bits = promote.bits if promote else 0
        error = None if promote is None or promote.error is None else float(promote.error)
        ranked = [_Ranked(g, bits, mean=self.mean, errors=error is not None) for g in groups]
        if error is not None:
            return [pair for ranking in ranked for pair in ranking.steps(ranking.least(error))]
        if promote is not None and promote.budget is not None:
            allowed = int(sum(group.nbytes for group in groups) * promote.budget)
            return _within_budget(pipeline, ranked, allowed)
        return _steps(ranked, max((len(ranking.counts) for ranking in ranked), default=0))


class _Ranked:
    """The buckets of a group of tensors in the order of their symbols, and each change's symbol."""

    def __init__(self, group: Group, bits: int, *, mean: bool, errors: bool) -> None:
        self.group = group
        keys = np.flatnonzero(group.counts)
        exponents = group.exponents(keys)
        keys, exponents = keys[exponents > 0], exponents[exponents > 0]
        buckets, first = np.unique(keys >> group.finer, return_index=True)
        order = np.lexsort((buckets, -exponents[first]))
        order = order[: (1 << bits) - 1] if bits else order
        last = np.append(first[1:], len(keys)) - 1
        self.counts = np.add.reduceat(group.counts[keys], first)[order] if len(keys) else order
        self.numbers = Representatives(len(order) + 1, group.kind, mean=mean, errors=errors)
        rank_of = np.zeros(len(group.counts), np.uint8 if len(order) < 128 else np.uint16)
        for rank, bucket in enumerate(order.tolist(), 1):
            ends = keys[[first[bucket], last[bucket]]]
            rank_of[keys[first[bucket] : last[bucket] + 1]] = rank
            if not mean:
                rank_of[ends] = rank | self.numbers.flag(rank_of.dtype)
        self.rows: list[Symbols] = []
        for change in group.changes:
            row = np.empty(len(change), rank_of.dtype)
            for at, values, patterns in change.blocks():
                symbols = row[at : at + BLOCK]
                rank_of.take(patterns >> group.shift, out=symbols, mode="clip")
                self.numbers.add(symbols, values)
            self.rows.append(row)
        self.table = self.numbers.table(self.counts)

    def steps(self, count: int) -> list[tuple[TensorChange, Addition]]:
        rows = self.rows
        if count < len(self.counts):
            rows = [row * (row <= count) for row in rows]
        rows = [row.astype(symbol_type(count + 1), copy=False) for row in rows]
        return self.group.steps(rows, self.table[: count + 1])

    def sizes(self, most: int) -> NDArray[np.float64]:
        """Estimated bytes for 1, 2, ... ``most`` buckets.

        The estimate is the entropy of the symbols plus the size of the table.
        """
        counts = self.counts.astype(np.float64)
        if not len(counts):  # nothing has changed
            return np.zeros(most)
        rest = self.group.entries - np.cumsum(counts)
        bits = self_information(self.group.entries) - np.cumsum(self_information(counts))
        bits -= self_information(rest)
        bits += np.arange(1, len(counts) + 1) * 8 * self.group.kind.width
        filled: NDArray[np.float64] = np.pad(bits / 8, (0, most - len(bits)), "edge")
        return filled

    def least(self, error: float) -> int:
        """The smallest number of buckets whose relative error is at most ``error`` in this group.

        The relative error is the norm of the lost part of the delta, divided by the norm of the
        delta. If the error with all buckets is larger, returns the number of all buckets.
        """
        lost = self.numbers.squares - np.cumsum(self.numbers.explained(self.table, self.counts))
        within = np.flatnonzero(lost <= error**2 * self.numbers.squares)
        return int(within[0]) + 1 if len(within) else len(self.counts)


def _steps(ranked: Sequence[_Ranked], count: int) -> list[tuple[TensorChange, Addition]]:
    return [pair for ranking in ranked for pair in ranking.steps(count)]


def _within_budget(
    pipeline: LossyPipeline, ranked: Sequence[_Ranked], allowed: int
) -> list[tuple[TensorChange, Addition]]:
    """The steps with as many buckets as fit into ``allowed`` bytes, at least one.

    A bisection finds the number of buckets, beginning with an estimate from the entropy.
    """
    count = max((len(ranking.counts) for ranking in ranked), default=0)
    if not count:
        return _steps(ranked, 0)
    sizes = sum(ranking.sizes(count) for ranking in ranked)
    guess = max(int(np.searchsorted(sizes, allowed, "right")), 1)
    low, high, best = 1, guess + 1, None
    while high - low > 1:
        middle = guess if best is None and high > guess else (low + high) // 2
        attempt = _steps(ranked, middle)
        if sum(map(len, encode_steps(pipeline, [step for _, step in attempt]))) <= allowed:
            low, best = middle, attempt
        else:
            high = middle
    return _steps(ranked, low) if best is None else best
