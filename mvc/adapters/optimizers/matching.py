"""Finds out which optimizer state belongs to which weights, from the values in two versions.

A step of an optimizer changes weights in the direction of the first moment, scaled by the second
moment. If weights changed in the direction that a state predicts, the state belongs to these
weights. A state without a first moment predicts only the sizes of changes, not their signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.floats import FORMATS, values_of
from mvc.codecs.words import word_type
from mvc.model.tensor import TensorSpec

_SAMPLE = 256
"""Numbers of each tensor that are compared."""
SAMPLE_BYTES = 8 * _SAMPLE
_LEAST = 8
_SURE = 0.7
"""A state matches a change if at least this share of the squared change is in its directions."""

Numbers = NDArray[np.float64]

_TINY = np.finfo(np.float32).tiny
_FIRST = ("momentum_buffer", "exp_avg")
_SECOND = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")


def sample(spec: TensorSpec, data: memoryview) -> Numbers | None:
    """The first numbers of a tensor; None if the tensor has too few numbers, or no floats.

    ``data``: the first ``SAMPLE_BYTES`` of the tensor, or more.
    """
    width = spec.nbytes // max(spec.elements, 1)
    part = data[: width * min(_SAMPLE, spec.elements)]
    if spec.elements < _LEAST:
        return None
    kind = FORMATS.get(spec.dtype)
    if kind is None:
        return None
    return values_of(np.frombuffer(part, word_type(kind.width)), kind).astype(np.float64)


class Expected(NamedTuple):
    """The expected change of weights in a step: a sum of multiples of ``directions``.

    ``signed``: False if ``directions`` have only the sizes of changes, not their signs.
    """

    directions: tuple[Numbers, ...]
    signed: bool


def expected(
    new: Mapping[str, Numbers], old: Mapping[str, Numbers], values: Mapping[str, object]
) -> Expected | None:
    """The change of weights that the states after (``new``) and before (``old``) a step predict.

    ``values``: the hyperparameters of the parameter's group. Uses the first moments of both states,
    because the gradient is a mixture of them. Returns None if the states predict nothing.
    """
    first = next((name for name in _FIRST if name in new), None)
    second = next((name for name in _SECOND if name in new), None)
    with np.errstate(all="ignore"):
        if first is not None:
            scale: Numbers | float = 1.0
            if first == "exp_avg" and second is not None:
                scale = np.sqrt(new[second]) + _TINY
            return Expected((new[first] / scale, old[first] / scale), True)
        if second is None:
            return None
        decay = values.get("alpha", 1.0) if second == "square_avg" else 1.0
        decay = decay if isinstance(decay, float) else 1.0
        square = (new[second] - decay * old[second]) / (new[second] + _TINY)
        return Expected((np.sqrt(np.maximum(square, 0)),), False)


def matches(went: Sequence[Numbers], expectations: Sequence[Expected]) -> dict[int, int]:
    """Returns a mapping from the index of an expectation to the index of the matching change.

    ``went``: the changes of weights. All arrays have the same length, and all expectations have the
    same number of directions.
    """
    if not went or not expectations:
        return {}
    moved = np.stack(went)
    moves = _unit(moved if expectations[0].signed else np.abs(moved))
    total = np.zeros((len(expectations), len(went)))
    bases: list[Numbers] = []
    for directions in zip(*(expectation.directions for expectation in expectations), strict=True):
        basis = _unit(np.stack(directions))
        for previous in bases:
            basis = basis - previous * np.sum(previous * basis, axis=1, keepdims=True)
        bases.append(_unit(basis))
        total += np.square(bases[-1] @ moves.T)
    best, reverse = total.argmax(axis=1), total.argmax(axis=0)
    return {i: int(j) for i, j in enumerate(best) if total[i, j] >= _SURE and reverse[j] == i}


def _unit(rows: Numbers) -> Numbers:
    """Scales each row to length 1. NaN and infinity count as 0. A row of zeros stays."""
    rows = np.nan_to_num(rows, posinf=0, neginf=0)
    rows = rows / np.where((most := np.abs(rows).max(axis=1, keepdims=True)) > 0, most, 1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
