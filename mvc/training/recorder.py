"""The Recorder: versions of a model while it trains, written behind the training's back.

``step`` copies the state and returns; a thread of its own commits the copies in order
(``mvc.training.writer_thread``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, overload

import torch

from mvc.errors import WrongUsage
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.repository import Repository
from mvc.serving.served_version import ServedVersion
from mvc.training import shutdown
from mvc.training.checks import check_objects, check_options, opened, whole
from mvc.training.lossy.drift import Monitor
from mvc.training.lossy.dsed import Evaluate
from mvc.training.queue import Queue
from mvc.training.report import Report, report_of
from mvc.training.resume import Resumed
from mvc.training.staging import measure
from mvc.training.state.parts import Parts, Source
from mvc.training.writer_thread import Metrics, Options, WriterThread, reducing_for

__all__ = ["Recorder", "Report"]


class Recorder:
    """Records a training's state; use it as a context manager, or ``close`` it.

    ``repo`` is an open Repository, or the path of an existing one, which is then closed with the
    recorder. ``include`` names any of ``model``, ``optimizer``, ``scheduler``, ``scaler``,
    ``rng``; by default what is passed and the random generators. Every ``every``-th step is
    recorded. When the queue is full ``when_full`` says what a step does: ``block`` waits,
    ``coalesce`` replaces the version that waits, ``drop`` leaves this one out. ``deploy`` is the
    target on which each version goes live, as of the call. ``metrics`` are added to every
    version: a mapping, or a function that returns one. ``queue_bytes`` bounds what is staged
    (default: two states); ``start`` is the number of steps done before, or what ``repo.resume``
    returned: then every version names the one that training went on from. ``message`` is put
    before each version's own; ``author`` is as for ``commit``.

    With a lossy ``pipeline`` a version holds production weights, made behind the training's
    back; the training's own are not touched. ``on_deploy`` is called in the recorder's thread
    with every version (``ServedVersion``) once it is durable. ``evaluate(state, data)`` gives an
    accuracy, or (accuracy, samples), for ``dsed``; ``monitor(data)`` what ``drift`` watches.
    ``exact`` names tensors beside the buffers that are not to be changed. ``keep_training``
    keeps the training weights beside, exactly: without them such a version is not resumed.

    Call it from one thread, the one that trains.
    """

    def __init__(
        self,
        repo: Repository | str | PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        deploy: str | None = None,
        pipeline: str = "lossless",
        every: int = 1,
        when_full: str = "block",
        metrics: Metrics | Callable[[], Metrics] | None = None,
        include: Sequence[str] | None = None,
        name: str = DEFAULT_STATE,
        queue_bytes: int | None = None,
        start: int | Resumed = 0,
        on_deploy: Callable[[ServedVersion], object] | None = None,
        evaluate: Evaluate | None = None,
        monitor: Monitor | None = None,
        exact: Sequence[str] = (),
        keep_training: bool = False,
        message: str = "",
        author: str | None = None,
    ) -> None:
        done, origin = (start.step, start.commit) if isinstance(start, Resumed) else (start, None)
        options = Options(
            deploy, pipeline, every, when_full, metrics, name, queue_bytes, done,
            on_deploy, evaluate, monitor, exact, keep_training, message, author, origin,
        )  # fmt: skip
        check_objects(model, optimizer, scheduler, scaler)
        self._begin(repo, Parts.chosen(model, optimizer, scheduler, scaler, include), options)

    @classmethod
    def of(cls, repo: Repository | str | PathLike[str], source: Source, **options: Any) -> Self:
        """A Recorder of whatever has states to give; ``options`` are those of ``Options``."""
        recorder = cls.__new__(cls)
        recorder._begin(repo, source, Options(**options))
        return recorder

    def _begin(
        self, repo: Repository | str | PathLike[str], source: Source, options: Options
    ) -> None:
        check_options(options)
        self._source = source
        self._options = options
        self._queue = Queue(options.when_full, options.queue_bytes)
        self._steps = options.start
        self._taken = 0
        self._on_close: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._closed = False
        self._repo, self._own = opened(repo)
        try:
            self._reducing = reducing_for(self._repo, source, options)
            self._writer = WriterThread(
                self._repo, self._queue, options, weights=source.weights, reducing=self._reducing
            )
        except BaseException:
            self._let_go()
            raise
        self._forget = self._repo.before_close(self.close)
        shutdown.before_exit(self)

    def _let_go(self) -> None:
        if self._own:
            self._repo.close()

    @property
    def repo(self) -> Repository:
        """Where the versions go."""
        return self._repo

    # -- in the training's thread --------------------------------------------------------

    @overload
    def step(
        self,
        loss: Any = ...,
        batch: Any = ...,
        metrics: Metrics | None = ...,
        *,
        number: int | None = ...,
        data: Any = ...,
        wait: Literal[False] = ...,
    ) -> bool: ...

    @overload
    def step(
        self,
        loss: Any = ...,
        batch: Any = ...,
        metrics: Metrics | None = ...,
        *,
        number: int | None = ...,
        data: Any = ...,
        wait: Literal[True],
    ) -> ServedVersion | None: ...

    def step(
        self,
        loss: Any = None,
        batch: Any = None,
        metrics: Metrics | None = None,
        *,
        number: int | None = None,
        data: Any = None,
        wait: bool = False,
    ) -> bool | ServedVersion | None:
        """Takes the state as it is now; whether it was taken. Call it at the end of a batch.

        ``batch`` is the position in the data: a number, or what a sampler's ``state_dict``
        gives. ``number`` is that of this step where the caller counts, else one more than the
        last. ``data`` is the labelled batch for the pipeline's decisions; it must not be
        written to afterwards. With ``wait`` it returns once all is durable, and what is to be
        live then: ``production``. Raises what went wrong behind since the last call; then
        nothing is taken.
        """
        taken = self._take(loss, batch, metrics, number, data, wait)
        if not wait:
            return taken
        self.flush()
        return self.production

    def _take(
        self,
        loss: Any,
        batch: Any,
        metrics: Metrics | None,
        number: int | None,
        data: Any,
        wait: bool,
    ) -> bool:
        self._check_open()
        called_ns = self._repo.context.store.clock.now_ns()
        self._writer.raise_failure()
        least = self._options.start
        self._steps = self._steps + 1 if number is None else whole("number", number, least)
        if (self._steps - self._options.start) % self._options.every:
            return False
        numbers = self._options.numbers(loss, metrics)
        if self._reducing is not None:
            self._reducing.check(loss=numbers.get("loss"), data=data)
        live = self._collect(batch)
        if self._reducing is not None:
            self._reducing.check_names(live["model"])
        item, waited = self._queue.reserve(measure(live))
        if item is None:
            return False
        try:
            self._writer.raise_failure()
            item.slot.fill(self._collect(batch) if waited else live)
            item.step, item.called_ns = self._steps, called_ns
            item.metrics = numbers
            item.loss, item.data, item.awaited = numbers.get("loss"), data, wait
        except BaseException:
            self._queue.give_back(item)
            raise
        self._taken += 1
        self._queue.put(item)
        return True

    def _collect(self, batch: Any) -> dict[str, Any]:
        return {
            "model": self._source.model_state(),
            "training": self._source.training_state(self._steps, batch),
        }

    @property
    def production(self) -> ServedVersion | None:
        """The newest durable version as it was handed out: what is to be live.

        None before the first, and where nobody asked for it: with a lossless pipeline,
        without ``on_deploy`` and without ``wait``.
        """
        return self._writer.production

    def on_close(self, act: Callable[[], object]) -> None:
        """Has ``close`` call ``act`` before anything else."""
        self._on_close.append(act)

    def flush(self) -> None:
        """Waits until everything taken is durable. Raises what went wrong behind."""
        self._check_open()
        self._queue.join()
        self._writer.raise_failure()

    @property
    def report(self) -> Report:
        """Counts up to now."""
        return report_of(self._steps - self._options.start, self._taken, self._queue, self._writer)

    def close(self) -> Report:
        """Completes what is queued and ends. Raises the first failure, if there was one.

        The buffers are let go of. A second call only reports.
        """
        if self._closed or self._pid != os.getpid():
            return self.report
        self._closed = True
        for act in self._on_close:
            act()
        self._queue.close()
        self._writer.end()
        shutdown.closed(self)
        self._forget()
        self._let_go()
        if self._writer.first_failure is not None:
            raise self._writer.first_failure
        return self.report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutdown.complete(self.close, error)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise WrongUsage(
                "this recorder belongs to the process that made it",
                hint="make one in each process that is to record",
            )
        if self._closed:
            raise WrongUsage("this recorder is closed")
