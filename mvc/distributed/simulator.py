"""Simulates a distributed training: the coordinator and all workers run in one process.

Messages and models have the same bytes as in a distributed training over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.distributed import messages as m
from mvc.distributed.codecs import VectorLayout
from mvc.distributed.protocols.base import Coordinator
from mvc.distributed.protocols.named import NamedProtocol

Model = NDArray[Any]
Train = Callable[[Model, Sequence[int]], Sequence[int]]
"""A function that trains some workers for one update.

The first argument is the array of all models, of shape ``(workers, length)``. The function changes
this array in place. The second argument: the numbers of the workers to train. The function returns
the numbers of those workers that have no more data.
"""


class Simulation:
    """A coordinator and its workers. The models of the workers are the rows of ``models``.

    In a tick, each active worker trains one update. Then messages are delivered until no message is
    left. ``on_round`` is called after every new global model. ``tick`` raises BadMessage if a
    worker's model is not finite.
    """

    def __init__(
        self,
        protocol: NamedProtocol,
        model: Model,
        workers: int,
        *,
        layout: VectorLayout | None = None,
        on_round: Callable[[Coordinator], object] | None = None,
    ) -> None:
        self.layout = layout or VectorLayout.of(model)
        self.models = np.tile(model, (workers, 1))
        self.coordinator = protocol.coordinator(model, range(workers), self.layout)
        self.workers = [
            protocol.worker(number, row, self.layout) for number, row in enumerate(self.models)
        ]
        self._on_round = on_round
        self.ticks = 0
        self._deliver([message for worker in self.workers for message in worker.join()])

    @property
    def active(self) -> list[int]:
        """The numbers of the workers that have data and do not wait for a message."""
        return [worker.number for worker in self.workers if not (worker.waiting or worker.done)]

    def tick(self, train: Train) -> bool:
        """Trains every active worker for one update. Returns False if no worker is active."""
        active = self.active
        if not active:
            return False
        ended = set(train(self.models, active))
        sent: list[m.Message] = []
        for number in active:
            if number in ended:
                sent += self.workers[number].end()
            else:
                sent += self.workers[number].on_update()
        self._deliver(sent)
        self.ticks += 1
        return True

    def run(self, train: Train, ticks: int | None = None) -> Coordinator:
        """Calls ``tick`` until all workers have ended, but at most ``ticks`` times.

        Then calls ``finish``, and returns the coordinator.
        """
        while (ticks is None or self.ticks < ticks) and self.tick(train):
            pass
        return self.finish()

    def finish(self) -> Coordinator:
        """Ends all workers, so that the coordinator computes the final average.

        Returns the coordinator.
        """
        left = [worker for worker in self.workers if not worker.done]
        self._deliver([message for worker in left for message in worker.end()])
        return self.coordinator

    def _deliver(self, sent: Sequence[m.Message]) -> None:
        while sent:
            rounds = self.coordinator.counts.rounds
            answers = self.coordinator.on_messages(sent)
            if self._on_round and self.coordinator.counts.rounds > rounds:
                self._on_round(self.coordinator)
            sent = [
                reply
                for answer in answers
                for reply in self.workers[answer.worker].on_message(answer)
            ]
