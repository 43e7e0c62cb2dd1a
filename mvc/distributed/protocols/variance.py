"""Federated dynamic averaging (FDA): averages the workers' models if their variance is too large.

After every update, each worker sends the squared norm of its drift (its model minus the global
model) and a summary of the drift. The variance is the mean of the squared norms minus the squared
norm of the mean drift. The coordinator estimates the squared norm of the mean drift from the mean
of the summaries. The summary is the length of the drift in the direction of the newest change of
the global model (the linear summary of the paper: Theologitis, Frangias, Anestis, Samoladas,
Deligiannakis, arXiv 2405.20988).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Listening, Vector, Worker
from mvc.distributed.safe import norm_of


class VarianceCoordinator(Coordinator):
    """``counts.subrounds``: the number of estimates of the variance."""

    def _round(self) -> Listening[Vector | None]:
        states: dict[int, m.LocalState] = {}
        while states or not self._ended:
            if not states or not states.keys() >= self.members - self.done:
                received = yield from self._listen(m.LocalState)
                states |= {state.worker: state for state in received}
            elif _estimate([states[state] for state in sorted(states)]) <= self.safe.radius**2:
                states.clear()
                self._start_subround(m.Continue)
            else:
                return (yield from self._gather(self.members))
        return (yield from self._last_mean())

    def _measure(self, drifts: Sequence[Vector]) -> float:
        """The root of the variance of these drifts."""
        squares = [float(np.sum(np.square(drift))) for drift in drifts]
        norm = norm_of(np.mean(drifts, axis=0))
        return math.sqrt(max(0.0, sum(squares) / len(squares) - norm**2))


def _estimate(states: Sequence[m.LocalState]) -> float:
    """The estimated variance of the drifts."""
    count = len(states)
    along = sum(state.along for state in states)
    return float(sum(state.square for state in states) / count - (along / count) ** 2)


class VarianceWorker(Worker):
    """After every update, sends a ``LocalState`` and waits for the answer.

    A ``LocalState`` has the squared norm and the summary of the drift.
    """

    _direction: Vector | None = None

    def _begin(self, message: m.Begin) -> list[m.Message]:
        before = self.reference[: self.layout.measured].astype(np.float64)
        known = self.round > 0
        answers = super()._begin(message)
        change = self.reference[: self.layout.measured] - before
        norm = norm_of(change)
        self._direction = change / norm if known and norm else None
        return answers

    def _watch(self) -> list[m.Message]:
        drift = self._rounded()
        square = float(np.sum(np.square(drift)))
        along = 0.0 if self._direction is None else float(np.sum(drift * self._direction))
        self.waiting = True
        rounded = float(np.float32(along))
        return [m.LocalState(self.number, self.round, self.subround, square=square, along=rounded)]

    def _answer(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Continue):
            self.subround += 1
            self.waiting = self._sent
        return []
