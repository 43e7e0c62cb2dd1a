"""Private names of Keras (of 3.15): only this module uses them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from mvc.errors import NotInstalled, how_to_install
from mvc.frameworks.common.data import Sizes

__all__ = [
    "FitData", "begin_at", "check_version", "data_of_fit", "inner_optimizers", "layers_of",
    "own_generator", "set_own_generator",
]  # fmt: skip

FitData = tuple[str | None, Sizes | None]
_GLOBAL = "global_seed_generator"  # the name under which Keras keeps it


def check_version() -> None:
    """Raises NotInstalled for a Keras that is older than these names."""
    import keras

    if tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 15):
        raise NotInstalled(
            f"mvc needs Keras 3.15 or newer, this is {keras.__version__}",
            hint=how_to_install("keras"),
        )


def data_of_fit() -> FitData:
    """Why no later process can read an epoch of the running ``fit`` again; None if it can.

    Also its rows and batch size as far as Keras knows them; None if nothing is found. Keras does
    not tell callbacks where the data comes from. It stands in the frame of ``fit``, which is
    looked at and left as it is; in a ``fit`` of another making nothing is found.
    """
    frame, name = inspect.currentframe(), "epoch_iterator"
    while frame is not None and (frame.f_code.co_name != "fit" or name not in frame.f_locals):
        frame = frame.f_back
    if frame is None:
        return None, None
    iterator = frame.f_locals[name]
    adapter = getattr(iterator, "data_adapter", None)
    why = None
    if type(adapter).__name__ == "GeneratorDataAdapter":
        why = "it comes from a generator"
    elif getattr(adapter, "enqueuer", None) is not None:
        # What its threads have read ahead, also while Keras builds, is given out later.
        why = "it comes from a PyDataset with workers"
    elif getattr(iterator, "steps_per_epoch", None) is not None:
        why = "with steps_per_epoch an epoch goes on with the iterator of the one before"
    batches, size = getattr(adapter, "num_batches", None), getattr(adapter, "batch_size", None)
    if not isinstance(batches, int) or not isinstance(size, int):
        return why, {}
    last = getattr(adapter, "partial_batch_size", None)
    rows = batches * size if not last else (batches - 1) * size + int(last)
    return why, {"rows": rows, "batch size": size}


def own_generator() -> torch.Tensor | None:
    """The state of Keras's own random generator; None until a layer has used it."""
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute(_GLOBAL)
    return None if generator is None else generator.state.value.detach().clone()


def set_own_generator(kept: torch.Tensor | None) -> None:
    """Sets the state of Keras's own random generator. It may draw from Python's."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import global_seed_generator

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
