"""Geometric monitoring (GM): a worker that leaves the safe zone sends its model.

Balancing (Kamp's dynamic averaging, corrected) makes the mean grow by one
worker drawn at ``random``; with ``hedge`` by twice as many as there are, and by all once it would
hold half; with ``none`` by all, at the first violation.
"""

from __future__ import annotations

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Listening, Vector, Worker


class GeometricCoordinator(Coordinator):
    """``counts.balances``: how often balancing did without a synchronisation."""

    def _round(self) -> Listening[Vector | None]:
        count, balancing = len(self.members), self.protocol.balancing
        random = np.random.default_rng([self.protocol.seed, self.round])
        while self.drifts or not self._ended:
            held = len(self.drifts)
            if not held:
                yield from self._listen(m.Drift)
                continue
            mean = self._mean(self.drifts)
            if held == count:
                return mean
            more = 1 if balancing == "random" else 2 * held
            if balancing == "none" or self._alarms >= count:
                break
            if self.safe.of(mean[: self.layout.measured]) <= 0:
                self._balance(mean)
            elif balancing == "hedge" and 2 * (held + more) >= count:
                break
            else:
                others = sorted(self.members - self.drifts.keys())
                yield from self._gather({*map(int, random.choice(others, more, replace=False))})
        else:
            return (yield from self._rest())
        return (yield from self._gather(self.members))

    def _balance(self, mean: Vector) -> None:
        data, decoded = self._down.encode(mean)
        if not self._down.codec.exact:  # what is lost here comes back with the next reference
            self._residual += (mean - decoded) * (len(self.drifts) / len(self.members))
        self._send(m.Balance, self.drifts, data=data)
        self.subrounds.update(self.drifts.keys())
        self.drifts.clear()
        self.counts.balances += 1


class GeometricWorker(Worker):
    """Sends its drift once the safe function is positive."""

    def _watch(self) -> list[m.Message]:
        return self._drift(alarm=1) if self.safe.of(self._rounded()) > 0 else []

    def _take(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Balance):
            self.subround += 1
            self._load((self.reference + self._down.decode(message.data)).astype(self.model.dtype))
        return []
