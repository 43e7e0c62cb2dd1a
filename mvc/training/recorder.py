"""The Recorder: commits versions of a model while it trains.

``step`` copies the state and returns; a second thread commits the copies in order
(``mvc.training.writer_thread``).
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its hook before ``_close_all``)
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, Literal, NoReturn, Self, Unpack, overload
from weakref import WeakSet

import torch
from msgspec import Struct
from msgspec.structs import replace

from mvc.api import CommitResult, Repository, opened
from mvc.errors import WrongUsage
from mvc.state import ServedVersion
from mvc.training import checks
from mvc.training.checks import Metrics, Params, RecorderKeywords, RecorderOptions
from mvc.training.pushing import Pusher, PushReport
from mvc.training.resume import Resumed, resumed_since
from mvc.training.staging import Item, Queue, measure
from mvc.training.state.parts import StateSource, TrainingParts
from mvc.training.step_notes import ProofReport, StepNotes
from mvc.training.writer_thread import WriterThread
from mvc.types import Unpicklable


class Report(Struct, frozen=True):
    """The counts of a recorder so far.

    ``steps``: calls of ``step``. ``taken``: states that were copied. ``dropped``: states that were
    not copied because the queue was full. Of the copied states, ``durable`` are committed,
    ``failed`` raised an error, ``skipped`` were refused by the pipeline, and ``coalesced`` were
    replaced by a newer state in the queue. ``newest``: the newest durable version.
    ``newest_step``: the step of the newest durable version. ``waiting_bytes``: bytes in the queue.
    ``peak_bytes``: the most bytes that were in the queue. ``not_deployed``: durable versions that
    were not deployed because another client had deployed to the target, or protected the target.
    ``push``: results of pushes; None without a remote. ``proof``: results of replays; None without
    a recipe.
    """

    steps: int
    taken: int
    durable: int
    failed: int
    coalesced: int
    dropped: int
    newest: CommitResult | None
    newest_step: int | None
    waiting_bytes: int
    peak_bytes: int
    skipped: int = 0
    push: PushReport | None = None
    not_deployed: int = 0
    proof: ProofReport | None = None


class StateRecorder(Unpicklable):
    """Records states that a ``StateSource`` provides. The base class of ``mvc.Recorder``.

    ``mvc.Recorder`` explains the arguments.
    """

    def __init__(
        self,
        repo: Repository | str | PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        include: Sequence[str] | None = None,
        every: int = 1,
        start: int | Resumed | None = None,
        steps: StepNotes | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        done, origin = (start.step, start.commit) if isinstance(start, Resumed) else (start, None)
        if done is not None:
            done = checks.whole_number("start", done, 0)
        chosen = replace(RecorderOptions.of(options, every), start=done, origin=origin, steps=steps)
        checks.check_objects(model, optimizer, scheduler, scaler)
        parts = TrainingParts.chosen(model, optimizer, scheduler, scaler, include=include)
        self._begin(repo, parts, chosen)

    @classmethod
    def of(
        cls,
        repo: Repository | str | PathLike[str],
        source: StateSource,
        options: RecorderOptions,
    ) -> Self:
        """Creates a Recorder of the states that ``source`` provides, without a torch module."""
        recorder = cls.__new__(cls)
        recorder._begin(repo, source, options)
        return recorder

    def _begin(
        self, repo: Repository | str | PathLike[str], source: StateSource, options: RecorderOptions
    ) -> None:
        self._source = source
        self._captured = 0
        self._pid = os.getpid()
        self._closed = False
        self._repo, self._own = opened(repo)
        with ExitStack() as failed:
            failed.callback(self._close_own_repo)
            options = self._from_resumed(options)
            self._origin, self._first = options.origin, options.start or 0
            self._steps, self._before = self._first, 0
            timeout = float(self._repo.config.get("recorder.timeout"))
            self._queue = Queue(options.when_full, options.queue_bytes, timeout)
            self._recording = failed.enter_context(
                self._repo.recording(options.branch, target=options.deploy)
            )
            options = replace(options, branch=self._recording.branch)
            self._options = options
            if options.steps is not None:
                options.steps.open(self._repo, options.pipeline)
                failed.callback(options.steps.finish)
            self._pusher: Pusher | None = None
            if options.push is not None:
                self._pusher = Pusher(self._repo, options.push, options.branch)
                failed.callback(self._pusher.finish)
            self._writer = WriterThread(
                self._repo,
                self._queue,
                source,
                options,
                recording=self._recording,
                pusher=self._pusher,
            )
            self._left = failed.pop_all()  # ``close`` runs these callbacks
        self._left.callback(self._repo.before_close(self.close))
        self._left.callback(self._queue.finish, self._writer)
        _open.add(self)

    def _from_resumed(self, options: RecorderOptions) -> RecorderOptions:
        """If ``start`` is not set, starts after the version that ``mvc.resume`` has loaded."""
        resumed = resumed_since(self._repo, getattr(self._source, "model", None))
        if options.start is not None or resumed is None:
            return options
        return replace(options, start=resumed.step, origin=resumed.commit)

    def _close_own_repo(self) -> None:
        if self._own:
            self._repo.close()

    @property
    def repo(self) -> Repository:
        """The repository that stores the versions."""
        return self._repo

    @property
    def branch(self) -> str | None:
        """The branch to which versions are committed; None if HEAD is detached."""
        return self._options.branch

    # -- called by the training's thread -----------------------------------------------------

    @overload
    def step(
        self, loss: Any = ..., batch: Any = ..., metrics: Metrics | None = ..., *,
        params: Params | None = ..., number: int | None = ..., data: Any = ...,
        wait: Literal[False] = ...,
    ) -> bool: ...  # fmt: skip

    @overload
    def step(
        self, loss: Any = ..., batch: Any = ..., metrics: Metrics | None = ..., *,
        params: Params | None = ..., number: int | None = ..., data: Any = ...,
        wait: Literal[True],
    ) -> ServedVersion | None: ...  # fmt: skip

    def step(
        self,
        loss: Any = None,
        batch: Any = None,
        metrics: Metrics | None = None,
        *,
        params: Params | None = None,
        number: int | None = None,
        data: Any = None,
        wait: bool = False,
    ) -> bool | ServedVersion | None:
        """Copies the current state. Call this method at the end of each batch.

        Returns whether the state was copied. The result is False for a step that ``every`` leaves
        out, or if the queue is full with ``when_full="drop"``. With ``wait``, waits until all
        copied states are durable, and returns ``production``.

        ``loss`` is recorded as a metric. ``metrics`` and ``params`` are recorded in addition to
        those of the constructor. ``batch`` is the position in the data: a number, or the
        ``state_dict`` of a sampler. ``number`` is the number of this step, by default one more than
        the number of the preceding step. ``data`` is the labelled batch for stages of the pipeline
        that decide which versions are stored; do not modify the batch afterwards.

        If a commit has failed since the preceding call, raises the error of that commit, and copies
        nothing. Raises WrongUsage if the recorder is closed or belongs to another process, or if
        the pipeline needs a loss or data; UnsupportedTensor for a value that cannot be recorded.
        """
        self._check_open()
        called_ns = self._repo.time()
        self._writer.raise_failure()
        if (resumed := resumed_since(self._repo, getattr(self._source, "model", None))) is not None:
            self._before += self._steps - self._first
            self._first = self._steps = resumed.step
            self._origin = resumed.commit
            if self._options.steps is not None:
                self._options.steps.restart()
        first = self._first
        self._steps = (
            self._steps + 1 if number is None else checks.whole_number("number", number, first)
        )
        queued = False
        if not (self._steps - first) % self._options.every:
            options = self._options
            numbers, settings = options.numbers(loss, metrics), options.settings(params)
            item = Item(self._steps, called_ns, numbers, settings, data=data, awaited=wait,
                        origin=self._origin)  # fmt: skip
            queued = self._take(item, batch)
        if not wait:
            return queued
        self.flush()
        return self.production

    def _take(self, item: Item, batch: Any) -> bool:
        reducer = self._writer.reducer
        if reducer is not None:
            reducer.check(loss=item.metrics.get("loss"), data=item.data)
        notes, full = self._options.steps, True
        if notes is not None:
            item.position, full = notes.begin()
        live = self._collect(batch, full=full)
        if self._source.weights and not live["model"]:
            raise WrongUsage(
                f"the state at {self._options.name} is empty: the model has no tensors"
            )
        if reducer is not None:
            reducer.check_names(live["model"])
        waited = self._queue.reserve(item, measure(live))
        if waited is None:
            return False
        try:
            self._writer.raise_failure()
            item.slot.fill(self._collect(batch, full=full) if waited else live)
        except BaseException:
            self._queue.release(item)
            raise
        self._captured += 1
        self._queue.put(item)
        return True

    def _collect(self, batch: Any, *, full: bool) -> dict[str, Any]:
        return {
            "model": self._source.model_state(),
            "training": self._source.training_state(self._steps, batch) if full else {},
        }

    def train(
        self,
        rows: Sequence[int],
        batch: Any = None,
        *,
        metrics: Metrics | None = None,
        params: Params | None = None,
    ) -> Any:
        """Runs the recipe's function for one step, records the step, and returns the function's
        result.

        ``rows`` are the batch's positions in the data. ``batch`` is the batch itself, if already
        loaded. A numeric result is recorded as the loss. ``metrics`` and ``params`` are as for
        ``step``. Raises WrongUsage if the recorder has no recipe, and the errors of ``step``.
        """
        self._check_open()
        notes = self._options.steps
        if notes is None:
            raise WrongUsage(
                "this recorder has no recipe, which train() needs",
                hint="mvc.Recorder(..., recipe=train_step, data=dataset)",
            )
        result = notes.train(rows, batch)
        is_loss = isinstance(result, int | float) or getattr(result, "shape", None) == ()
        self.step(result if is_loss else None, metrics=metrics, params=params)
        return result

    @property
    def production(self) -> ServedVersion | None:
        """A copy of the weights of the newest durable version, for serving.

        The value is None before the first version. With a lossless pipeline, the weights are
        available only if ``on_deploy`` is set, or after ``step`` with ``wait``.
        """
        return self._writer.production

    def on_close(self, act: Callable[[], object]) -> None:
        """Registers a function that ``close`` calls. The last registered function runs first."""
        self._left.callback(act)

    def deploy_again(self) -> None:
        """Deploys the versions from now on, even if another client has deployed to the target.

        Raises WrongUsage if the recorder has no target, and TargetProtected.
        """
        self._check_open()
        if self._options.deploy is None:
            raise WrongUsage("this recorder has no target", hint="set one: deploy='prod'")
        self._recording.deploy_again()

    def flush(self) -> None:
        """Waits until all copied states are durable. Raises the error of a failed commit."""
        self._check_open()
        self._queue.join()
        self._writer.raise_failure()

    @property
    def report(self) -> Report:
        """The current counts."""
        writer, queue, pusher = self._writer, self._queue, self._pusher
        step, newest = writer.newest or (None, None)
        called = self._before + self._steps - self._first
        return Report(
            steps=called, taken=self._captured, durable=writer.durable,
            failed=writer.failed, coalesced=queue.coalesced, dropped=queue.dropped, newest=newest,
            newest_step=step, waiting_bytes=queue.staged_bytes, peak_bytes=queue.peak,
            skipped=writer.skipped, push=None if pusher is None else pusher.report,
            not_deployed=self._recording.left_out,
            proof=None if self._options.steps is None else self._options.steps.report,
        )  # fmt: skip

    def close(self) -> Report:
        """Commits the queued states, frees the buffers and returns the final report.

        With ``push``, pushes the remaining versions, and warns if some could not be pushed. Raises
        the error of the first failed commit. If a commit stalls for ``recorder.timeout`` seconds,
        raises Busy, which names the steps that are not stored. After the first call, returns the
        report and does nothing else.
        """
        if self._closed or self._pid != os.getpid():
            return self.report
        self._closed = True
        _open.discard(self)
        self._left.close()  # runs all callbacks in reverse order, even if one of these raises
        if self._writer.first_failure is not None:
            raise self._writer.first_failure
        return self.report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        complete(self.close, error)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise WrongUsage(
                "this recorder belongs to the process that created it",
                hint="create a recorder in each process that records",
            )
        if self._closed:
            raise WrongUsage("this recorder is closed")


class Watching(StateRecorder):
    """A Recorder that records each step of the optimizer. Its method ``step`` is disabled."""

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raises WrongUsage."""
        raise WrongUsage(
            "mvc.watch records each optimizer step itself: step() would record a step twice",
            hint="remove the call of step(), or use mvc.Recorder instead of mvc.watch",
        )

    def batch_ended(self) -> None:
        """Records a step; called by the optimizer's hook."""
        super().step()


