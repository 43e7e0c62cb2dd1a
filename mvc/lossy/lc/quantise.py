"""Makes steps from two states of a model: by buckets of exponents, or equal steps around zero.

Tensors of one dtype and one kind share a table (the paper's flattened vector), unless the pipeline
has the flag ``tensor``. Weights and an optimizer's moments differ by orders of magnitude, so they
have different kinds. ``quantise`` returns None for a tensor that no step can express (docs/lc.md,
"What is not promised"). The caller stores such a tensor exactly.
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

    ``before``: raw bytes and dtypes of the decoder's state. ``after``: those of the training's
    state, in the same order. ``kinds``: empty for weights, or the name of an optimizer's slot;
    ``exp_avg_sq`` and ``max_exp_avg_sq`` are quantised on the scale of their square root, and never
    become negative. Changes nothing: the caller applies the steps to ``before``.

    A budget limits the bytes of ``encode_steps`` to a share of the raw bytes of the tensors that
    get a step. It is exceeded only if not even one bucket fits, or one level on each side of zero.
    Raises MvcError if this thread cannot compute with subnormal numbers.
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
