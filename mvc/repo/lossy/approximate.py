"""Approximates a state by a stored version plus a coded step (LC-Checkpoint).

The step is taken from the stored version, not from the state before, so the error of one step
is part of the next one and does not add up. What is committed is the version plus the step,
added as a reader adds them, so that both have the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.adapters.parsed import ParsedFile, StepFrom
from mvc.adapters.python.arrays import array_bytes
from mvc.codecs.lc.quantise import SECOND_MOMENT, quantise
from mvc.codecs.lossy.floats import FORMATS
from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.model.manifest import FileEntry
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.lossy.reduce import ProducedFile, Weights, is_optimizer, weights_before
from mvc.store.writing.base_cache import BaseCache

__all__ = ["approximate", "approximating"]

_MOMENTS = {
    "exp_avg": "exp_avg",
    "grad_avg": "exp_avg",
    "momentum_buffer": "momentum_buffer",
    "exp_avg_sq": SECOND_MOMENT,
    "square_avg": SECOND_MOMENT,
    "acc_delta": SECOND_MOMENT,
    "sum": SECOND_MOMENT,
    "max_exp_avg_sq": "max_exp_avg_sq",
}
"""Kinds of moments by the names that torch's optimizers give them."""
_STATISTICS = {"running_mean", "running_var"}


def approximating(context: Context) -> str | None:
    """The setting ``commit.pipeline``, if it is a pipeline that approximates checkpoints."""
    text = str(context.config.get("commit.pipeline"))
    return text if Pipeline.parse(text).forward_only else None


def approximate(
    context: Context,
    pipeline: Pipeline,
    parsed: ParsedFile,
    entry: FileEntry | None,
    *,
    exact: Collection[str] = (),
    last: BaseCache | None = None,
    held: Mapping[BlobId, memoryview] | None = None,
) -> ProducedFile:
    """The file with approximated tensors, and their steps from the stored version ``entry``.

    Approximated are floating-point weights and an optimizer's moments, those of each kind
    quantised among themselves. A tensor stays as it is if ``exact`` names it, if ``entry`` has
    none of its name, dtype and shape, or if it holds an infinity or a NaN. ``last`` and ``held``
    (by id) have contents of ``entry`` in memory.
    """
    weights = Weights.of(parsed)
    specs: dict[str, TensorSpec] = {}
    kinds: dict[str, str] = {}
    for name, i in weights.contents.items():
        spec, kind = parsed.contents[i].spec, _kind(name)
        if kind is not None and spec.dtype in FORMATS and spec.nbytes and name not in exact:
            specs[name], kinds[name] = spec, kind
    before, ids = _last_values(context, entry, specs, last, held or {})
    found = quantise(
        pipeline,
        [(data, specs[name].dtype) for name, data in before.items()],
        [(_bytes(weights.arrays[name]), specs[name].dtype) for name in before],
        kinds=[kinds[name] for name in before],
    )
    made: dict[int, memoryview] = {}
    steps: dict[int, StepFrom] = {}
    for name, step in zip(before, found, strict=True):
        if step is not None:
            data = memoryview(bytearray(before[name]))
            step.apply(data)
            made[weights.contents[name]] = data
            steps[weights.contents[name]] = StepFrom(ids[name], step, pipeline.text)
    return ProducedFile(parsed, made, steps)


def _last_values(
    context: Context,
    entry: FileEntry | None,
    specs: Mapping[str, TensorSpec],
    last: BaseCache | None,
    held: Mapping[BlobId, memoryview],
) -> tuple[dict[str, memoryview], dict[str, BlobId]]:
    """The tensors of a stored version that have one of these specs under the same name.

    And their ids. None of them if the version cannot be recovered: all is then stored exactly.
    """
    there = [] if entry is None else [t for t in entry.tensors if t.view is None]
    ids = {t.key: t.id for t in there if specs.get(t.key) == t.spec}
    found = {name: held[id_] for name, id_ in ids.items() if id_ in held}
    missing = [name for name in ids if name not in found]
    try:
        stored = weights_before(context, entry, missing, last)
    except DamagedData:
        return {}, {}
    return found | {name: _bytes(array) for name, array in stored.items()}, ids


def _bytes(array: NDArray[Any]) -> memoryview:
    return array_bytes(np.ascontiguousarray(array))


def _kind(name: str) -> str | None:
    """A kind as ``quantise`` takes it, empty for weights; None for what stays exact."""
    last = name.rpartition(".")[2]
    if is_optimizer(name):
        return _MOMENTS.get(last)
    return None if last in _STATISTICS else ""