def watch(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    include: Sequence[str] | None = None,
    every: int = 1,
    start: int | Resumed | None = None,
    **options: Unpack[RecorderKeywords],
) -> StateRecorder:
    """A Recorder that records each step of the optimizer, by a hook. ``close`` removes the hook.

    ``options`` are those of ``mvc.Recorder``, except ``scheduler`` and ``scaler``: schedulers and
    scalers change only after the optimizer's step, so a version would have their old states. Raises
    WrongUsage for ``scheduler`` and ``scaler``, and the errors of ``mvc.Recorder``.
    """
    for name in ("scheduler", "scaler"):
        if options.get(name) is not None:
            raise WrongUsage(
                f"watch cannot record a {name}: it changes after the optimizer's step",
                hint="use mvc.Recorder, and call its step() at the end of the batch",
            )
    recorder = Watching(
        repo, model, optimizer, include=include, every=every, start=start, **options
    )
    hook = optimizer.register_step_post_hook(lambda *_: recorder.batch_ended())
    recorder.on_close(hook.remove)
    return recorder


def complete(close: Callable[[], object], error: BaseException | None) -> None:
    """Calls ``close`` at the end of a ``with`` block.

    If the block has raised an error, an error of ``close`` becomes a note of the block's error.
    """
    try:
        close()
    except BaseException as failure:
        if error is None:
            raise
        if failure is not error:
            error.add_note(f"mvc: a version could not be recorded either: {failure}")


_open: WeakSet[StateRecorder] = WeakSet()


def _close_all() -> None:
    with ExitStack() as all_:
        for recorder in list(_open):
            all_.callback(recorder.close)


# Commits queued versions before the interpreter ends. A commit needs thread pools, and a hook of
# ``concurrent.futures`` stops all thread pools at the end of the main thread. ``_close_all`` is
# registered after this hook, and so runs before it. A function of atexit would run too late.
getattr(threading, "_register_atexit")(_close_all)  # noqa: B009 (private, so not in stubs)
