"""Geometric monitoring (GM): averages models only when they are too far from the global model.

GM is a protocol of distributed training. Each worker trains a copy of the global model. A worker's
*drift* is its model minus the global model. A drift is *safe* if the safe function, which the user
chooses, is at most 0 for the drift. A worker whose drift is no longer safe sends the drift to the
coordinator.

The coordinator then asks more workers for their drifts, until the mean of all received drifts is
safe. All workers that sent drifts continue from the global model plus the mean. This is called
balancing (Kamp's dynamic averaging, corrected). With ``random``, the coordinator asks one random
worker after another. With ``hedge``, it asks twice as many workers as have sent drifts. If half of
all workers or more would then have sent drifts, it asks all workers. With ``none``, the coordinator
asks all workers immediately.
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
        if not self._down.codec.exact:  # the next global model corrects the encoding error
            self._residual += (mean - decoded) * (len(self.drifts) / len(self.members))
        self._send(m.Balance, self.drifts, data=data)
        self.subrounds.update(self.drifts.keys())
        self.drifts.clear()
        self.counts.balances += 1


class GeometricWorker(Worker):
    """Sends its drift when the drift is no longer safe."""

    def _watch(self) -> list[m.Message]:
        return self._drift(alarm=1) if self.safe.of(self._rounded()) > 0 else []

    def _answer(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Balance):
            self.subround += 1
            self._load((self.reference + self._down.decode(message.data)).astype(self.model.dtype))
        return []
