"""Geometric monitoring (GM): a worker whose drift is no longer safe sends its drift.

A drift is a worker's model minus the global model. A drift is safe while the value of the safe
function at the drift is at most 0.

Balancing (Kamp's dynamic averaging, corrected) then adds workers to a group, until the mean drift
of the group is safe. With ``random``, the coordinator adds one random worker at a time. With
``hedge``, the coordinator adds twice as many workers as the group has. If the group would then have
half of all workers or more, the coordinator adds all workers. With ``none``, the coordinator adds
all workers at once.
"""

from __future__ import annotations

import numpy as np

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Listening, Vector, Worker


class GeometricCoordinator(Coordinator):
    """``counts.balances``: how often balancing avoided a synchronization of all workers."""

    def _round(self) -> Listening[Vector | None]:
        count, balancing = len(self.members), self.protocol.balancing
        random = np.random.default_rng([self.protocol.seed, self.round])
        while self.drifts or not self._ended:
            received = len(self.drifts)
            if not received:
                yield from self._listen(m.Drift)
                continue
            mean = self._mean(self.drifts)
            if received == count:
                return mean
            more = 1 if balancing == "random" else 2 * received
            if balancing == "none" or self._alarms >= count:
                break
            if self.safe.of(mean[: self.layout.measured]) <= 0:
                self._balance(mean)
            elif balancing == "hedge" and 2 * (received + more) >= count:
                break
            else:
                absent = sorted(self.members - self.drifts.keys())
                yield from self._gather({*map(int, random.choice(absent, more, replace=False))})
        else:
            return (yield from self._last_mean())
        return (yield from self._gather(self.members))

    def _balance(self, mean: Vector) -> None:
        data, decoded = self._down.encode(mean)
        if not self._down.codec.exact:  # encoding errors are added to the next reference
            self._residual += (mean - decoded) * (len(self.drifts) / len(self.members))
        self._send(m.Balance, self.drifts, data=data)
        self.subrounds.update(self.drifts.keys())
        self.drifts.clear()
        self.counts.balances += 1


class GeometricWorker(Worker):
    """Sends its drift once the safe function is positive."""

    def _watch(self) -> list[m.Message]:
        return self._drift(alarm=1) if self.safe.of(self._rounded()) > 0 else []

    def _answer(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Balance):
            self.subround += 1
            self._load((self.reference + self._down.decode(message.data)).astype(self.model.dtype))
        return []
