"""Geometric monitoring (GM): a worker that leaves the safe zone sends its model.

Balancing (Kamp's dynamic averaging, corrected; docs/distributed.md) makes the mean grow by one
worker drawn at ``random``; with ``hedge`` by twice as many as there are, and by all once it would
hold half; with ``none`` by all, at the first violation.
"""

from __future__ import annotations

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Worker
from mvc.errors import BadMessage


class GeometricCoordinator(Coordinator):
    """``counts.balances``: how often balancing did without a synchronisation."""

    def _new_round(self) -> None:
        self._violations = 0
        self._full = False
        self._balanced: dict[int, int] = {}
        self._random = np.random.default_rng([self.protocol.seed, self.round])

    def _subround_of(self, worker: int) -> int:
        """A worker's sub-rounds are its balances: a drift from before one is late."""
        return self._balanced.get(worker, 0)

    def _on_drift(self, message: m.Drift) -> None:
        self._violations += message.alarm

    def _take(self, message: m.Message) -> None:
        raise BadMessage(f"worker {message.worker} sends {type(message).__name__} in monitoring")

    def _decide(self) -> None:
        held = len(self.drifts)
        if self._asked or not held:
            return
        if held == len(self.members):
            self._end_round(self._mean(self.drifts))
            return
        if self._full or self._ending or self._violations >= len(self.members):
            self._fetch(self.members)
            return
        mean = self._mean(self.drifts)
        if self.protocol.balancing != "none":
            if self.safe.of(mean[: self.layout.measured]) <= 0:
                self._balance(mean)
                return
            more = 1 if self.protocol.balancing == "random" else 2 * held
            if self.protocol.balancing == "random" or 2 * (held + more) < len(self.members):
                others = sorted(self.members - set(self.drifts))
                self._fetch(int(each) for each in self._random.choice(others, more, replace=False))
                return
        self._full = True
        self._fetch(self.members)

    def _balance(self, mean: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        data, decoded = self._down.encode(mean)
        if not self._down.codec.exact:  # what is lost here comes back with the next reference
            self._residual += (mean - decoded) * (len(self.drifts) / len(self.members))
        for worker in sorted(self.drifts):
            self._send(m.Balance(worker, self.round, self._subround_of(worker), data))
            self._balanced[worker] = self._subround_of(worker) + 1
        self.drifts.clear()
        self.counts.balances += 1


class GeometricWorker(Worker):
    """Sends its drift once the safe function is positive."""

    def _on_begin(self, message: m.Begin) -> list[m.Message]:  # noqa: ARG002
        self._safe = self.safe_function()
        return []

    def _watch(self) -> list[m.Message]:
        return [self._drift(alarm=1)] if self.value(self._safe) > 0 else []

    def _take(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Balance) and message.subround == self.subround:
            self.subround += 1
            self._load((self.reference + self._down.decode(message.data)).astype(self.model.dtype))
            self._train_on()
        return []
