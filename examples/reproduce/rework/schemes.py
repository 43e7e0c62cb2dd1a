"""How a state is kept after every iteration: LC, SCAR, TOPN, full checkpoints now and then.

All are fed the same states. What a checkpoint takes is counted in the bytes that would be written,
without names of tensors and headers of files, which are equal for all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mvc.errors import WrongUsage
from mvc.lossy.lc.payload import encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline

from .training import State, Vector

__all__ = ["DEFAULT", "Checkpoints", "checkpoints", "packed_gaps"]

_WORD = 4
_RUN = 255
_KINDS = {
    "weights": "",
    "momentum": "momentum_buffer",
    "first": "exp_avg",
    "second": "exp_avg_sq",
}

DEFAULT = (
    *("lc:x=3,huffman", "lc:x=2,huffman", "lc:mean,budget=0.05"),
    *("scar:0.05", "scar-round:0.05", "topn:0.05", "topn-coded:0.05", "full:20"),
)
"""The schemes that are compared if none are named."""


class Part(Protocol):
    """One vector of the state as it is kept."""

    saved: Vector

    def save(self, values: Vector) -> int:
        """Makes a checkpoint; returns its bytes."""


Make = Callable[[str, Vector], Part]
"""From the name of a vector and its start to how it is kept."""

Budget = Callable[[Vector], int]
"""The bytes that a checkpoint of these values may take."""


class Lossy:
    """LC: what a pipeline stores of the difference from the saved vector.

    Adam's second moment is quantised on the scale of its square root.
    """

    def __init__(self, pipeline: Pipeline, name: str, start: Vector) -> None:
        self._pipeline, self._kind, self.saved = pipeline, _KINDS[name], start.copy()

    def step(self, values: Vector) -> Addition | None:
        """What is added to the saved vector; None if the values cannot be approximated."""
        before, after = ((each.data.cast("B"), "float32") for each in (self.saved, values))
        (step,) = quantise(self._pipeline, [before], [after], kinds=[self._kind])
        if step is not None:
            step.apply(before[0])
        return step

    def save(self, values: Vector) -> int:
        step = self.step(values)
        if step is None:  # stored as it is
            self.saved = values.copy()
            return values.nbytes
        return sum(map(len, encode_steps(self._pipeline, [step])))


class _Partition:
    """SCAR: some blocks of ``block`` values a checkpoint, as many as ``budget`` holds.

    ``priority``: those that have moved furthest (Euclidean) since they were saved, each with its
    number; otherwise one after the other, with the number of the first.
    """

    def __init__(self, start: Vector, budget: Budget, block: int, priority: bool) -> None:
        self.saved, self._block, self._priority = start.copy(), block, priority
        self._budget = budget
        self._blocks = -(-start.size // block)
        self._number = _bytes_for(self._blocks)
        self._each = block * _WORD + (self._number if priority else 0)
        self._next = 0

    def save(self, values: Vector) -> int:
        count = min(self._blocks, max(1, self._budget(values) // self._each))
        if self._priority:
            moved = np.zeros(self._blocks * self._block, np.float32)
            np.subtract(values, self.saved, out=moved[: values.size])
            distances = np.square(moved).reshape(self._blocks, -1).sum(1)
            chosen = _largest(distances, count)
        else:
            chosen = np.arange(self._next, self._next + count) % self._blocks
            self._next = int(chosen[-1] + 1) % self._blocks
        places = (chosen[:, None] * self._block + np.arange(self._block)).ravel()
        places = places[places < values.size]
        self.saved[places] = values[places]
        numbers = len(chosen) if self._priority else 1
        return places.size * _WORD + numbers * self._number


class _Largest:
    """TOPN: the values that differ most from the saved ones, as one row of CSR.

    A value and a column of 32 bits each, as many as ``budget`` holds, and two row pointers.
    ``coded``: gaps between columns under Huffman's code in place of columns.
    """

    def __init__(self, start: Vector, budget: Budget, coded: bool) -> None:
        self.saved, self._budget, self._coded = start.copy(), budget, coded
        self._last = (0, 0)  # values, and the bytes that these took with coded gaps

    def save(self, values: Vector) -> int:
        distances = np.abs(values - self.saved)
        budget = self._budget(values)
        count = self._fitting(budget)
        while True:
            chosen = np.sort(_largest(distances, count))
            if not self._coded:
                size = (2 * len(chosen) + 2) * _WORD
                break
            size = len(chosen) * _WORD + len(packed_gaps(chosen))
            self._last = len(chosen), size
            if size <= budget or count == 1:
                break
            count = min(self._fitting(budget), count - 1)
        self.saved[chosen] = values[chosen]
        return size

    def _fitting(self, budget: int) -> int:
        """How many values fit, with coded gaps at the price that one had the last time."""
        count, size = self._last
        fitting = budget * count // size if size else (budget - 2 * _WORD) // (2 * _WORD)
        return max(1, min(self.saved.size, fitting))


class _Exact:
    """The vector itself."""

    def __init__(self, _: str, start: Vector) -> None:
        self.saved = start

    def save(self, values: Vector) -> int:
        self.saved = values
        return values.nbytes


class _Zeroed:
    """Nothing: the vector comes back as zeros."""

    def __init__(self, _: str, start: Vector) -> None:
        self.saved = np.zeros_like(start)

    def save(self, _: Vector) -> int:
        return 0


class Checkpoints:
    """Every iteration's state as one scheme keeps it, the weights apart from each moment.

    The state at the start is known in full.
    """

    def __init__(self, start: State, weights: Make, moments: Make) -> None:
        self._parts = {
            name: (weights if name == "weights" else moments)(name, values)
            for name, values in start.items()
        }
        self._iteration = 0

    def save(self, iteration: int, state: State) -> int:
        """Makes a checkpoint of this iteration's state; returns its bytes."""
        self._iteration = iteration
        return sum(part.save(state[name]) for name, part in self._parts.items())

    def restore(self) -> tuple[int, State]:
        """The iteration after which the training continues, and its state."""
        return self._iteration, {name: part.saved for name, part in self._parts.items()}


