"""Top-K: only the entries that changed most, of every tensor or of all together (thesis §3.2.2).

A tensor takes over k entries of the training weights, those with the largest
|production - training|, and keeps its production weights elsewhere. Equal distances go to
the lower flat index, so that a run can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.lossy.floats import Weights

__all__ = ["counts", "largest", "reduce", "reduce_all"]

_SAMPLE = 1 << 13
_MARGIN = 5  # standard deviations of the sample's quantile


def counts(sizes: Sequence[int], share: Decimal | Fraction, least: Decimal | Fraction) -> list[int]:
    """How many entries of every tensor are taken over:

    min(size, max(ceil(share * size), floor(largest size * least))), where Eq. 3.1 prints
    min for the max. Shares are exact numbers: 0.1 of 10 is 1, not 2.
    """
    floor = least_count(sizes, least)
    exact = Fraction(share)
    return [min(size, max(math.ceil(exact * size), floor)) for size in sizes]


def least_count(sizes: Sequence[int], least: Decimal | Fraction) -> int:
    """Entries that every tensor may have at least: a share of the largest one."""
    return math.floor(Fraction(least) * max(sizes, default=0))


def largest(distance: NDArray[Any], k: int) -> NDArray[np.bool_]:
    """Marks the ``k`` largest of ``distance``; equal ones in order of index."""
    size = len(distance)
    if k <= 0:
        return np.zeros(size, np.bool_)
    if k >= size:
        return np.ones(size, np.bool_)
    bound = _bound(distance, k)
    marked: NDArray[np.bool_] = distance > bound
    missing = k - int(np.count_nonzero(marked))
    marked[np.flatnonzero(distance == bound)[:missing]] = True
    return marked


def _bound(distance: NDArray[Any], k: int) -> Any:
    """The k-th largest. A sample tells nearly where it lies, and the rest need not be sorted."""
    if len(distance) > 4 * _SAMPLE:
        sample = np.sort(distance[:: len(distance) // _SAMPLE])
        below = len(sample) * (1 - k / len(distance))
        spread = _MARGIN * math.sqrt(below * k / len(distance))
        upper = distance[distance >= sample[max(0, int(below - spread))]]
        if len(upper) >= k:
            distance = upper
    return np.partition(distance, len(distance) - k)[len(distance) - k]


def reduce(
    weights: Sequence[Weights], share: Decimal | Fraction, least: Decimal | Fraction
) -> None:
    """Applies Top-K to every tensor, in place. Entries taken over exactly do not count."""
    sizes = [len(tensor.after) for tensor in weights]
    for tensor, k in zip(weights, counts(sizes, share, least), strict=True):
        tensor.take_only(largest(tensor.distance(), k))


def reduce_all(weights: Sequence[Weights], share: Decimal, least: Decimal) -> None:
    """Applies all-layer Top-K, in place: the share is one of all entries together.

    Every tensor changes at least ``least`` times the largest tensor's size, taken from its own
    largest changes, so that small tensors are not left behind. Equal distances go to the earlier
    tensor and index.
    """
    if not weights:
        return
    sizes = [len(tensor.after) for tensor in weights]
    floor = least_count(sizes, least)
    distances = [tensor.distance() for tensor in weights]
    chosen = largest(np.concatenate(distances), math.ceil(Fraction(share) * sum(sizes)))
    start = 0
    for tensor, distance, size in zip(weights, distances, sizes, strict=True):
        own = chosen[start : start + size]
        if int(np.count_nonzero(own)) < floor:
            own = own | largest(distance, floor)
        tensor.take_only(own)
        start += size
