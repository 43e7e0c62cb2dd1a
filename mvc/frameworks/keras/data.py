"""The data of ``fit``: how much it is, and whether a later process can read an epoch again.

Keras does not tell its callbacks where the data comes from. It stands in the frame of ``fit``,
which is looked at and left as it is; a ``fit`` of another making tells nothing.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from mvc.frameworks.common.data_sizes import Sizes

__all__ = ["data_sizes", "unrepeatable"]


def data_sizes() -> Sizes:
    """Rows and batch size of the running ``fit``, as far as Keras knows them."""
    adapter = getattr(_epoch_iterator(), "data_adapter", None)
    batches, size = getattr(adapter, "num_batches", None), getattr(adapter, "batch_size", None)
    if not isinstance(batches, int) or not isinstance(size, int):
        return {}
    last = getattr(adapter, "partial_batch_size", None)
    rows = batches * size if not last else (batches - 1) * size + int(last)
    return {"rows": rows, "batch size": size}


def unrepeatable() -> str | None:
    """Why no later process can read an epoch of the running ``fit`` again; None if it can."""
    iterator = _epoch_iterator()
    if iterator is None:
        return None
    adapter = getattr(iterator, "data_adapter", None)
    if type(adapter).__name__ == "GeneratorDataAdapter":
        return "it comes from a generator"
    if getattr(adapter, "enqueuer", None) is not None:
        # What its threads have read ahead, also while Keras builds, is given out later.
        return "it comes from a PyDataset with workers"
    if getattr(iterator, "steps_per_epoch", None) is not None:
        return "with steps_per_epoch an epoch goes on with the iterator of the one before"
    return None


def _epoch_iterator() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
            return frame.f_locals["epoch_iterator"]
        frame = frame.f_back
    return None
