"""The grid: production weights are whole multiples of a power of two, the step of their tensor.

The step is near ``coarse`` times the standard deviation of the tensor's entries, and finer for
tensors that are smaller than the largest one, by the power ``fine`` of the ratio: they cost few
bytes, and each of their entries serves more of the network. A training weight is rounded to
the nearest multiple, but keeps its place until it is further than ``hold`` steps away:
training weights tremble, and without it those that lie half-way between two multiples would
cross over and back with every batch.

Rounding needs no dither: where in its step an entry lies is as good as random, so that as
many entries move on as the tensor has moved on the average. A wider ``hold`` (a dead zone)
loses just that. The rounding error is fed back, since the next version is rounded anew.

The step is found again in the production weights themselves: they are multiples of it. It is
kept while it is within a factor of two of what is wanted, so that the grid rarely changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.lossy.floats import Weights, values_of, words_of_values

__all__ = ["reduce", "wanted_exponent"]

Values = NDArray[Any]
_SMALLEST = -126  # below it a float32 has fewer bits


def reduce(weights: Sequence[Weights], coarse: float, hold: float, fine: float) -> None:
    """Rounds every tensor's ``after`` to its grid, in place.

    A tensor whose entries are all equal has no spread to measure a step by, and is taken
    over exactly; so is every entry that is infinite or no number.
    """
    largest = max((len(tensor.after) for tensor in weights), default=0)
    for tensor in weights:
        after = values_of(tensor.after, tensor.format)
        before = values_of(tensor.before, tensor.format)
        wanted = wanted_exponent(_sound(after, tensor), coarse, largest, fine)
        if wanted is None:
            continue
        exponent = _exponent(_sound(before, tensor), wanted)
        values = _rounded(before, after, exponent, hold, tensor.format.largest)
        words = words_of_values(values, tensor.format)
        taken = True if tensor.exact is None else ~tensor.exact
        np.copyto(tensor.after, words, where=taken)


def wanted_exponent(values: Values, coarse: float, largest: int, fine: float) -> int | None:
    """The exponent of the step that is wanted; None where the entries have no spread.

    ``largest`` is the number of entries of the largest tensor.
    """
    with np.errstate(all="ignore"):  # a spread beyond float64 is infinite
        spread = float(np.std(values, dtype=np.float64)) if len(values) else 0.0
    if not 0 < spread < math.inf:
        return None
    finer = fine * math.log2(largest / len(values))
    return max(round(math.log2(coarse) + math.log2(spread) - finer), _SMALLEST)


def _sound(values: Values, tensor: Weights) -> Values:
    return values if tensor.exact is None else values[~tensor.exact]


def _exponent(before: Values, wanted: int) -> int:
    """That of the grid on which ``before`` lies, if it is near what is wanted."""
    near = (e for e in (wanted + 1, wanted, wanted - 1) if _on_grid(before, e))
    return next(near, wanted) if before.any() else wanted


def _on_grid(values: Values, exponent: int) -> bool:
    """Asked of a few entries first, since most tensors that are off the grid show it at once."""
    for part in (values[:256], values):
        with np.errstate(all="ignore"):
            scaled = np.ldexp(part, -exponent)
        if not bool((scaled == np.rint(scaled)).all()):
            return False
    return True


def _rounded(before: Values, after: Values, exponent: int, hold: float, largest: float) -> Values:
    """``after`` on the grid, and no further out than its last multiple up to ``largest``.

    Scaling by a power of two is exact, and so is every multiple.
    """
    with np.errstate(all="ignore"):
        outmost = float(np.floor(np.ldexp(largest, -exponent)))
        numbers = np.rint(np.ldexp(after, -exponent)).clip(-outmost, outmost)
        moved = np.abs(after - before)
        held = moved <= after.dtype.type(math.ldexp(hold, exponent))
        held &= np.ldexp(np.rint(np.ldexp(before, -exponent)), exponent) == before
        on_grid = np.ldexp(numbers, exponent)
        np.copyto(on_grid, before, where=held)
    # -0.0 is no multiple of its own; adding 0.0 makes it +0.0.
    result: Values = on_grid + on_grid.dtype.type(0)
    return result
