"""Functional geometric monitoring (FGM): workers send only small counters while the mean model is
safe.

A drift is a worker's model minus the global model. A drift is safe while the value of the safe
function at the drift is negative. psi is the sum of these values over all workers. A round has
sub-rounds. In a sub-round, each worker counts by how many quanta the value at its drift has risen.
The quantum is an amount that is fixed for the sub-round. examples/reproduce/distributed/README.md
explains the protocol. In a flush, all workers send their drifts. With rebalancing, the safe zone
(all safe drifts) is divided: one half is for the coordinator (``mu``), one half for the workers
(``lambda``).
"""

from __future__ import annotations

import math

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Listening, Vector, Worker

SHARE = 0.5
"""The fraction of the safe zone for the workers after a flush (lambda)."""

_TOLERANCE = 1e-9  # added to a quotient before rounding down
_MOST = 2.0**32 - 1  # maximum of a counter, which has 32 bits


class FunctionalCoordinator(Coordinator):
    """``counts.balances``: the number of flushes after which the round continued."""

    def _quantum(self) -> float:
        return 0.0 if self.measuring else -self.safe.at_zero / 2

    def _round(self) -> Listening[Vector | None]:
        protocol, zero = self.protocol, len(self.members) * self.safe.at_zero
        flushed: dict[int, Vector] = {}  # for each worker, the sum of its flushed drifts
        counter = 0
        while True:
            if counter > len(self.members):
                psi = (yield from self._collect()) + self._hub_psi(flushed)
                if psi < protocol.barrier * zero:
                    counter = self._next_subround(psi)
                    continue
            elif not self._ended:
                counter += sum(part.amount for part in (yield from self._listen(m.Increment)))
                continue
            elif not (self._pending or flushed):
                return None
            else:
                self._ending = True
            mean = yield from self._gather(self.members)
            if protocol.rebalance is None:
                return mean
            flushed = {part: flushed.get(part, 0.0) + self.drifts[part] for part in self.members}
            psi = SHARE * zero + self._hub_psi(flushed)
            if self._ending or psi > protocol.rebalance * zero:
                return self._mean(flushed)
            self.drifts.clear()
            self.counts.balances += 1
            counter = self._next_subround(psi)

    def _collect(self) -> Listening[float]:
        """Asks all workers for their values. Returns the sum, in the order of the workers'
        numbers.
        """
        values: dict[int, float] = {}
        self._send(m.Collect, self.members)
        while len(values) < len(self.members):
            values |= {part.worker: part.value for part in (yield from self._listen(m.Value))}
        return sum(values[part] for part in sorted(values))

    def _hub_psi(self, flushed: dict[int, Vector]) -> float:
        """The coordinator's part of psi: from the drifts that were flushed in this round."""
        if not flushed:
            return 0.0
        mean = self._mean(flushed)[: self.layout.measured]
        return (1 - SHARE) * len(self.members) * self.safe.of(mean / (1 - SHARE))

    def _next_subround(self, psi: float) -> int:
        """Starts a sub-round. Returns the new value of the counter, 0."""
        self._start_subround(m.Quantum, quantum=-psi / (2 * len(self.members)))
        return 0


class FunctionalWorker(Worker):
    """Sends by how many quanta the value of the safe function has risen since the sub-round
    began.
    """

    def _on_begin(self, message: m.Begin) -> list[m.Message]:
        self._quantum = message.quantum
        self._counter = 0
        self._zero = self.safe.at_zero
        return self._watch()  # the preceding encoding error may raise the value

    def _value(self) -> float:
        """The value of the safe function phi for the drift X.

        After a flush, the value is ``share * phi(X / share)``.
        """
        share = 1.0 if self._origin is self.reference else SHARE
        return share * self.safe.of(self._rounded() / share)

    def _watch(self) -> list[m.Message]:
        value = (
            self._value()
        )  # computed at every update, so that numbers that are not finite are detected at once
        if self._quantum == 0:  # after Collect; a rise counts in the next sub-round
            return []
        quotient = (value - self._zero) / self._quantum + _TOLERANCE
        risen = math.floor(max(-1.0, min(quotient, _MOST)))
        if risen <= self._counter:
            return []
        amount, self._counter = risen - self._counter, risen
        return [m.Increment(self.number, self.round, self.subround, amount)]

    def _answer(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Collect):
            self._zero, self._quantum, self._counter = self._value(), 0.0, 0
            return [m.Value(self.number, self.round, self.subround, self._zero)]
        if isinstance(message, m.Quantum):
            self.subround, self._quantum, self._counter = self.subround + 1, message.quantum, 0
            if self._sent:  # the round continues after a flush
                self._origin = self.model.copy()
                self._zero = SHARE * self.safe.at_zero
                self.waiting = self._sent = False
            return self._watch()
        return []
