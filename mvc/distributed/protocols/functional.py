"""Functional geometric monitoring (FGM), a protocol for distributed training.

examples/reproduce/distributed/README.md explains the protocol. A *drift* is a worker's model minus
the global model. The *safe function* computes a number from a drift. The drift is safe while this
number is negative. psi is the sum of the numbers of all workers. While psi is far below zero, a
worker does not send its drift. It sends only by how many *quanta* its number has risen since the
*sub-round* began. A quantum is an amount that is fixed for the sub-round.

In a *flush*, all workers send their drifts. Without rebalancing, this ends the round. With
rebalancing, the round may continue: half of the safe zone (all safe drifts) is for the flushed
drifts, the other half for new drifts.
"""

from __future__ import annotations

import math

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Listening, Vector, Worker

SHARE = 0.5
"""The fraction of the safe zone for the workers after a flush (lambda in the literature)."""

_TOLERANCE = 1e-9  # added to a quotient before rounding down
_MOST = 2.0**32 - 1  # maximum of a counter, which has 32 bits


class FunctionalCoordinator(Coordinator):
    """The coordinator. ``counts.balances``: how many flushes did not end their round."""

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
        """Asks all workers for their values. Returns the sum, in the order of their numbers."""
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
        return self._watch()  # an encoding error of the last round may have raised the value

    def _value(self) -> float:
        """The value of the safe function phi for the drift X.

        After a flush, the value is ``share * phi(X / share)``.
        """
        share = 1.0 if self._origin is self.reference else SHARE
        return share * self.safe.of(self._rounded() / share)

    def _watch(self) -> list[m.Message]:
        value = self._value()  # computed at every update, to detect numbers that are not finite
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
