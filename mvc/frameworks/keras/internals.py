"""Private names of Keras (of 3.15): only this module uses them.

Keras does not tell callbacks where the data of a ``fit`` comes from. ``fit`` makes an
``EpochIterator`` for it before it calls any callback, so the constructor of that class is wrapped
here, once, to note the newest one of each thread.
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

_GLOBAL = "global_seed_generator"  # the name under which Keras keeps it


class FitData(NamedTuple):
    """Where the data of a ``fit`` comes from, as far as Keras shows it."""

    unrepeatable: str | None = None
    """Why no later process can read an epoch again."""
    sizes: Sizes | None = None
    """Rows and batch size; empty if Keras does not know them, None if nothing was seen."""


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
    """The data of the ``fit`` that calls callbacks in this thread for the first time."""
    noted, _newest.iterator = _newest.iterator, None
    iterator = None if noted is None else noted()
    if iterator is None:
        return FitData()  # a ``fit`` of another making
    adapter = iterator.data_adapter
    why = None
    if type(adapter).__name__ == "GeneratorDataAdapter":
        why = "it comes from a generator"
    elif getattr(adapter, "enqueuer", None) is not None:
        # What its threads have read ahead, also while Keras builds, is given out later.
        why = "it comes from a PyDataset with workers"
    elif iterator.steps_per_epoch is not None:
        why = "with steps_per_epoch an epoch goes on with the iterator of the one before"
    count, size = getattr(adapter, "num_batches", None), getattr(adapter, "batch_size", None)
    if not isinstance(count, int) or not isinstance(size, int):
        return FitData(why, {})
    last = getattr(adapter, "partial_batch_size", None)
    rows = count * size if not last else (count - 1) * size + int(last)
    return FitData(why, {"rows": rows, "batch size": size})


def own_generator() -> torch.Tensor | None:
    """The state of Keras's own random generator; None until a layer has used it."""
    generator = global_state.get_global_attribute(_GLOBAL)
    return None if generator is None else generator.state.value.detach().clone()


def set_own_generator(kept: torch.Tensor | None) -> None:
    """Sets the state of Keras's own random generator. It may draw from Python's."""
    if kept is None:
        global_state.set_global_attribute(_GLOBAL, None)
    else:
        global_seed_generator().state.assign(kept)


def begin_at(model: Any, epoch: int | None) -> None:
    """Has ``fit`` begin with this epoch once ``on_train_begin`` is over; None takes that back."""
    model._initial_epoch = epoch


def layers_of(model: Any) -> list[Any]:
    """The model, its layers, and the layers in them."""
    return list(model._flatten_layers())


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that this one wraps."""
    one = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    return list(getattr(optimizer, "_inner_optimizers", [])) if one is None else [one]
