"""Reduces training weights to the production weights that are deployed and stored.

Only float64, float32, float16 and bfloat16 tensors are ever changed. Other tensors and those
named exact are taken over bit for bit. So are tensors without a predecessor of their name,
dtype and shape, except by stages that begin (``grid``), and every entry that is infinite or
no number on either side (such entries do not count towards Top-K).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.lossy.floats import FORMATS, Format, Weights
from mvc.codecs.words import Words, word_type
from mvc.errors import WrongUsage

if TYPE_CHECKING:
    from mvc.codecs.pipeline import Pipeline

__all__ = ["produce"]

Array = NDArray[Any]


def produce(
    pipeline: Pipeline,
    previous: Mapping[str, Array] | None,
    training: Mapping[str, Array],
    *,
    loss: float | None = None,
    exact: Container[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """The new production weights by name: fresh arrays of ``training``'s order, dtypes, shapes.

    ``previous`` are the production weights of the version before, None for the first one,
    which only stages that begin (``grid``) change. numpy has no bfloat16: such tensors are
    uint16 words, or of a dtype of 2 bytes named bfloat16 (ml_dtypes), and ``dtypes`` names
    those that are words.
    ``loss`` is that of the batch, which a loss-adaptive stage needs. Raises WrongUsage.
    """
    made = {name: np.array(array, order="C", copy=True) for name, array in training.items()}
    if not pipeline.lossy:
        return made
    weights, fresh = [], []
    for name, array in made.items():
        kind = _format(array, (dtypes or {}).get(name))
        if kind is None or name in exact:
            continue
        before = previous.get(name) if previous is not None else None
        # 'array' is fresh and contiguous, so its words are the very ones that are given back.
        after = _words(array, kind)
        if before is None or before.dtype != array.dtype or before.shape != array.shape:
            fresh.append(Weights.pair(kind, np.zeros_like(after), after))
        else:
            weights.append(Weights.pair(kind, _words(before, kind), after))
    for stage in pipeline.lossy:
        if stage.begins:
            stage.reduce([*weights, *fresh], loss)
        elif previous is not None:
            stage.reduce(weights, loss)
    return made


def _format(array: Array, named: str | None) -> Format | None:
    """The format of an array's entries; None for what is never changed."""
    name = named or array.dtype.name
    kind = FORMATS.get(name)
    if kind is None or not array.dtype.isnative:
        return None
    if array.dtype.itemsize != kind.width:
        raise WrongUsage(f"an array of {array.dtype} cannot be words of {name}")
    return kind


def _words(array: Array, kind: Format) -> Words:
    return np.ascontiguousarray(array).reshape(-1).view(word_type(kind.width))
