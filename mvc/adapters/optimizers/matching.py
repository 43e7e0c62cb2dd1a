"""Finds by the data which weights a state belongs to.

A step moves weights against their first moment, scaled by the second; so where a sample of the
way that weights went points where a state says, they belong together. Optimizers that keep no
first moment say how far, and not where to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mvc.model.tensor import TensorSpec

_SAMPLE = 256
"""Numbers of each tensor that are compared."""
SAMPLE_BYTES = 8 * _SAMPLE
_LEAST = 8
_SURE = 0.8

Numbers = NDArray[np.float64]

_TINY = np.finfo(np.float32).tiny
_SECOND = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
_DTYPES = {"float32": "<f4", "float64": "<f8", "float16": "<f2"}


def sample(spec: TensorSpec, data: memoryview) -> Numbers | None:
    """The first numbers of a tensor; None where there are too few to tell tensors apart.

    ``data``: at least its first ``SAMPLE_BYTES``.
    """
    width = spec.nbytes // max(spec.elements, 1)
    part = data[: width * min(_SAMPLE, spec.elements)]
    if spec.elements < _LEAST:
        return None
    if spec.dtype == "bfloat16":
        wide = np.frombuffer(part, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    form = _DTYPES.get(spec.dtype)
    return None if form is None else np.frombuffer(part, form).astype(np.float64)


def direction(new: Mapping[str, Numbers], old: Mapping[str, Numbers]) -> tuple[Numbers, bool]:
    """Where a step went by the states after and before it, and whether the signs are known."""
    name = next((name for name in _SECOND if name in new), None)
    with np.errstate(all="ignore"):
        if "momentum_buffer" in new:
            return np.nan_to_num(-new["momentum_buffer"]), True
        if "exp_avg" in new:
            scale = np.sqrt(new[name]) if name is not None else new.get("exp_inf", np.ones(1))
            return np.nan_to_num(-new["exp_avg"] / (scale + _TINY)), True
        if name is None:
            return np.zeros(len(next(iter(new.values())))), False
        # The part of the square that is new, whatever the old one was multiplied by.
        kept = np.min(np.where(old[name] > 0, new[name] / old[name], np.inf), initial=1.0)
        square = (new[name] - kept * old[name]) / new[name]
        return np.nan_to_num(np.sqrt(np.maximum(square, 0))), False


def matches(
    went: Sequence[Numbers], expected: Sequence[Numbers], *, signed: bool
) -> dict[int, int]:
    """For each of ``expected`` the one of ``went`` that points there, where there is one.

    All have the same length.
    """
    if not went or not expected:
        return {}
    moved = np.nan_to_num(np.stack(went))
    table = np.abs(_unit(np.stack(expected)) @ _unit(moved if signed else np.abs(moved)).T)
    best, back = table.argmax(axis=1), table.argmax(axis=0)
    return {i: int(j) for i, j in enumerate(best) if table[i, j] >= _SURE and back[j] == i}


def _unit(rows: Numbers) -> Numbers:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
