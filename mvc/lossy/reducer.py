"""The weights of a training become those that are deployed and stored: one ``Reducer``.

*Production weights* (``topk``, ``grid``, ``lsb``): training weights are changed by the lossy
stages in turn, and stored exactly (what they leave as it is: docs/pipelines.md). *Approximations*
(``mvc.lossy.lc``): the version before plus a coded step, which is taken from the version before,
not from the training's state before, so the error of one step is part of the next one and does
not add up (what stays exact: docs/lc.md).
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
"""Kinds of moments by the names that torch's optimizers give them."""
_STATISTICS = {"running_mean", "running_var"}


def is_optimizer(name: str) -> bool:
    """Whether a tensor is optimizer or other training state, by its name."""
    parts = name.lower().split(".")
    return not _OF_TRAINING.isdisjoint(parts) or parts[-1] in _OF_OPTIMIZERS


def kind_of(name: str) -> str | None:
    """The kind of a tensor as ``quantise`` takes it, empty for weights; None for what stays exact.

    >>> kind_of("optimizer.state.fc.weight.exp_avg_sq")
    'exp_avg_sq'
    """
    last = name.rpartition(".")[2]
    if is_optimizer(name):
        return _KINDS.get(last)
    return None if last in _STATISTICS else ""


class Reduced(Struct, frozen=True):
    """The tensors of a version, in the order, dtypes and shapes of the training's.

    ``steps`` lead from the version before to what was approximated.
    """

    arrays: dict[str, Array]
    steps: dict[str, Addition]


class Reducer(Struct, frozen=True):
    """What ``pipeline`` makes of a state; ``exact`` names the tensors that stay as they are."""

    pipeline: LossyPipeline
    exact: Container[str] = ()

    def may_change(self, name: str, dtype: str) -> bool:
        """Whether a tensor of a file with weights and training state may be changed at all."""
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
        """A version of the state ``training``, after the version ``before`` (None: the first).

        numpy has no bfloat16: such tensors are uint16 words, or of a dtype of 2 bytes named
        bfloat16 (ml_dtypes), and ``dtypes`` names those that are words. ``loss`` is that of the
        batch, which a loss-adaptive stage needs. An approximation hands on the arrays that it
        leaves exact; production weights are fresh arrays. Raises WrongUsage.
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
        anew: bool = False,
    ) -> dict[str, Array]:
        """Production weights, as ``reduce``. Names with the same memory (tied weights) stay equal.

        A pipeline without lossy stages copies. ``anew``: ``before`` was made by a finer or coarser
        form of the stages.
        """
        firsts: dict[object, str] = {}
        first_of = {name: firsts.setdefault(_memory(a), name) for name, a in training.items()}
        made = {n: np.array(training[n], order="C", copy=True) for n in firsts.values()}
        weights, fresh = [], []
        for name, array in made.items() if self.pipeline.lossy else ():
            kind = _format(array, (dtypes or {}).get(name))
            if kind is None or name in self.exact:
                continue
            old = None if before is None else _alike(before, name, array)
            # 'array' is fresh and contiguous, so its words are the very ones that are given back.
            after = _words(array, kind)
            if old is None:
                fresh.append(Moving.pair(kind, np.zeros_like(after), after))
            else:
                weights.append(Moving.pair(kind, _words(old, kind), after, anew=anew))
        for stage in self.pipeline.lossy:
            if stage.begins:
                stage.reduce([*weights, *fresh], loss)
            elif before is not None:
                stage.reduce(weights, loss)
        return {name: made[first] for name, first in first_of.items()}

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
        found = quantise(
            self.pipeline,
            [(_words(before[name], kind).data, kind.name) for name, kind in formats.items()],
            [(_words(training[name], kind).data, kind.name) for name, kind in formats.items()],
            kinds=[kind_of(name) or "" for name in formats],
        )
        arrays, steps = dict(training), {}
        for name, step in zip(formats, found, strict=True):
            if step is not None:
                arrays[name] = made = np.array(before[name], order="C", copy=True)
                step.apply(made.reshape(-1).view(np.uint8).data)
                steps[name] = step
        return Reduced(arrays, steps)


def _memory(array: Array) -> object:
    """A key that is equal for arrays with the same memory, dtype, shape and strides."""
    if not array.size:
        return id(array)
    return array.__array_interface__["data"][0], array.dtype, array.shape, array.strides


def _alike(arrays: Arrays, name: str, array: Array) -> Array | None:
    """The array of this name, if it has the same dtype and shape."""
    found = arrays.get(name)
    same = found is not None and (found.dtype, found.shape) == (array.dtype, array.shape)
    return found if same else None


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