class _Periodic:
    """A full checkpoint every ``period`` iterations."""

    def __init__(self, start: State, period: int) -> None:
        self._period, self._kept = period, (0, start)

    def save(self, iteration: int, state: State) -> int:
        if iteration % self._period:
            return 0
        self._kept = (iteration, state)
        return sum(values.nbytes for values in state.values())

    def restore(self) -> tuple[int, State]:
        return self._kept


def checkpoints(text: str, start: State, block: int) -> Checkpoints | _Periodic:
    """The scheme of this text, which begins with a state that is known in full.

    ``full:20`` is a full checkpoint every 20 iterations; ``scar:0.05``, ``scar-round:0.05``,
    ``topn:0.05`` and ``topn-coded:0.05`` have 5 % of the bytes, or with a pipeline of LC in place
    of the number (``scar:lc:x=3,huffman``) as many bytes as each of its checkpoints; anything else
    is a pipeline of LC.
    ``@exact`` or ``@zeroed`` behind it says what becomes of the optimizer's moments; they are
    otherwise kept as the weights are. Raises WrongUsage.
    """
    text, _, treatment = text.partition("@")
    others: dict[str, Make] = {"exact": _Exact, "zeroed": _Zeroed}
    if treatment and treatment not in others:
        raise WrongUsage(f"moments are kept like the weights, @exact or @zeroed, not @{treatment}")
    if text.startswith("full:"):
        return _Periodic(start, int(_number(text, 1, 1_000_000)))
    weights = _part(text, block)
    return Checkpoints(start, weights, others.get(treatment, weights))


def _part(text: str, block: int) -> Make:
    kind, _, size = text.partition(":")
    if kind in ("scar", "scar-round"):
        budget = _budget(text, size)
        return lambda name, start: _Partition(start, budget(name, start), block, kind == "scar")
    if kind in ("topn", "topn-coded"):
        budget = _budget(text, size)
        return lambda name, start: _Largest(start, budget(name, start), kind == "topn-coded")
    return _lossy(text)


def _lossy(text: str) -> Callable[[str, Vector], Lossy]:
    pipeline = Pipeline.parse(text)
    if not pipeline.forward_only:
        raise WrongUsage(f"{text} is no pipeline of LC", hint="such as lc:x=3 or lc:budget=0.05")
    return lambda name, start: Lossy(pipeline, name, start)


def _budget(text: str, size: str) -> Callable[[str, Vector], Budget]:
    """A share of the vector's bytes, or what a pipeline of LC takes of the same vector."""
    if size.partition(":")[0] == "lc":
        lossy = _lossy(size)
        return lambda name, start: lossy(name, start).save
    share = _number(text, 0, 1)
    return lambda _, start: lambda _: int(share * start.nbytes)


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text.partition(":")[2])
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise WrongUsage(f"{text}: the number must be between {least:,} and {most:,}")
    return value


def packed_gaps(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bytes:
    """Ascending places as gaps, one byte each, under Huffman's code; a byte 255 adds 255."""
    gaps = np.diff(places, prepend=-1) - 1
    runs = gaps // _RUN
    coded = np.full(int(runs.sum()) + gaps.size, _RUN, np.uint8)
    coded[np.cumsum(runs + 1) - 1] = gaps % _RUN
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return packer.compress(coded.tobytes()) + packer.flush()


def _largest(distances: Vector, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if count >= distances.size:
        return np.arange(distances.size)
    return np.argpartition(distances, distances.size - count)[distances.size - count :]


def _bytes_for(count: int) -> int:
    """Bytes of a number below ``count``."""
    return max(1, (count - 1).bit_length() + 7 >> 3)
