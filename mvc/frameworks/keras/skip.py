"""Passing over the batches of an epoch that were trained before.

``fit`` draws the order of an epoch and takes every batch from the loader. It calls
``model.train_function`` for each, so that for the batches already done another function takes
its place, which trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Skip"]


class Skip:
    """Stands in for the train function of a model for ``count`` batches."""

    def __init__(self, model: Any, count: int, logs: Mapping[str, float]) -> None:
        """``logs``: what the skipped batches report, those of the last one that was trained."""
        self._model = model
        self._train = model.train_function
        self._logs = dict(logs)
        self._fit = model.history  # Keras makes another one for every fit
        self._announced = False
        self.left = count
        model.train_function = self

    def announce(self) -> None:
        """A batch of this ``fit`` comes next."""
        self._announced = True

    def __call__(self, data: Any) -> Any:
        # A fit that was broken off must not leave the next one to skip its batches.
        if self._model.history is not self._fit or not self._announced:
            self.end()
            return self._train(data)
        self._announced = False
        self.left -= 1
        return dict(self._logs)

    def end(self) -> None:
        """Puts the model's own function back."""
        if self._model.train_function is self:
            self._model.train_function = self._train
