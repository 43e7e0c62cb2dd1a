"""Computes production weights from training weights and the previous version.

The input is a parsed file or state; the result has the same tensors with reduced contents. It is
then stored losslessly, so that the stored version equals the deployed one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.adapters.parsed import ParsedFile, StepFrom
from mvc.adapters.python.arrays import has_dtype, make_array
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.reduce import produce
from mvc.model.manifest import FileEntry
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.context import Context
from mvc.store.recovery.recover import Request
from mvc.store.writing.base_cache import BaseCache

__all__ = ["Arrays", "ProducedFile", "Weights", "is_optimizer", "reduce", "weights_before"]

Arrays = Mapping[str, NDArray[Any]]

_OF_TRAINING = {
    "optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict",
    "optim", "optim_state", "opt", "opt_state", "scheduler", "schedulers", "lr_scheduler",
    "lr_schedulers", "scaler", "grad_scaler", "rng", "rng_state",
}  # fmt: skip
_MOMENTS = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "grad_avg", "acc_delta",
}  # fmt: skip


def is_optimizer(key: str) -> bool:
    """Whether a tensor is optimizer or other training state, by its name."""
    parts = key.lower().split(".")
    return not _OF_TRAINING.isdisjoint(parts) or parts[-1] in _MOMENTS


class Weights(Struct, frozen=True):
    """Tensors of a file as arrays, by name.

    A tensor whose dtype numpy lacks is an array of unsigned integers, and ``dtypes`` has its
    dtype. ``contents`` has the position of each tensor's content in the file.
    """

    arrays: dict[str, NDArray[Any]]
    dtypes: dict[str, str]
    contents: dict[str, int]

    @classmethod
    def of(cls, parsed: ParsedFile) -> Weights:
        """The tensors with elements that are whole contents, not views into a raw storage.

        The arrays share the file's memory if possible; do not modify them.
        """
        made = cls({}, {}, {})
        seen: set[int] = set()
        for tensor in parsed.tensors:
            spec = parsed.contents[tensor.content].spec
            if tensor.view is not None or tensor.content in seen or not spec.nbytes:
                continue
            seen.add(tensor.content)
            data = parsed.borrow(tensor.content)
            if data is None:
                data = np.empty(spec.nbytes, np.uint8).data
                parsed.read(tensor.content, 0, data)
            made.arrays[tensor.key] = _array(spec, data)
            made.contents[tensor.key] = tensor.content
            if not has_dtype(spec.dtype):
                made.dtypes[tensor.key] = spec.dtype
        return made


def _array(spec: TensorSpec, data: memoryview) -> NDArray[Any]:
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    words = np.dtype(f"<u{DTYPES[spec.dtype].itemsize}")
    return np.frombuffer(data, words).reshape(spec.shape)


def reduce(
    pipeline: Pipeline,
    previous: Arrays | None,
    training: Arrays,
    *,
    loss: float | None = None,
    exact: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, NDArray[Any]]:
    """As ``produce``, but tied weights (names with the same memory) stay equal."""
    firsts: dict[object, str] = {}
    first_of = {name: firsts.setdefault(_memory(a), name) for name, a in training.items()}
    chosen = {name: training[name] for name in firsts.values()}
    made = produce(pipeline, previous, chosen, loss=loss, exact=exact, dtypes=dtypes)
    return {name: made[first] for name, first in first_of.items()}


def _memory(array: NDArray[Any]) -> object:
    """A key that is equal for arrays with the same memory, dtype, shape and strides."""
    if not array.size:
        return id(array)
    return array.__array_interface__["data"][0], array.dtype, array.shape, array.strides


def weights_before(
    context: Context, entry: FileEntry | None, names: Sequence[str], last: BaseCache | None = None
) -> dict[str, NDArray[Any]]:
    """Those of the named tensors that a stored version has; do not modify them.

    Taken from the cache ``last`` if it has them, else recovered and verified.
    """
    if entry is None:
        return {}
    asked = set(names)
    found: dict[str, NDArray[Any]] = {}
    missing: list[Request] = []
    for tensor in entry.tensors:
        if tensor.key not in asked or tensor.view is not None:
            continue
        data = last.content(tensor.key, tensor.id, tensor.spec) if last else None
        if data is None:
            data = np.empty(tensor.spec.nbytes, np.uint8).data
            missing.append(Request(tensor.id, tensor.spec, data))
        found[tensor.key] = _array(tensor.spec, data)
    context.store.recovery.fill(missing)
    return found


class ProducedFile(ParsedFile):
    """A file with some contents replaced; ``made`` has the new ones by position.

    ``steps``: as of ``ParsedFile``.
    """

    def __init__(
        self,
        parsed: ParsedFile,
        made: Mapping[int, memoryview],
        steps: Mapping[int, StepFrom] | None = None,
    ) -> None:
        self._parsed = parsed
        self._made = made
        self.steps = steps
        self.format = parsed.format
        self.size = parsed.size
        self.contents = parsed.contents
        self.checks = parsed.checks
        self.tensors = parsed.tensors

    def borrow(self, content: int) -> memoryview | None:
        """The replaced content, or the file's own."""
        made = self._made.get(content)
        return self._parsed.borrow(content) if made is None else made

    def read(self, content: int, start: int, out: memoryview) -> None:
        """As ``ParsedFile.read``."""
        made = self._made.get(content)
        if made is None:
            self._parsed.read(content, start, out)
        else:
            out[:] = made[start : start + len(out)]

    def skeleton(self) -> bytes:
        """The file's own skeleton: names, shapes and all bytes outside contents."""
        return self._parsed.skeleton()

    def copied(self, content: int) -> memoryview:
        """A content in memory that the caller may modify."""
        if content in self._made:
            return self._made[content]
        out = np.empty(self.contents[content].spec.nbytes, np.uint8).data
        self._parsed.read(content, 0, out)
        return out
