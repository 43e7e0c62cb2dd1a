"""The stage ``uniform`` of lossy delta pipelines (docs/lc.md): rounds changes to equal steps.

A change is the difference of one number of a tensor between two states. The *level* of a change is
``trunc(change / step)``. So all changes between -step and step have level 0. For each other level,
the mean of its changes is stored, and the decoder adds this mean. Means of float32 and float64
changes are rounded to half of their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.cast import round_bfloat16
from mvc.codecs.floats import Format, Numbers
from mvc.codecs.stage import Kind, Stage, read_options
from mvc.errors import InvalidPipeline
from mvc.lossy.lc.groups import Group, Representatives, TensorChange, self_information
from mvc.lossy.lc.packing import symbol_type
from mvc.lossy.lc.payload import encode_steps
from mvc.lossy.lc.stages import LossyPipeline, Quantiser, bound_of
from mvc.lossy.lc.step import BLOCK, Addition, Symbols

_COARSEST, _FINEST = -10.0, 14.0  # log2 of (root mean square / step)
_TRIES = 8
_NEAR = 0.97  # a size of at least this share of the budget is good enough
_MOST_LEVEL = 16383
_FREQUENCY = 1.5  # bytes that a coder needs for one more symbol
_NARROWER = 0.05


class Uniform(Quantiser, frozen=True):
    """lossy delta: equal steps around zero, as fine as a bound allows

    Chooses the smallest step with which the delta fits into ``budget``, or the largest step with
    which the error is at most ``error``.
    """

    budget: Decimal | None
    error: Decimal | None
    own: bool
    usage = "uniform:budget=B|error=E[,tensor]"
    returns = Kind.SYMBOLS

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, *further = (part.strip() for part in parameter.split(","))
        key, value, text = bound_of(name, first)
        _, options = read_options(name, ",".join(("", *further)), ("budget", "error"), ("tensor",))
        own = "tensor" in options
        if len(options) > own:
            raise InvalidPipeline(f"stage {name} needs exactly one bound: budget=B or error=E")
        share = {"budget": None, "error": None, key: value}
        return cls(f"{name}:{text}{',tensor' if own else ''}", own=own, **share)

    def choose(
        self, pipeline: LossyPipeline, groups: Sequence[Group]
    ) -> list[tuple[TensorChange, Addition]]:
        levels = [_Levels(group) for group in groups]
        if self.error is not None:
            error = float(self.error)
            return [pair for group_levels in levels for pair in group_levels.within(error)]
        assert self.budget is not None
        allowed = int(sum(group.nbytes for group in groups) * self.budget)
        return _within_budget(pipeline, levels, allowed)


class _Levels:
    """The levels of a group of tensors with a common step.

    ``size`` and ``_lost`` estimate size and error of a step from the group's counts of changes. The
    *fineness* of a step is log2 of (root mean square of the changes / step).
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        keys = np.flatnonzero(group.counts)
        keys = keys[group.exponents(keys) > 0]
        self.counts = group.counts[keys].astype(np.float64)
        pattern, form = (f"<{c}{group.pattern_width}" for c in "uf")
        lowest = keys << group.shift
        middle = lowest | 1 << group.shift - 1
        self.values = middle.astype(pattern).view(form).astype(np.float64)
        self.squares = float(self.counts @ self.values**2)
        self.deviation = float(np.sqrt(self.squares / max(group.entries, 1)))
        # ``most``, ``least``: limits of the step. With a step above the largest change, all levels
        # would be 0. With a step below ``least``, a level could exceed _MOST_LEVEL, or a subnormal
        # change could have a level other than 0.
        largest = float(np.abs(lowest.astype(pattern).view(form)).max(initial=0))
        self.most = largest * (1 - 2.0**-20)  # a little less, because change / step is rounded
        least = largest * (1 + 2.0**-group.finer) / _MOST_LEVEL
        self.least = max(least, float(np.finfo(form).smallest_normal))

    def step(self, fineness: float) -> float:
        return max(min(self.deviation * float(2.0**-fineness), self.most), self.least)

    def size(self, fineness: float) -> float:
        """The estimated size in bytes of the encoded levels and their means."""
        counts, _ = self._estimated(fineness)
        counts[0] += self.group.entries - self.counts.sum()
        bits = self_information(self.group.entries) - self_information(counts).sum()
        width = 4 if self.group.kind.width == 8 else 2
        return float(bits) / 8 + (width + _FREQUENCY) * int(np.count_nonzero(counts[1:]))

    def _lost(self, fineness: float) -> float:
        """The square of the estimated relative error."""
        counts, sums = self._estimated(fineness)
        explained = (sums[1:] ** 2 / np.maximum(counts[1:], 1)).sum()
        return 1 - float(explained) / self.squares if self.squares else 0.0

    def _estimated(self, fineness: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each level: the estimated number of changes, and the estimated sum of these changes.

        Level 0 is first.
        """
        levels = np.trunc(self.values / self.step(fineness)).clip(-_MOST_LEVEL, _MOST_LEVEL)
        levels_, place = np.unique(np.append(0, levels), return_inverse=True)
        zero, place = int(place[0]), place[1:]
        front = np.append(zero, np.delete(np.arange(len(levels_)), zero))
        counts: NDArray[Any] = np.bincount(place, self.counts, len(levels_))
        sums: NDArray[Any] = np.bincount(place, self.counts * self.values, len(levels_))
        return counts[front], sums[front]

    def within(self, error: float) -> list[tuple[TensorChange, Addition]]:
        """The deltas with the largest step whose relative error is at most ``error``.

        If no step has so small an error, the deltas with the smallest step.
        """
        allowed = error**2
        coarse = _bisect(lambda c: self._lost(-c) <= allowed, -_FINEST, -_COARSEST)
        rows, table, lost = self._quantised(-coarse, errors=True)
        while lost > allowed and coarse > -_FINEST:
            coarse -= _NARROWER
            rows, table, lost = self._quantised(-coarse, errors=True)
        return self.group.steps(rows, table)

    def steps(self, fineness: float) -> list[tuple[TensorChange, Addition]]:
        rows, table, _ = self._quantised(fineness, errors=False)
        return self.group.steps(rows, table)

    def _quantised(self, fineness: float, *, errors: bool) -> tuple[list[Symbols], Numbers, float]:
        """Returns the symbols of each tensor, the value of each symbol, and the square of the
        relative error (computed only with ``errors``).

        A symbol is the number of a level. The levels that occur are numbered in the order 0, 1, -1,
        2, -2, ...
        """
        kind, step = self.group.kind, self.step(fineness)
        most = min(int(2 * self.most / step) + 1, _MOST_LEVEL)
        sums = Representatives(2 * most + 1, kind, mean=True, errors=errors)
        rows, scale = [], kind.number_type.type(1 / step)
        counts = np.zeros(2 * most + 1, np.int64)
        for change in self.group.changes:
            row = np.empty(len(change), np.uint16)
            for at, values, _ in change.blocks():
                level = np.clip(np.trunc(values * scale), -most, most)
                outwards = np.abs(level)
                outwards += outwards
                outwards -= level > 0
                row[at : at + BLOCK] = outwards
                sums.add(row[at : at + BLOCK], values)
                counts += np.bincount(row[at : at + BLOCK], minlength=len(counts))
            rows.append(row)
        used = np.flatnonzero(counts)
        used = used[used > 0]
        symbols = np.zeros(2 * most + 1, symbol_type(len(used) + 1))
        symbols[used] = np.arange(1, len(used) + 1)
        numbers_of = np.zeros(len(symbols))
        numbers_of[used] = _shortened(sums.sums[used] / counts[used], kind)
        lost = sums.squares - sums.explained(numbers_of, counts[1:]).sum()
        table = np.append(0, numbers_of[used])
        symbol_rows = [symbols.take(row) for row in rows]
        return symbol_rows, table, float(lost) / sums.squares if sums.squares else 0.0


def _within_budget(
    pipeline: LossyPipeline, levels: Sequence[_Levels], allowed: int
) -> list[tuple[TensorChange, Addition]]:
    """The deltas with the greatest fineness whose size is at most ``allowed`` bytes.

    If no fineness fits, the deltas with the least fineness.
    """

    def estimate(fineness: float) -> float:
        return sum(group_levels.size(fineness) for group_levels in levels)

    best, target = None, float(allowed)
    low, high = _COARSEST, _FINEST  # ``low`` fits, or it is the coarsest fineness
    for _ in range(_TRIES):
        fineness = _bisect(lambda f: estimate(f) <= target, low, high)  # noqa: B023
        if best is not None and fineness - low < _NARROWER / 4:
            break
        attempt = [pair for group_levels in levels for pair in group_levels.steps(fineness)]
        size = sum(map(len, encode_steps(pipeline, [step for _, step in attempt])))
        if size <= allowed:
            best, low = attempt, fineness
            if size >= _NEAR * allowed or fineness == high:
                break
        elif fineness == _COARSEST:
            return attempt
        else:
            high = fineness
        target *= (_NEAR + 1) / 2 * allowed / size
        if not estimate(low) <= target < estimate(high):
            target = (estimate(low) + estimate(high)) / 2
    return best or [pair for group_levels in levels for pair in group_levels.steps(_COARSEST)]


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number between ``low`` and ``high`` for which ``holds``; ``low`` if there is
    none.
    """
    if holds(high):
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _shortened(values: NDArray[np.float64], kind: Format) -> NDArray[np.float64]:
    """Rounds float32 and float64 numbers to the upper half of their bits. Other formats unchanged.

    A float32 is not rounded to infinity. The changes of float64 are too small for infinity.
    """
    if kind.name == "float64":
        bits = values.view(np.uint64) + np.uint64(1 << 31)
        return (bits >> np.uint64(32) << np.uint64(32)).view(np.float64)
    if kind.name == "float32":
        short = round_bfloat16(values.astype("<f4").view("<u4"))
        short -= short & 0x7FFF == 0x7F80  # the largest finite number instead of infinity
        return (short << np.uint32(16)).view("<f4").astype(np.float64)
    return values
