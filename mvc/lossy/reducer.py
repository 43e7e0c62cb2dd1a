"""A ``Reducer`` turns the weights of a training into the weights that are deployed and stored.

Its pipeline has lossy stages. The stages ``topk``, ``grid`` and ``lsb`` make *production weights*:
they change the training weights, so that the next delta is small. The result is stored exactly
(docs/pipelines.md lists the exceptions). The stages of ``mvc.lossy.lc`` make *approximations*
instead. They encode the difference between the training weights and the previous stored version
with few bits. An approximation is the previous stored version plus this *step*. So each step
corrects the error of the step before, and errors do not add up (docs/lc.md lists the exceptions).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import FORMATS, Format
from mvc.codecs.words import Words, word_type
from mvc.errors import WrongUsage
from mvc.lossy.lc.quantise import SECOND_MOMENT, quantise
from mvc.lossy.lc.stages import LossyPipeline
from mvc.lossy.lc.step import Addition
from mvc.lossy.weights import Moving

Array = NDArray[Any]
Arrays = Mapping[str, Array]

_OF_TRAINING = {
    "optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict",
    "optim", "optim_state", "opt", "opt_state", "scheduler", "schedulers", "lr_scheduler",
    "lr_schedulers", "scaler", "grad_scaler", "rng", "rng_state",
}  # fmt: skip
_OF_OPTIMIZERS = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "grad_avg", "acc_delta",
}  # fmt: skip
_KINDS = {
    "exp_avg": "exp_avg",
    "grad_avg": "exp_avg",
    "momentum_buffer": "momentum_buffer",
    "exp_avg_sq": SECOND_MOMENT,
    "square_avg": SECOND_MOMENT,
    "acc_delta": SECOND_MOMENT,
    "sum": SECOND_MOMENT,
    "max_exp_avg_sq": "max_exp_avg_sq",
}
"""Maps the last part of a tensor's name in torch's optimizers to the kind of the tensor."""
_STATISTICS = {"running_mean", "running_var"}


def is_optimizer(name: str) -> bool:
    """Whether a tensor belongs to the optimizer or other training state, judged by its name."""
    parts = name.lower().split(".")
    return not _OF_TRAINING.isdisjoint(parts) or parts[-1] in _OF_OPTIMIZERS


def kind_of(name: str) -> str | None:
    """The kind of a tensor, which ``quantise`` needs. Empty for weights, None if exact.

    >>> kind_of("optimizer.state.fc.weight.exp_avg_sq")
    'exp_avg_sq'
    """
    last = name.rpartition(".")[2]
    if is_optimizer(name):
        return _KINDS.get(last)
    return None if last in _STATISTICS else ""


class Reduced(Struct, frozen=True):
    """The tensors of a version, with the order, dtypes and shapes of the training state.

    ``steps``: maps each approximated tensor to the step from the previous version.
    """

    arrays: dict[str, Array]
    steps: dict[str, Addition]


class Reducer(Struct, frozen=True):
    """Reduces a state by ``pipeline``. ``exact``: names of tensors that must not change."""

    pipeline: LossyPipeline
    exact: Container[str] = ()

    def may_change(self, name: str, dtype: str) -> bool:
        """Whether a tensor of a file with weights and training state may be changed."""
        if name in self.exact or dtype not in FORMATS:
            return False
        return kind_of(name) is not None if self.pipeline.forward_only else not is_optimizer(name)

    def reduce(
        self,
        before: Arrays | None,
        training: Arrays,
        *,
        loss: float | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> Reduced:
        """Computes the weights to store for the training state ``training``.

        ``before``: the weights of the previous version, or None. ``loss``: the loss of the batch,
        for a stage that depends on the loss. ``dtypes``: maps the name of a uint16 array to
        ``bfloat16`` if its integers are the bits of bfloat16 numbers. Arrays with the bfloat16 of
        ml_dtypes need no entry. Arrays of production weights are new. An approximation shares
        arrays that stay exact with ``training``. Raises WrongUsage.
        """
        if self.pipeline.forward_only:
            return self._approximated(before or {}, training, dtypes or {})
        return Reduced(self.produce(before, training, loss=loss, dtypes=dtypes), {})

    def produce(
        self,
        before: Arrays | None,
        training: Arrays,
        *,
        loss: float | None = None,
        dtypes: Mapping[str, str] | None = None,
        new_level: bool = False,
    ) -> dict[str, Array]:
        """Computes production weights. The arguments are those of ``reduce``.

        If arrays of ``training`` share memory (tied weights), the results share memory, too.
        ``new_level``: whether the stages that computed ``before`` were more exact or less exact.
        """
        firsts: dict[object, str] = {}
        first_of = {name: firsts.setdefault(_memory(a), name) for name, a in training.items()}
        arrays = {n: np.array(training[n], order="C", copy=True) for n in firsts.values()}
        weights, new = [], []
        for name, array in arrays.items() if self.pipeline.lossy else ():
            kind = _format(array, (dtypes or {}).get(name))
            if kind is None or name in self.exact:
                continue
            old = None if before is None else _alike(before, name, array)
            # ``array`` is new and contiguous, so ``after`` is a view of ``array``. The stages
            # change ``after``, and thereby the result.
            after = _words(array, kind)
            if old is None:
                new.append(Moving.pair(kind, np.zeros_like(after), after))
            else:
                weights.append(Moving.pair(kind, _words(old, kind), after, new_level=new_level))
        for stage in self.pipeline.lossy:
            if stage.rounds_first:
                stage.reduce([*weights, *new], loss)
            elif before is not None:
                stage.reduce(weights, loss)
        return {name: arrays[first] for name, first in first_of.items()}

    def _approximated(self, before: Arrays, training: Arrays, dtypes: Mapping[str, str]) -> Reduced:
        formats: dict[str, Format] = {}
        for name, array in training.items():
            kind = _format(array, dtypes.get(name))
            if (
                kind
                and self.may_change(name, kind.name)
                and _alike(before, name, array) is not None
            ):
                formats[name] = kind
        steps_ = quantise(
            self.pipeline,
            [(_words(before[name], kind).data, kind.name) for name, kind in formats.items()],
            [(_words(training[name], kind).data, kind.name) for name, kind in formats.items()],
            kinds=[kind_of(name) or "" for name in formats],
        )
        arrays, steps = dict(training), {}
        for name, step in zip(formats, steps_, strict=True):
            if step is not None:
                arrays[name] = result = np.array(before[name], order="C", copy=True)
                step.apply(result.reshape(-1).view(np.uint8).data)
                steps[name] = step
        return Reduced(arrays, steps)


def _memory(array: Array) -> object:
    """A key for the array's memory.

    Two arrays have equal keys if they have the same memory, dtype, shape and strides.
    """
    if not array.size:
        return id(array)
    return array.__array_interface__["data"][0], array.dtype, array.shape, array.strides


def _alike(arrays: Arrays, name: str, array: Array) -> Array | None:
    """The array ``name`` of ``arrays``, or None if its dtype or shape differs from ``array``."""
    array_ = arrays.get(name)
    same = array_ is not None and (array_.dtype, array_.shape) == (array.dtype, array.shape)
    return array_ if same else None


def _format(array: Array, named: str | None) -> Format | None:
    """The float format of an array's entries. None if the entries are no floats in native order.

    ``named``: the format, if the array has integers with the bits of floats.
    """
    name = named or array.dtype.name
    kind = FORMATS.get(name)
    if kind is None or not array.dtype.isnative:
        return None
    if array.dtype.itemsize != kind.width:
        raise WrongUsage(f"an array of {array.dtype} cannot be words of {name}")
    return kind


def _words(array: Array, kind: Format) -> Words:
    return np.ascontiguousarray(array).reshape(-1).view(word_type(kind.width))
