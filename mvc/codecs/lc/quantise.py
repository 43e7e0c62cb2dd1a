"""From two states of a model to steps: buckets by exponent, or equal steps around zero.

**Buckets** (``expq``). Changes of one sign and one biased exponent form a bucket. Its
representative is (max + min) / 2, computed in float64 and rounded to the tensor's dtype, or the
mean of its entries. Exact zeros and subnormal changes are in no bucket: they are symbol 0.
``promote`` keeps the buckets with the largest exponents, of equal ones the positive first; all
other changes become symbol 0 as well, and are in the next delta again. Symbols number the
buckets in that order, from 1.

**Equal steps** (``uniform``). An entry d is at level trunc(d / step), at most 16,383 from
zero, so that zero's level is two steps wide. A level's number is the mean of its entries,
rounded to the upper half of its bits (float32 and float64), which alone are stored.

Tensors of one dtype and one kind share a table (the paper's flattened vector), unless the
pipeline says ``tensor``. Kinds keep weights and an optimizer's moments apart, which differ by
orders of magnitude; ``kind_of`` finds one in a name.

What no step can express is left to the caller, who stores it exactly: ``quantise`` gives None
for a tensor that is not of a floating-point dtype, for one in which a change is infinite or no
number (because one of the states is, or because the difference overflows), for a negative
second moment, and for one in which a sum would overflow. In a thread that ``flushes``
subnormal numbers it gives None for every tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.cast import round_bfloat16
from mvc.codecs.lc.payload import encode_steps
from mvc.codecs.lc.step import BLOCK, Numbers, Step, Symbols, flushes, number_type, numbers, rounded
from mvc.codecs.lossy.floats import FORMATS, Format
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages.lc import ExpQ, Promote, Quantiser, Uniform
from mvc.errors import WrongUsage

__all__ = ["SECOND_MOMENT", "kind_of", "quantise"]

SECOND_MOMENT = "exp_avg_sq"
_KINDS = ("exp_avg", SECOND_MOMENT, "max_exp_avg_sq", "momentum_buffer")
_ON_ROOT = frozenset({SECOND_MOMENT, "max_exp_avg_sq"})

Data = memoryview | bytes | bytearray


def kind_of(name: str) -> str:
    """The kind of a tensor by the last part of its name: an optimizer's slot, else ``""``.

    >>> kind_of("optimizer.state.fc.weight.exp_avg_sq")
    'exp_avg_sq'
    """
    last = name.replace("/", ".").rpartition(".")[2]
    return last if last in _KINDS else ""


def quantise(
    pipeline: Pipeline,
    before: Sequence[tuple[Data, str]],
    after: Sequence[tuple[Data, str]],
    *,
    kinds: Sequence[str] = (),
) -> list[Step | None]:
    """A step for each tensor of a model; None for a tensor that must be stored exactly.

    ``before`` are the raw bytes and dtypes of the state that the decoder has, ``after`` those
    of the training's state; tensors of equal place belong together. ``kinds`` names the kind of
    each (``kind_of``); those named ``exp_avg_sq`` and ``max_exp_avg_sq`` are quantised on the
    scale of their square root, and never become negative. Nothing is changed: the caller
    applies the steps to ``before``.

    A budget is a share of the raw bytes of the tensors that get a step, and counts all bytes
    that ``encode_steps`` makes of these steps. It is exceeded only if not even one bucket, or
    one level on each side, fits. Raises WrongUsage if the tensors do not fit each other.
    """
    kinds = kinds or [""] * len(before)
    if not len(before) == len(after) == len(kinds):
        raise WrongUsage("before, after and kinds do not have the same number of tensors")
    quantiser = pipeline.find(Quantiser)
    if quantiser is None:
        raise WrongUsage(f"pipeline {pipeline.text} does not quantise")
    groups: dict[Any, _Group] = {}
    if flushes():
        return [None] * len(before)
    for i, (old, new, kind) in enumerate(zip(before, after, kinds, strict=True)):
        change = _Change.between(i, old, new, root=kind in _ON_ROOT)
        if change is not None:
            key = i if quantiser.own else (old[1], kind)
            groups.setdefault(key, _Group()).add(change)
    steps: list[Step | None] = [None] * len(before)
    for change, step in _choose(pipeline, quantiser, [g for g in groups.values() if g.changes]):
        if change.stays_finite(step):
            steps[change.index] = step
    return steps


class _Change(Struct, frozen=True):
    """What one tensor changed by: words of both states, flat."""

    index: int
    kind: Format
    before: NDArray[Any]
    after: NDArray[Any]
    root: bool

    @classmethod
    def between(
        cls, index: int, old: tuple[Data, str], new: tuple[Data, str], *, root: bool
    ) -> _Change | None:
        """None for a dtype that has no step."""
        (before, dtype), (after, other) = old, new
        if dtype != other or memoryview(before).nbytes != memoryview(after).nbytes:
            raise WrongUsage(f"tensor {index} has not the same size and dtype before and after")
        kind = FORMATS.get(dtype)
        if kind is None:
            return None
        words = f"<u{kind.width}"
        return cls(index, kind, np.frombuffer(before, words), np.frombuffer(after, words), root)

    def __len__(self) -> int:
        return len(self.before)

    def blocks(self) -> Iterator[tuple[int, Numbers, NDArray[Any]]]:
        """Where a block begins, its changes, and the same as patterns of bits.

        Changes are in the number type, after rounding to float16 for float16, the patterns in
        that of ``pattern_bits``.
        """
        for at in range(0, len(self), BLOCK):
            new = numbers(self.after[at : at + BLOCK], self.kind)
            old = numbers(self.before[at : at + BLOCK], self.kind)
            with np.errstate(all="ignore"):
                change = np.sqrt(new) - np.sqrt(old) if self.root else new - old
                if self.kind.name == "float16":
                    half = change.astype("<f2")
                    yield at, half.astype("<f4"), half.view("<u2")
                    continue
            yield at, change, change.view(f"<u{change.itemsize}")

    def stays_finite(self, step: Step) -> bool:
        """Whether no sum overflows. That is added up only where a number is large enough for it."""
        largest = float(np.abs(numbers(step.table, self.kind)).max())
        if not self.root and largest < _half_ulp(self.kind):
            return True
        state = bytearray(self.before.tobytes())
        step.apply(memoryview(state))
        exponent = self.kind.exponent
        return not bool((np.frombuffer(state, self.before.dtype) & exponent == exponent).any())


def _half_ulp(kind: Format) -> float:
    """Half the distance between the two largest numbers: less is lost when added to them."""
    return float(kind.largest * 2.0 ** -(kind.fraction + 2))


class _Group:
    """Tensors that share a table, and how often each pattern of high bits occurs among them.

    The high bits are sign, exponent, and some of the fraction: where the least and the largest
    of a bucket lie is then known well enough to look for them among few entries, and the sizes
    of equal steps can be estimated.
    """

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, change: _Change) -> None:
        """Adds a tensor, unless one of its changes is infinite, no number, or about as large."""
        shift, size = self._scale(change.kind)
        counts = np.zeros(size, np.int64)
        for _, _, patterns in change.blocks():
            counts += np.bincount(patterns >> shift, minlength=size)
        exponents = _exponents(np.flatnonzero(counts), change.kind)
        if len(exponents) and int(exponents.max()) >= _too_large(change.kind):
            return
        self.changes.append(change)
        self.counts = counts if not len(self.counts) else self.counts + counts

    @staticmethod
    def _scale(kind: Format) -> tuple[int, int]:
        """By how much patterns are shifted, and how many there are then."""
        shift = _pattern_fraction(kind) - _finer(kind)
        return shift, 1 << 8 * _pattern_width(kind) - shift

    @property
    def kind(self) -> Format:
        return self.changes[0].kind

    @property
    def shift(self) -> int:
        return self._scale(self.kind)[0]

    @property
    def entries(self) -> int:
        return sum(map(len, self.changes))

    def steps(self, rows: Sequence[Symbols], table: Numbers) -> Iterator[tuple[_Change, Step]]:
        kind = self.kind
        words = rounded(table.astype(number_type(kind)), kind)
        words = words if kind.name == "bfloat16" else words.view(f"<f{kind.width}")
        for change, symbols in zip(self.changes, rows, strict=True):
            yield change, Step(symbols, words, kind.name, change.root)


def _finer(kind: Format) -> int:
    """Bits of the fraction that are counted by."""
    return 4 if kind.width == 8 else 5


def _pattern_width(kind: Format) -> int:
    return 4 if kind.name == "bfloat16" else kind.width


def _pattern_fraction(kind: Format) -> int:
    return 23 if kind.name == "bfloat16" else kind.fraction


def _exponents(keys: NDArray[Any], kind: Format) -> NDArray[Any]:
    """Biased exponents of patterns of high bits."""
    mask = (1 << 8 * _pattern_width(kind) - 1 - _pattern_fraction(kind)) - 1
    exponents: NDArray[Any] = keys >> _finer(kind) & mask
    return exponents


def _too_large(kind: Format) -> int:
    """The biased exponent from which on no step is made.

    All ones for infinities. Below it bfloat16 has one that may round to infinity, and float64
    those of which a sum of squares does not fit into a float64.
    """
    return {"float64": 1023 + 480, "bfloat16": 254, "float16": 31}.get(kind.name, 255)


Chosen = list[tuple[_Change, Step]]


def _choose(pipeline: Pipeline, quantiser: Quantiser, groups: list[_Group]) -> Chosen:
    raw = sum(len(c) * c.kind.width for group in groups for c in group.changes)

    def size(chosen: Chosen) -> int:
        return sum(map(len, encode_steps(pipeline, [step for _, step in chosen])))

    if isinstance(quantiser, Uniform):
        return _uniform(quantiser, groups, raw, size)
    assert isinstance(quantiser, ExpQ)
    return _buckets(quantiser.mean, pipeline.find(Promote), groups, raw, size)


def _buckets(
    mean: bool,
    promote: Promote | None,
    groups: list[_Group],
    raw: int,
    size: Callable[[Chosen], int],
) -> Chosen:
    bound = None if promote is None else promote.error
    ranked = [
        _Ranked(group, promote.bits if promote else 0, mean=mean, errors=bound is not None)
        for group in groups
    ]
    if bound is not None:
        return [pair for r in ranked for pair in r.steps(r.least(float(bound)))]

    def chosen(count: int) -> Chosen:
        return [pair for r in ranked for pair in r.steps(count)]

    most = max((len(r.counts) for r in ranked), default=0)
    if promote is None or promote.budget is None or not most:
        return chosen(most)
    allowed = int(raw * promote.budget)
    sizes = sum(r.sizes(most) for r in ranked)
    guess = max(int(np.searchsorted(sizes, allowed, "right")), 1)
    low, high = 1, guess + 1  # low is taken whatever it costs; the guess is of the entropy
    kept = None
    while high - low > 1:
        middle = guess if kept is None and high > guess else (low + high) // 2
        attempt = chosen(middle)
        if size(attempt) <= allowed:
            low, kept = middle, attempt
        else:
            high = middle
    return chosen(low) if kept is None else kept


class _Ranked:
    """A group's buckets by priority, the rank of every entry, and the representatives."""

    def __init__(self, group: _Group, bits: int, *, mean: bool, errors: bool) -> None:
        self.group = group
        keys = np.flatnonzero(group.counts)
        exponents = _exponents(keys, group.kind)
        keys, exponents = keys[exponents > 0], exponents[exponents > 0]
        buckets, first = np.unique(keys >> _finer(group.kind), return_index=True)
        order = np.lexsort((buckets, -exponents[first]))
        order = order[: (1 << bits) - 1] if bits else order
        last = np.append(first[1:], len(keys)) - 1
        self.counts = np.add.reduceat(group.counts[keys], first)[order] if len(keys) else order
        self.tally = _Tally(len(order) + 1, group.kind, mean=mean, errors=errors)
        ranks = np.zeros(len(group.counts), np.uint8 if len(order) < 128 else np.uint16)
        for rank, bucket in enumerate(order.tolist(), 1):
            ends = keys[[first[bucket], last[bucket]]]
            ranks[keys[first[bucket] : last[bucket] + 1]] = rank
            if not mean:
                ranks[ends] = rank | self.tally.flag(ranks.dtype)
        self.rows: list[Symbols] = []
        for change in group.changes:
            row = np.empty(len(change), ranks.dtype)
            for at, values, patterns in change.blocks():
                symbols = row[at : at + BLOCK]
                ranks.take(patterns >> group.shift, out=symbols, mode="clip")
                self.tally.add(symbols, values)
            self.rows.append(row)
        self.table = self.tally.table(self.counts)

    def steps(self, count: int) -> Iterator[tuple[_Change, Step]]:
        """Steps that keep the first ``count`` buckets."""
        rows = self.rows
        if count < len(self.counts):
            rows = [row * (row <= count) for row in rows]
        rows = [row.astype(_symbol_type(count), copy=False) for row in rows]
        return self.group.steps(rows, self.table[: count + 1])

    def sizes(self, most: int) -> NDArray[np.float64]:
        """About the bytes for 1, 2, ... ``most`` buckets: entropy of the symbols, and table."""
        counts = self.counts.astype(np.float64)
        if not len(counts):  # nothing has changed
            return np.zeros(most)
        kept = np.cumsum(counts)
        rest = self.group.entries - kept
        bits = _self_information(self.group.entries) - np.cumsum(_self_information(counts))
        bits -= _self_information(rest)
        bits += np.arange(1, len(counts) + 1) * 8 * self.group.kind.width
        filled: NDArray[np.float64] = np.pad(bits / 8, (0, most - len(bits)), "edge")
        return filled

    def least(self, error: float) -> int:
        """How many buckets keep the relative error of the group's delta within ``error``.

        The error is the norm of what is lost, over the norm of the delta. All buckets, if even
        these lose more.
        """
        left = self.tally.squares - np.cumsum(self.tally.explained(self.table, self.counts))
        within = np.flatnonzero(left <= error**2 * self.tally.squares)
        return int(within[0]) + 1 if len(within) else len(self.counts)


