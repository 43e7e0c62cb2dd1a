"""All workers in one process: exact bytes, and replays of real runs.

Whose turn it is decides everything, and only the order within each process: the coordinator's
batches (which workers its messages came from), and each worker's sequence of updates and messages.
That is what a log holds. Channels keep order, so replaying the log with the same training gives
the same sequence of global models, bit for bit, in whatever order the processes' lines are mixed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, convert
from numpy.typing import NDArray

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Coordinator, VectorLayout, Worker
from mvc.distributed.protocols.named import NamedProtocol
from mvc.errors import BadMessage, WrongUsage

HUB = -1

Model = NDArray[Any]
Train = Callable[[Model, Sequence[int]], Sequence[int]]
"""Trains some workers at once, in place: their models ``(workers, length)``, and which. Gives those
that had nothing left to train on."""


class Event(Struct, frozen=True, omit_defaults=True):
    """A line of a log. ``process``: the worker's number, or HUB. ``did``: of a worker ``join``,
    ``update``, ``message`` or ``end``; of the coordinator ``batch`` with the senders in the order
    in which it took one message of each, ``remove`` with the worker, or ``lost`` where a process
    took with it what it did (with the worker; with nobody if it was the coordinator).

    As JSON: ``{"process": 2, "did": "update"}``, ``{"process": -1, "did": "batch", "of": [0, 2]}``.
    """

    process: int
    did: str
    of: tuple[int, ...] = ()


_WORKER_EVENTS = frozenset({"join", "update", "message", "end"})


def parse_event(line: Any) -> Event:
    """The event of parsed JSON. Raises BadMessage, also if the run cannot be replayed."""
    unknown = BadMessage(f"no event of a run: {str(line)[:100]}")
    try:
        event = convert(line, Event)
    except ValueError:
        raise unknown from None
    if event.process == HUB and event.did == "lost":
        who = f"worker {event.of[0]}" if event.of else "the coordinator"
        raise BadMessage(
            f"{who} died or was removed in this run: the log lacks what it did, so the run "
            "cannot be replayed"
        )
    if event.did not in ({"batch", "remove"} if event.process == HUB else _WORKER_EVENTS):
        raise unknown
    return event


class Simulation:
    """A coordinator and its workers. All workers' models are the rows of one array, ``models``.

    In a tick all workers that do not wait are trained at once; then their messages are delivered,
    all that is under way together, until nobody has anything to say. ``log`` is None or gets every
    Event; ``on_round`` is called after every new global model. ``failures``: workers that were
    removed, and why.
    """

    def __init__(
        self,
        protocol: NamedProtocol,
        model: Model,
        workers: int,
        *,
        layout: VectorLayout | None = None,
        on_round: Callable[[Coordinator], object] | None = None,
        log: list[Event] | None = None,
    ) -> None:
        self.layout = layout or VectorLayout.of(model)
        self.models = np.tile(model, (workers, 1))
        self.coordinator = protocol.coordinator(model, range(workers), self.layout)
        self.workers = [
            protocol.worker(number, row, self.layout) for number, row in enumerate(self.models)
        ]
        self._on_round, self._log = on_round, log
        self.failures: list[tuple[int, str]] = []
        self.ticks = 0
        self._ended: set[int] = set()
        joining: list[m.Message] = []
        for worker in self.workers:
            self._say(worker.number, "join")
            joining += worker.join()
        self._deliver(joining)

    @property
    def active(self) -> list[int]:
        """Workers that may train now."""
        return [
            each.number
            for each in self.workers
            if not each.waiting and each.number not in self._ended and not each.finished
        ]

    def tick(self, train: Train) -> bool:
        """One update of each worker; False if all have ended."""
        active = self.active
        if not active:
            return False
        ended = set(train(self.models, active))
        sent: list[m.Message] = []
        for number in active:
            if number in ended:
                self._say(number, "end")
                sent += self.workers[number].end()
            else:
                self._say(number, "update")
                sent += self._update(self.workers[number])
        self._ended |= ended
        self._deliver(sent)
        self.ticks += 1
        return True

    def run(self, train: Train, ticks: int | None = None) -> Coordinator:
        """Ticks until all have ended, or so many; then the last average. Gives the coordinator."""
        while (ticks is None or self.ticks < ticks) and self.tick(train):
            pass
        return self.finish()

    def finish(self) -> Coordinator:
        """Ends all workers, so that the last average is made."""
        sent: list[m.Message] = []
        for worker in self.workers:
            if worker.number not in self._ended and not worker.finished:
                self._say(worker.number, "end")
                sent += worker.end()
        self._deliver(sent)
        return self.coordinator

    def _update(self, worker: Worker) -> list[m.Message]:
        try:
            return worker.on_update()
        except BadMessage as error:
            return self._fail(worker.number, error.message)

    def _fail(self, number: int, reason: str) -> list[m.Message]:
        """A worker that cannot go on is removed, as if it had died; gives what follows."""
        self._ended.add(number)
        self.workers[number].finished = True
        self.failures.append((number, reason))
        self._say(HUB, "remove", number)
        return self._answers(self.coordinator.remove, number)

    def _deliver(self, sent: Sequence[m.Message]) -> None:
        while sent:
            up = [message for message in sent if message.up]
            down = [message for message in sent if not message.up]
            answers: list[m.Message] = []
            for message in down:
                if any(number == message.worker for number, _ in self.failures):
                    continue  # it has gone
                self._say(message.worker, "message")
                try:
                    answers += self.workers[message.worker].on_message(message)
                except BadMessage as error:
                    answers += self._fail(message.worker, error.message)
            if up:
                self._say(HUB, "batch", *(message.worker for message in up))
                answers += self._answers(self.coordinator.on_messages, up)
            sent = answers

    def _answers(self, ask: Callable[[Any], list[m.Message]], about: Any) -> list[m.Message]:
        rounds = self.coordinator.counts.rounds
        answers = ask(about)
        if self._on_round and self.coordinator.counts.rounds > rounds:
            self._on_round(self.coordinator)
        return answers

    def _say(self, process: int, did: str, *of: int) -> None:
        if self._log is not None:
            self._log.append(Event(process, did, of))


def replay(
    log: Iterable[Event],
    coordinator: Coordinator,
    workers: Sequence[Worker],
    train: Callable[[int], object],
    on_round: Callable[[Coordinator], object] | None = None,
) -> None:
    """Runs a logged run again: the same events in the same order within each process.

    ``train(number)`` trains a worker's model in place, once. The coordinator and the workers (by
    number) are new, with the options and the first model of the real run. Raises WrongUsage if the
    log ends in the middle of nowhere: a process takes a message that no other has sent.
    """
    lines: dict[int, deque[Event]] = {}
    for event in log:
        lines.setdefault(event.process, deque()).append(event)
    up: dict[int, deque[m.Message]] = {worker.number: deque() for worker in workers}
    down: dict[int, deque[m.Message]] = {worker.number: deque() for worker in workers}
    by_number = {worker.number: worker for worker in workers}

    def ready(process: int, event: Event) -> bool:
        if event.did == "batch":
            return all(len(up[each]) >= event.of.count(each) for each in set(event.of))
        return event.did != "message" or bool(down[process])

    def run(process: int, event: Event) -> None:
        if process != HUB:
            worker = by_number[process]
            if event.did == "update":
                train(process)
                worker.changed = False
                up[process].extend(worker.on_update())
            elif event.did == "message":
                up[process].extend(worker.on_message(down[process].popleft()))
            else:
                up[process].extend(worker.join() if event.did == "join" else worker.end())
            return
        rounds = coordinator.counts.rounds
        if event.did == "remove":
            answers = [each for number in event.of for each in coordinator.remove(number)]
        else:
            answers = coordinator.on_messages([up[each].popleft() for each in event.of])
        for message in answers:
            down[message.worker].append(message)
        if on_round and coordinator.counts.rounds > rounds:
            on_round(coordinator)

    moved = True
    while moved and any(lines.values()):
        moved = False
        for process, events in lines.items():
            while events and ready(process, events[0]):
                run(process, events.popleft())
                moved = True
    if any(lines.values()):
        left = sum(map(len, lines.values()))
        raise WrongUsage(f"the log does not fit: {left} events wait for messages nobody sent")
