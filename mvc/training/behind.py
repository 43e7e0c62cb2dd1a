"""Behind the training: a thread that commits staged states in order.

It spends its time in hashing, compression and writing, which release the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mvc.adapters.python_state import from_state
from mvc.repo.checkout import DEFAULT_STATE
from mvc.repo.hashing import hash_file
from mvc.repo.repository import Committed, Repository
from mvc.training.queue import Item, Queue
from mvc.training.state import training_path

__all__ = ["Behind", "Metrics", "Options"]

Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """How a Recorder keeps what it is given; ``Recorder`` says what each means."""

    deploy: str | None = None
    pipeline: str = "lossless"
    every: int = 1
    when_full: str = "block"
    metrics: Metrics | Callable[[], Metrics] | None = field(default=None, hash=False)
    name: str = DEFAULT_STATE
    queue_bytes: int | None = None
    start: int = 0


class Behind:
    """The thread, what it has done, and what went wrong in it."""

    def __init__(self, repo: Repository, queue: Queue, options: Options, *, weights: bool) -> None:
        """``weights``: whether the model's own state is among what is staged."""
        self._repo = repo
        self._queue = queue
        self._options = options
        self._weights = weights
        self.durable = 0
        self.failed = 0
        self.newest: tuple[int, Committed] | None = None
        self.first_failure: BaseException | None = None
        self._failure: BaseException | None = None  # that nobody has been told of
        self._thread = threading.Thread(target=self._run, name="mvc-recorder", daemon=True)
        self._thread.start()

    def raise_failure(self) -> None:
        """Raises what went wrong since the last call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def end(self) -> None:
        """Waits until all that is queued is done. The queue must be closed."""
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.take()) is not None:
            try:
                self.newest = item.step, self._commit(item)
                self.durable += 1
            except BaseException as error:
                # The versions behind it are whole states of their own and are still written.
                self.failed += 1
                self._failure = self._failure or error
                self.first_failure = self.first_failure or error
            finally:
                self._queue.give_back(item)

    def _commit(self, item: Item) -> Committed:
        item.slot.ready()
        options = self._options
        model, training = item.slot.state["model"], item.slot.state["training"]
        states = {training_path(options.name): training}
        if self._weights:
            root = hash_file(from_state(model), options.name).state.root
            training["root"] = root.hex()
            states = {options.name: model, **states}
        (name, first), *others = states.items()
        made = self._repo.commit(
            first,
            name=name,
            beside=dict(others),
            message=item.message,
            metrics=item.metrics,
            deploy=options.deploy,
            at=None if options.deploy is None else item.called_ns,
            time=item.called_ns,
            pipeline=options.pipeline,
        )
        return replace(made, state=None)  # its buffers are about to hold another version