def _symbol_type(symbols: int) -> Any:
    """The type of symbols 0 to ``symbols``."""
    return np.uint8 if symbols < 256 else np.uint16


def _self_information(counts: Any) -> Any:
    """The number n times log2 n; 0 for 0."""
    return counts * np.log2(np.maximum(counts, 1))


class _Tally:
    """Representatives of symbols: the middle between least and largest, or the mean.

    For the middle, the symbols of entries that may be either are flagged in their highest bit.
    """

    def __init__(self, symbols: int, kind: Format, *, mean: bool, errors: bool) -> None:
        self.mean, self.errors = mean, errors
        self.squares = 0.0  # of all entries, also of symbol 0
        self.sums = np.zeros(symbols, np.float64)
        self.low = np.full(symbols, np.inf, number_type(kind))
        self.high = np.full(symbols, -np.inf, number_type(kind))

    @staticmethod
    def flag(kind: np.dtype[Any]) -> int:
        return 1 << 8 * kind.itemsize - 1

    def add(self, symbols: Symbols, values: Numbers) -> None:
        """Takes note of a block, and takes the flags away."""
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
        """A float64 for each symbol, 0 for symbol 0; the others occur ``counts`` times."""
        if self.mean:
            numbers_of = self.sums[1:] / counts
        else:
            low = self.low[1:].astype(np.float64)
            numbers_of = low + (self.high[1:] - low) / 2
        return np.append(0.0, numbers_of)

    def explained(self, table: Numbers, counts: NDArray[Any]) -> NDArray[np.float64]:
        """By how much each symbol's number, but that of 0, makes the sum of squares smaller."""
        explained: NDArray[np.float64] = table[1:] * (2 * self.sums[1:] - table[1:] * counts)
        return explained


