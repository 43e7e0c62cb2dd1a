"""Accuracy of production weights: on the next batch, and on the last one.

Section 4.3.1 of the thesis. Weights after training batch t are asked for batch t + 1, which
they have not seen (prequential accuracy), and for the last batch, where the drift has gone
furthest (drift target accuracy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mvc.evaluation.drift.learning import Sample, correct
from mvc.evaluation.drift.stream import Stream

__all__ = ["Accuracies", "Scorer", "curve_difference", "normalised"]


@dataclass(frozen=True)
class Accuracies:
    """Shares of right answers after each trained batch: on the next batch, on the last one."""

    next: tuple[float, ...]
    last: tuple[float, ...]

    @property
    def prequential(self) -> float:
        """The mean over batches of the accuracy on the next one."""
        return sum(self.next) / len(self.next)

    @property
    def target(self) -> float:
        """The mean over batches of the accuracy on the last one."""
        return sum(self.last) / len(self.last)


class Scorer:
    """Asks weights about the batches of one stream. Keeps one network for it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._model = stream.experiment.recipe.build(stream.experiment.data)
        self._next: list[float] = []
        self._last: list[float] = []
        self._added: Mapping[str, NDArray[Any]] | None = None
        self._final = stream.batch(stream.experiment.plan.batches - 1)

    def accuracy(self, state: Mapping[str, NDArray[Any]], sample: Sample) -> float:
        """The share of a batch that the weights have right."""
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        self._model.load_state_dict(tensors, assign=True)  # no copy: nothing trains here
        return correct(self._model, sample) / len(sample[1])

    def add(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The weights that are live after the next training batch."""
        following = self._stream.batch(len(self._next) + 1)
        self._next.append(self.accuracy(state, following))
        if state is self._added:  # a skipped save: the same weights are still live
            self._last.append(self._last[-1])
        else:
            self._last.append(correct(self._model, self._final) / len(self._final[1]))
        self._added = state

    def result(self) -> Accuracies:
        """For everything added so far."""
        return Accuracies(tuple(self._next), tuple(self._last))


def normalised(curve: Sequence[float]) -> NDArray[np.float64]:
    """A curve between 0 at its lowest and 1 at its highest point; a flat one is all 0."""
    values = np.asarray(curve, np.float64)
    low, high = values.min(), values.max()
    return np.zeros_like(values) if high == low else (values - low) / (high - low)


def curve_difference(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """How far curves of two networks are apart: NLAccDiff of section 4.1.3.

    The mean absolute difference of the normalised curves, batch by batch, over every pair of
    one of ``ones`` and one of ``others``. All have equally many points.
    """
    pairs = [np.abs(normalised(one) - normalised(other)).mean() for one in ones for other in others]
    return float(np.mean(pairs))
