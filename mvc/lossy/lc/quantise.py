"""Makes lossy deltas between two states of a model (docs/lc.md).

A *step* is the lossy delta of one tensor: it adds to each element a number from a small table. The
pipeline determines how these numbers are chosen. Tensors of the same dtype and *kind* share a
table, unless the pipeline has the option ``tensor``. The kinds are weights, and each moment of an
optimizer, because weights and moments differ by orders of magnitude. The paper of LC-Checkpoint
calls the tensors that share a table the flattened vector.
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
    """Returns a step for each tensor; None if the tensor must be stored exactly, as with a NaN.

    ``before``: raw bytes and dtype of each tensor in the state that the decoder has. ``after``: raw
    bytes and dtype of each tensor in the new state, in the same order. ``kinds``: an empty text for
    weights, or the name of an optimizer's moment. The changes of ``exp_avg_sq`` and
    ``max_exp_avg_sq`` are those of the square roots, so that they do not become negative.

    The caller applies the steps to ``before``. A budget limits the bytes of ``encode_steps`` to a
    share of the raw bytes of the tensors that get a step. At least one bucket, or one level on each
    side of zero, is stored, even if this exceeds the budget. Raises MvcError if this thread cannot
    compute with subnormal numbers.
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
