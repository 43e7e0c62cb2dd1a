"""Makes steps (lossy deltas of tensors) from two states of a model.

The numbers of a step are chosen by buckets of exponents, or by levels with equal distances. Tensors
of the same dtype and the same kind share a table of these numbers (the paper's flattened vector),
unless the pipeline has the flag ``tensor``. Weights and an optimizer's moments differ by orders of
magnitude, so they have different kinds. ``quantise`` returns None for a tensor whose change no step
can express (docs/lc.md, "What is not promised"). The caller stores such a tensor exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from mvc.codecs.floats import subnormals
from mvc.lossy.lc.groups import Data, Group, TensorChange
from mvc.lossy.lc.stages import LossyPipeline
from mvc.lossy.lc.step import Addition

SECOND_MOMENT = "exp_avg_sq"
_ON_ROOT = frozenset({SECOND_MOMENT, "max_exp_avg_sq"})


def quantise(
    pipeline: LossyPipeline,
    before: Sequence[tuple[Data, str]],
    after: Sequence[tuple[Data, str]],
    *,
    kinds: Sequence[str] = (),
) -> list[Addition | None]:
    """A step for each tensor of a model; None for a tensor that must be stored exactly.

    ``before``: raw bytes and dtypes of the tensors in the state that the decoder has. ``after``:
    the same for the training's state, in the same order. ``kinds``: for each tensor, empty for
    weights, or the name of an optimizer's slot. ``exp_avg_sq`` and ``max_exp_avg_sq`` are quantised
    on the scale of their square root, and never become negative. Changes nothing: the caller
    applies the steps to ``before``.

    A budget limits the bytes of ``encode_steps`` to a share of the raw bytes of the tensors that
    get a step. At least one bucket, or one level on each side of zero, is stored, even if this
    exceeds the budget. Raises MvcError if this thread cannot compute with subnormal numbers.
    """
    kinds = kinds or [""] * len(before)
    quantiser = pipeline.quantiser
    assert quantiser is not None, f"pipeline {pipeline.text} does not quantise"
    steps: list[Addition | None] = [None] * len(before)
    groups: dict[object, Group] = {}
    with subnormals():
        for i, (old, new, kind) in enumerate(zip(before, after, kinds, strict=True)):
            change = TensorChange.between(i, old, new, root=kind in _ON_ROOT)
            if change is not None:
                key = i if quantiser.own else (old[1], kind)
                groups.setdefault(key, Group(change.kind)).add(change)
        for change, step in quantiser.choose(pipeline, [g for g in groups.values() if g.changes]):
            if change.stays_finite(step):
                steps[change.index] = step
    return steps
