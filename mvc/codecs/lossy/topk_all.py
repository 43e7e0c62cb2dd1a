"""All-layer Top-K: the entries of all tensors that changed most (thesis §3.2.2).

The share is one of all entries together; every tensor has a least number of entries beside
it, taken from its own largest, so that small tensors are not left behind for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np

from mvc.codecs.lossy.floats import Weights
from mvc.codecs.lossy.topk import largest, least_count

__all__ = ["reduce"]


def reduce(weights: Sequence[Weights], share: Decimal, least: Decimal) -> None:
    """Applies all-layer Top-K, in place. Equal distances go to the earlier tensor and index."""
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
