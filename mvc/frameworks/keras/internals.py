"""All uses of private names of Keras 3.15, for mvc's Keras callback.

Keras does not show a callback the data of the running ``fit``. But ``fit`` creates an
``EpochIterator`` for the data before it calls any callback. So this module replaces the constructor
of ``EpochIterator`` by a function that remembers the newest iterator of each thread.
"""

from __future__ import annotations

import threading
import weakref
from functools import wraps
from typing import Any, NamedTuple

import keras
import torch

from mvc.errors import NotInstalled, how_to_install
from mvc.frameworks.common.data import Sizes

if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 15):
    raise NotInstalled(
        f"mvc needs Keras 3.15 or newer, this is {keras.__version__}", hint=how_to_install("keras")
    )

from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator
from keras.src.trainers.epoch_iterator import EpochIterator

_GLOBAL = "global_seed_generator"  # Keras's name for its own random generator


class FitData(NamedTuple):
    """The data of a ``fit``, as far as Keras knows."""

    unrepeatable: str | None = None
    """Why a later process cannot read the same batches in the same order; None if it can."""
    sizes: Sizes | None = None
    """The number of rows and the batch size; empty if unknown; None if there is no iterator."""


class _Newest(threading.local):
    iterator: weakref.ref[Any] | None = None


_newest = _Newest()
_init = EpochIterator.__init__


@wraps(_init)
def _noted(self: Any, *arguments: Any, **options: Any) -> None:
    _init(self, *arguments, **options)
    _newest.iterator = weakref.ref(self)


EpochIterator.__init__ = _noted


def data_of_fit() -> FitData:
    """The data of the current ``fit``.

    Call this function once, in the first callback of the fit.
    """
    noted, _newest.iterator = _newest.iterator, None
    iterator = None if noted is None else noted()
    if iterator is None:
        return FitData()  # the user's own ``fit``, without an EpochIterator
    adapter = iterator.data_adapter
    why = None
    if type(adapter).__name__ == "GeneratorDataAdapter":
        why = "the data comes from a generator"
    elif getattr(adapter, "enqueuer", None) is not None:
        # Threads read batches before the training needs these batches.
        why = "the data comes from a PyDataset with workers"
    elif iterator.steps_per_epoch is not None:
        why = "with steps_per_epoch an epoch continues the iterator of the previous one"
    count, size = getattr(adapter, "num_batches", None), getattr(adapter, "batch_size", None)
    if not isinstance(count, int) or not isinstance(size, int):
        return FitData(why, {})
    last = getattr(adapter, "partial_batch_size", None)
    rows = count * size if not last else (count - 1) * size + int(last)
    return FitData(why, {"rows": rows, "batch size": size})


def own_generator() -> torch.Tensor | None:
    """The state of Keras's own random generator; None until a layer uses it."""
    generator = global_state.get_global_attribute(_GLOBAL)
    return None if generator is None else generator.state.value.detach().clone()


def set_own_generator(recorded: torch.Tensor | None) -> None:
    """Sets the state of Keras's own random generator. May draw from Python's ``random``."""
    if recorded is None:
        global_state.set_global_attribute(_GLOBAL, None)
    else:
        global_seed_generator().state.assign(recorded)


def begin_at(model: Any, epoch: int | None) -> None:
    """Makes ``fit`` begin with ``epoch``; with its usual first epoch if ``epoch`` is None.

    ``fit`` reads this after ``on_train_begin``.
    """
    model._initial_epoch = epoch


def layers_of(model: Any) -> list[Any]:
    """The model, its layers, and their inner layers."""
    return list(model._flatten_layers())


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that ``optimizer`` wraps."""
    one = getattr(optimizer, "inner_optimizer", None)  # attribute of a LossScaleOptimizer
    return list(getattr(optimizer, "_inner_optimizers", [])) if one is None else [one]
