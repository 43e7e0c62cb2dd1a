"""Functional geometric monitoring (FGM): counters of O(1) bytes until the mean may be unsafe.

docs/distributed.md says what makes a round and a sub-round. With rebalancing half of the safe zone
is the coordinator's (``mu``), half the workers' (``lambda``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Vector, Worker
from mvc.errors import BadMessage

SHARE = 0.5
"""Of the safe zone, the workers' part after a flush (lambda); the rest is the coordinator's."""

_TOLERANCE = 1e-9  # added to a quotient before the floor
_MOST = 2.0**32 - 1  # a counter is a number of 32 bits


class FunctionalCoordinator(Coordinator):
    """``counts.balances``: flushes after which the round went on."""

    def _new_round(self) -> None:
        self._phase = "watch"
        self._counter = 0
        self._values: dict[int, float] = {}
        self._flushed: dict[int, Vector] = {}  # what each has sent before its last flush
        self._at_zero = 0.0 if self.measuring else self.safe.at_zero
        self._theta = -self._at_zero / 2

    def _quantum(self) -> float:
        return self._theta

    def _idle(self) -> bool:
        return self._phase == "watch" and super()._idle()

    def _unaveraged(self) -> bool:
        return bool(self._flushed) or super()._unaveraged()

    def _take(self, message: m.Message) -> None:
        if isinstance(message, m.Increment) and self._phase == "watch":
            self._counter += message.amount
        elif isinstance(message, m.Value) and message.worker not in self._values:
            if not math.isfinite(message.value):
                raise BadMessage(f"worker {message.worker} sends a value that is not finite")
            self._values[message.worker] = message.value

    def _collect(self) -> None:
        self._phase = "collect"
        self._values.clear()
        for worker in sorted(self.members):
            self._send(m.Collect(worker, self.round, self.subround))

    def _decide(self) -> None:
        if self._phase == "watch" and not self._ending:
            if self._counter > len(self.members):
                self._collect()
        elif self._phase == "collect" and self._values.keys() >= self.members:
            psi = sum(self._values[each] for each in sorted(self.members)) + self._hub_psi()
            if psi >= self.protocol.barrier * len(self.members) * self._at_zero:
                self._phase = "fetch"
                self._fetch(self.members)
            else:
                self._new_subround(psi)
        if (self._phase == "fetch" or self._ending) and self.drifts.keys() >= self.members:
            self._all_drifts_here()

    def _all_drifts_here(self) -> None:
        if self.protocol.rebalance is None:
            self._end_round(self._mean(self.drifts))
            return
        for worker, drift in self.drifts.items():
            self._flushed[worker] = self._flushed.get(worker, 0.0) + drift
        count = len(self.members)
        psi = SHARE * count * self._at_zero + self._hub_psi()
        if self._ending or psi > self.protocol.rebalance * count * self._at_zero:
            self._end_round(self._mean(self._flushed))
            return
        self.drifts.clear()
        self.counts.balances += 1
        self._new_subround(psi)

    def _hub_psi(self) -> float:
        """What the coordinator holds adds to the sum of the values."""
        if not self._flushed:
            return 0.0
        mean = self._mean(self._flushed)[: self.layout.measured]
        return (1 - SHARE) * len(self.members) * self.safe.of(mean / (1 - SHARE))

    def _new_subround(self, psi: float) -> None:
        self._phase = "watch"
        self._theta = -psi / (2 * len(self.members))
        self._counter = 0
        self.subround += 1
        self.counts.subrounds += 1
        for worker in sorted(self.members):
            self._send(m.Quantum(worker, self.round, self.subround, self._theta))


class FunctionalWorker(Worker):
    """Sends how often its value has risen by a quantum since the sub-round began."""

    _anchor: Any = None

    def _on_begin(self, message: m.Begin) -> list[m.Message]:
        self._safe = self.safe_function()
        self._anchor = None
        self._quantum = message.quantum
        self._counter = 0
        self._zero = self._safe.at_zero
        return self._watch() if self._residual is not None else []

    def drift(self) -> Vector:
        """Since the round began, or since the last flush."""
        if self._anchor is None:
            return super().drift()
        drift: Vector = np.subtract(self.model, self._anchor, dtype=np.float64)
        return drift if self._residual is None else drift + self._residual

    def _now(self) -> float:
        return self.value(self._safe, 1.0 if self._anchor is None else SHARE)

    def _watch(self) -> list[m.Message]:
        value = self._now()  # at every update: a model that is not finite is noticed at once
        if self._quantum == 0:  # values are being collected: what rises now is seen afterwards
            return []
        quotient = (value - self._zero) / self._quantum + _TOLERANCE
        risen = math.floor(max(-1.0, min(quotient, _MOST)))
        if risen <= self._counter:
            return []
        amount, self._counter = risen - self._counter, risen
        return [m.Increment(self.number, self.round, self.subround, amount)]

    def _take(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Collect) and message.subround == self.subround:
            self._zero, self._quantum, self._counter = self._now(), 0.0, 0
            return [m.Value(self.number, self.round, self.subround, self._zero)]
        if isinstance(message, m.Quantum) and message.subround == self.subround + 1:
            self.subround, self._quantum, self._counter = message.subround, message.quantum, 0
            if self.waiting_for_model:  # the drift is sent, and the round goes on from here
                self._anchor = self.model.copy()
                self._zero = SHARE * self._safe.at_zero
                self._train_on()
            return self._watch()
        return []
