"""Averaging after a fixed number of updates: fully synchronous (1), local SGD, and DiLoCo.

Every worker sends its drift after ``every`` updates and waits for the new model. DiLoCo is local
SGD whose coordinator applies the mean drift with Nesterov's momentum.
"""

from __future__ import annotations

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, Worker
from mvc.errors import BadMessage


class PeriodicCoordinator(Coordinator):
    """Waits for all; who is done is asked."""

    def _new_round(self) -> None:
        pass

    def _take(self, message: m.Message) -> None:
        raise BadMessage(f"worker {message.worker} sends {type(message).__name__} in averaging")

    def _decide(self) -> None:
        self._average_all()


class PeriodicWorker(Worker):
    """Counts its updates since the round began."""

    def _watch(self) -> list[m.Message]:
        return self._after(self.protocol.every)

    def _take(self, message: m.Message) -> list[m.Message]:  # noqa: ARG002
        return []