def _uniform(
    quantiser: Uniform, groups: list[_Group], raw: int, size: Callable[[Chosen], int]
) -> Chosen:
    levels = [_Levels(group) for group in groups]
    if quantiser.error is not None:
        error = float(quantiser.error)
        return [pair for each in levels for pair in each.within(error)]

    def chosen(fineness: float) -> Chosen:
        return [pair for each in levels for pair in each.steps(each.step(fineness))]

    def estimate(fineness: float) -> float:
        return sum(each.size(each.step(fineness)) for each in levels)

    assert quantiser.budget is not None
    allowed = int(raw * quantiser.budget)
    best, target = None, float(allowed)
    low, high = _COARSEST, _FINEST  # low fits, or is taken whatever it costs
    for _ in range(_TRIES):
        fineness = _bisect(lambda f: estimate(f) <= target, low, high)  # noqa: B023
        if best is not None and fineness - low < _NARROWER / 4:
            break
        attempt = chosen(fineness)
        made = size(attempt)
        if made <= allowed:
            best, low = attempt, fineness
            if made >= _NEAR * allowed or fineness == high:
                break
        elif fineness == _COARSEST:
            return attempt
        else:
            high = fineness
        target *= (_NEAR + 1) / 2 * allowed / made
        if not estimate(low) <= target < estimate(high):
            target = (estimate(low) + estimate(high)) / 2
    return best or chosen(_COARSEST)


