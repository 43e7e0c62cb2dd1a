"""From two states of a model to steps: buckets by exponent, or equal steps around zero.

Tensors of one dtype and one kind share a table (the paper's flattened vector), unless the
pipeline says ``tensor``. Kinds keep weights and an optimizer's moments apart, which differ by
orders of magnitude. ``quantise`` gives None for a tensor that no step can express (docs/lc.md,
"What is not promised"): the caller stores it exactly.
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

    ``before`` are the raw bytes and dtypes of the state that the decoder has, ``after`` those
    of the training's state; tensors of equal place belong together. ``kinds`` names the kind of
    each: empty for weights, or an optimizer's slot; those named ``exp_avg_sq`` and
    ``max_exp_avg_sq`` are quantised on the scale of their square root, and never become negative.
    Nothing is changed: the caller applies the steps to ``before``.

    A budget is a share of the raw bytes of the tensors that get a step, and counts all bytes
    that ``encode_steps`` makes of these steps. It is exceeded only if not even one bucket, or
    one level on each side, fits. Raises MvcError where this thread cannot compute with subnormal
    numbers.
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
