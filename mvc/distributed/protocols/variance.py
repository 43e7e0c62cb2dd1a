"""Federated dynamic averaging (FDA): synchronise when the variance of the models is too large.

After every update each worker sends the squared norm of its drift and a summary of the drift. The
variance is the mean of the squared norms less the squared norm of the mean drift, which the
coordinator estimates from the mean of the summaries. A summary is the length of the drift along the
last change of the global model, the linear one of the paper.
(Theologitis, Frangias, Anestis, Samoladas, Deligiannakis, arXiv 2405.20988.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Vector, Worker
from mvc.distributed.safe import norm_of
from mvc.errors import BadMessage


class VarianceCoordinator(Coordinator):
    """``counts.subrounds``: estimates made."""

    def _new_round(self) -> None:
        self._states: dict[int, tuple[float, float]] = {}
        self._over = False

    def _idle(self) -> bool:
        return super()._idle() and not self._states

    def _take(self, message: m.Message) -> None:
        if not isinstance(message, m.LocalState):
            raise BadMessage(f"worker {message.worker} sends {type(message).__name__} in averaging")
        if not (math.isfinite(message.square) and math.isfinite(message.along)):
            raise BadMessage(f"worker {message.worker} sends a summary that is not finite")
        self._states.setdefault(message.worker, (message.square, message.along))

    def _decide(self) -> None:
        if self.drifts and self.drifts.keys() >= self.members:
            self._end_round(self._mean(self.drifts))
        elif self._states and not self._over and self._states.keys() >= self.members - self.done:
            if self._estimate() > self.safe.radius**2:
                self._over = True
                self._fetch(self.members)
            else:
                self._go_on()

    def _measure(self, drifts: Sequence[Vector]) -> float:
        """The root of the variance of these drifts."""
        squares = [float(np.sum(np.square(each))) for each in drifts]
        norm = norm_of(np.mean(drifts, axis=0))
        return math.sqrt(max(0.0, sum(squares) / len(squares) - norm**2))

    def _go_on(self) -> None:
        senders = sorted(self._states)
        self._states.clear()
        self.subround += 1
        self.counts.subrounds += 1
        for worker in sorted(self.members):
            if worker in senders or worker in self.done:
                self._send(m.Continue(worker, self.round, self.subround))

    def _estimate(self) -> float:
        squares, along = zip(*(self._states[each] for each in sorted(self._states)), strict=True)
        count = len(squares)
        return float(sum(squares) / count - (sum(along) / count) ** 2)


class VarianceWorker(Worker):
    """Waits for the answer after every update."""

    _direction: Vector | None = None

    def _begin(self, message: m.Begin) -> list[m.Message]:
        before = self.reference[: self.layout.measured].astype(np.float64)
        known = self.round >= 0
        answers = super()._begin(message)
        change = self.reference[: self.layout.measured] - before
        norm = norm_of(change)
        self._direction = change / norm if known and norm else None
        return answers

    def _watch(self) -> list[m.Message]:
        drift = self.drift()
        self._check(drift)
        drift = self._up.rounded(drift)
        square = float(np.sum(np.square(drift)))
        along = 0.0 if self._direction is None else float(np.sum(drift * self._direction))
        self.waiting = True
        rounded = float(np.float32(along))
        return [m.LocalState(self.number, self.round, self.subround, square=square, along=rounded)]

    def _take(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Continue) and message.subround == self.subround + 1:
            self.subround = message.subround
            if not self.waiting_for_model:
                self.waiting = False
        return []