_COARSEST, _FINEST = -10.0, 14.0  # log2 of the root mean square over the step
_TRIES = 8
_NEAR = 0.97  # of the budget


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number for which ``holds``, which is true up to it; ``low`` if for none."""
    if holds(high):
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class _Levels:
    """A group's changes in equal steps. Sizes and errors are first estimated from counts."""

    def __init__(self, group: _Group) -> None:
        self.group = group
        kind, keys = group.kind, np.flatnonzero(group.counts)
        keys = keys[_exponents(keys, kind) > 0]
        self.counts = group.counts[keys].astype(np.float64)
        pattern, form = (f"<{c}{_pattern_width(kind)}" for c in "uf")
        lowest = keys << group.shift
        middle = lowest | 1 << group.shift - 1
        self.values = middle.astype(pattern).view(form).astype(np.float64)
        self.squares = float(self.counts @ self.values**2)
        self.deviation = float(np.sqrt(self.squares / max(group.entries, 1)))
        # A step is not larger than the largest change, no subnormal change is a step long, and
        # no change lies beyond the last level.
        largest = float(np.abs(lowest.astype(pattern).view(form)).max(initial=0))
        self.most = largest * (1 - 2.0**-20)  # the quotient is rounded
        least = largest * (1 + 2.0 ** -_finer(kind)) / _MOST_LEVEL
        self.least = max(least, float(np.finfo(form).smallest_normal))

    def step(self, fineness: float) -> float:
        """The step of a fineness: the change's root mean square is 2^fineness steps."""
        return max(min(self.deviation * float(2.0**-fineness), self.most), self.least)

    def size(self, step: float) -> float:
        """About the bytes of the symbols and their numbers."""
        counts, _ = self._estimated(step)
        rest = self.group.entries - self.counts.sum()
        counts[0] += rest
        bits = _self_information(self.group.entries) - _self_information(counts).sum()
        width = 4 if self.group.kind.width == 8 else 2
        return float(bits) / 8 + (width + _FREQUENCY) * int(np.count_nonzero(counts[1:]))

    def lost(self, step: float) -> float:
        """About the relative error, squared."""
        counts, sums = self._estimated(step)
        explained = (sums[1:] ** 2 / np.maximum(counts[1:], 1)).sum()
        return 1 - float(explained) / self.squares if self.squares else 0.0

    def _estimated(self, step: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """About how many entries each level has, and their sums; those of zero are first."""
        levels = np.clip(np.trunc(self.values / step), -_MOST_LEVEL, _MOST_LEVEL)
        found, place = np.unique(np.append(0, levels), return_inverse=True)
        zero, place = int(place[0]), place[1:]
        front = np.append(zero, np.delete(np.arange(len(found)), zero))
        counts: NDArray[Any] = np.bincount(place, self.counts, len(found))
        sums: NDArray[Any] = np.bincount(place, self.counts * self.values, len(found))
        return counts[front], sums[front]

    def within(self, error: float) -> Iterator[tuple[_Change, Step]]:
        """Steps whose relative error is at most ``error``, or as small as it gets."""
        allowed = error**2
        coarse = _bisect(lambda c: self.lost(self.step(-c)) <= allowed, -_FINEST, -_COARSEST)
        rows, table, lost = self._made(self.step(-coarse), errors=True)
        while lost > allowed and coarse > -_FINEST:
            coarse -= _NARROWER
            rows, table, lost = self._made(self.step(-coarse), errors=True)
        return self.group.steps(rows, table)

    def steps(self, step: float) -> Iterator[tuple[_Change, Step]]:
        rows, table, _ = self._made(step, errors=False)
        return self.group.steps(rows, table)

    def _made(self, step: float, *, errors: bool) -> tuple[list[Symbols], Numbers, float]:
        """Symbols, their numbers, and (with ``errors``) the relative error, squared.

        The levels that occur are numbered outwards: 0, 1, -1, 2, -2, ...
        """
        kind = self.group.kind
        most = min(int(2 * self.most / step) + 1, _MOST_LEVEL)
        tally = _Tally(2 * most + 1, kind, mean=True, errors=errors)
        rows, scale = [], number_type(kind).type(1 / step)
        counts = np.zeros(2 * most + 1, np.int64)
        for change in self.group.changes:
            row = np.empty(len(change), np.uint16)
            for at, values, _ in change.blocks():
                level = np.clip(np.trunc(values * scale), -most, most)
                outwards = np.abs(level)
                outwards += outwards
                outwards -= level > 0
                row[at : at + BLOCK] = outwards
                tally.add(row[at : at + BLOCK], values)
                counts += np.bincount(row[at : at + BLOCK], minlength=len(counts))
            rows.append(row)
        used = np.flatnonzero(counts)
        used = used[used > 0]
        symbols = np.zeros(2 * most + 1, _symbol_type(len(used)))
        symbols[used] = np.arange(1, len(used) + 1)
        numbers_of = np.zeros(len(symbols))
        numbers_of[used] = _shortened(tally.sums[used] / counts[used], kind)
        lost = tally.squares - tally.explained(numbers_of, counts[1:]).sum()
        table = np.append(0, numbers_of[used])
        made = [symbols.take(row) for row in rows]
        return made, table, float(lost) / tally.squares if tally.squares else 0.0


_MOST_LEVEL = 16383
_FREQUENCY = 1.5  # bytes of a coder for one more symbol
_NARROWER = 0.05


def _shortened(values: NDArray[np.float64], kind: Format) -> NDArray[np.float64]:
    """The nearest finite numbers that need only half the bytes of a float32 or float64.

    No number of a float64 is so large (``_too_large``) that it would be rounded to infinity.
    """
    if kind.name == "float64":
        bits = values.view(np.uint64) + np.uint64(1 << 31)
        return (bits >> np.uint64(32) << np.uint64(32)).view(np.float64)
    if kind.name == "float32":
        short = round_bfloat16(values.astype("<f4").view("<u4"))
        short -= short & 0x7FFF == 0x7F80  # the largest number, in place of infinity
        return (short << np.uint32(16)).view("<f4").astype(np.float64)
    return values
