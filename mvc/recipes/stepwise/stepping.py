"""A training that can be replayed step by step.

Each step calls a function with a model, an optimizer and a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch.utils.data import Dataset, TensorDataset, default_collate


class Stepping(Struct, frozen=True):
    """A step calls ``function(model, optimizer, batch)``.

    ``data[i]`` is the sample at position i. Samples are collated to a batch as by a DataLoader.
    """

    function: Callable[[Any, Any, Any], Any]
    model: torch.nn.Module
    optimizer: Any
    data: Any

    def step(self, rows: Sequence[int], batch: Any = None) -> Any:
        """Trains on the samples at the positions ``rows``.

        ``batch``: the collated samples; None if ``step`` must collate the samples.
        """
        batch = self._batch(rows) if batch is None else batch
        return self.function(self.model, self.optimizer, batch)

    def _batch(self, rows: Sequence[int]) -> Any:
        if type(self.data) is TensorDataset:
            at = torch.tensor(rows)
            return [tensor[at] for tensor in self.data.tensors]
        return default_collate([self.data[row] for row in rows])


class Numbered(Dataset[Any]):
    """A data set of pairs: the position of a sample in ``data``, and the sample."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        return row, self._data[row]


def rows_in(text: str) -> list[int]:
    """Converts a text of ``Batches.rows``, such as ``0 5 2``, to the positions of samples."""
    return list(map(int, text.split(" ")))


def rows_text(rows: Sequence[int]) -> str:
    """Converts positions of samples to a text for ``Batches.rows``."""
    return " ".join(map(str, rows))
