"""The Recorder: makes versions of a model while it trains.

``step`` copies the state and returns; another thread commits the copies in order
(``mvc.training.writer_thread``).
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its hook, which must come first)
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
    """What became of the steps so far; numbers of steps unless said otherwise.

    Of the ``steps`` that were called, ``taken`` were staged. Of these ``durable`` are committed,
    ``failed`` raised an error, ``skipped`` were decided against by the pipeline, ``coalesced``
    were replaced by a newer one while they waited. ``dropped`` found no room in the queue and are
    not among the taken. ``newest`` is the last durable version, without its state, and
    ``newest_step`` its step. ``waiting_bytes`` are staged now, ``peak_bytes`` were at most.
    ``push`` says what of it is at the remote, if the Recorder pushes. ``not_deployed`` of the
    durable ones were not deployed, because somebody else had deployed or protected the target.
    ``proof`` says which steps were replayed, if the Recorder has a recipe.
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
    """Records the states of a source: what ``mvc.Recorder`` and ``mvc.watch`` return.

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
            done = checks.whole("start", done, 0)
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
        """A Recorder of any source of states."""
        recorder = cls.__new__(cls)
        recorder._begin(repo, source, options)
        return recorder

    def _begin(
        self, repo: Repository | str | PathLike[str], source: StateSource, options: RecorderOptions
    ) -> None:
        self._source = source
        self._taken = 0
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
            self._left = failed.pop_all()  # what ``close`` ends
        self._left.callback(self._repo.before_close(self.close))
        self._left.callback(self._queue.finish, self._writer)
        _open.add(self)

    def _from_resumed(self, options: RecorderOptions) -> RecorderOptions:
        """With the start that ``mvc.resume`` gave the model, if none is named."""
        resumed = resumed_since(self._repo, getattr(self._source, "model", None))
        if options.start is not None or resumed is None:
            return options
        return replace(options, start=resumed.step, origin=resumed.commit)

    def _close_own_repo(self) -> None:
        if self._own:
            self._repo.close()

    @property
    def repo(self) -> Repository:
        """The repository that the versions are committed to."""
        return self._repo

    @property
    def branch(self) -> str | None:
        """The branch that the versions are committed to; None if they follow a detached HEAD."""
        return self._options.branch

    # -- in the training's thread --------------------------------------------------------

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
        """Copies the state as it is now; True if it was taken. Call it at the end of a batch.

        ``loss`` is recorded as a metric; ``metrics`` and ``params`` are added to those of the
        constructor. ``batch`` is the position in the data: a number, or what
        a sampler's ``state_dict`` returns. ``number`` is that of this step if the caller counts,
        else one more than the last. ``data`` is the labelled batch for the pipeline's decisions;
        it must not be written to afterwards. With ``wait`` the call returns once everything taken
        is durable, and returns ``production``.

        If committing has failed since the last call, that error is raised and nothing is taken.
        Raises WrongUsage if the recorder is closed or belongs to another process, or if the
        pipeline needs a loss or data that are missing; UnsupportedTensor for a value that cannot
        be recorded.
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
        self._steps = self._steps + 1 if number is None else checks.whole("number", number, first)
        taken = False
        if not (self._steps - first) % self._options.every:
            options = self._options
            numbers, settings = options.numbers(loss, metrics), options.settings(params)
            item = Item(self._steps, called_ns, numbers, settings, data=data, awaited=wait,
                        origin=self._origin)  # fmt: skip
            taken = self._take(item, batch)
        if not wait:
            return taken
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
            self._queue.give_back(item)
            raise
        self._taken += 1
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
        """Makes a step by the recipe's function, records it as ``step`` does, returns its result.

        ``rows`` are the positions of the batch in the data; ``batch`` is what lies there, if the
        caller has it. A result that is a number is the loss. ``metrics`` and ``params`` are those
        of ``step``. Raises WrongUsage without a recipe, and what ``step`` raises.
        """
        self._check_open()
        notes = self._options.steps
        if notes is None:
            raise WrongUsage(
                "this recorder has no recipe to train by",
                hint="mvc.Recorder(..., recipe=train_step, data=dataset)",
            )
        done = notes.train(rows, batch)
        is_loss = isinstance(done, int | float) or getattr(done, "shape", None) == ()
        self.step(done if is_loss else None, metrics=metrics, params=params)
        return done

    @property
    def production(self) -> ServedVersion | None:
        """The newest durable version: what is to be live, in memory of its own.

        None before the first, and with a lossless pipeline unless ``on_deploy`` or ``wait`` asks
        for it.
        """
        return self._writer.production

    def on_close(self, act: Callable[[], object]) -> None:
        """Has ``close`` call ``act`` before anything else, the last one first."""
        self._left.callback(act)

    def deploy_again(self) -> None:
        """Deploys the next versions again, in place of what somebody else deployed meanwhile.

        Raises WrongUsage without a target, and TargetProtected.
        """
        self._check_open()
        if self._options.deploy is None:
            raise WrongUsage("this recorder has no target", hint="name one: deploy='prod'")
        self._recording.deploy_again()

    def flush(self) -> None:
        """Waits until everything taken is durable. Raises the error of a commit that failed."""
        self._check_open()
        self._queue.join()
        self._writer.raise_failure()

    @property
    def report(self) -> Report:
        """Counts up to now."""
        writer, queue, pusher = self._writer, self._queue, self._pusher
        step, newest = writer.newest or (None, None)
        called = self._before + self._steps - self._first
        return Report(
            steps=called, taken=self._taken, durable=writer.durable,
            failed=writer.failed, coalesced=queue.coalesced, dropped=queue.dropped, newest=newest,
            newest_step=step, waiting_bytes=queue.held, peak_bytes=queue.peak,
            skipped=writer.skipped, push=None if pusher is None else pusher.report,
            not_deployed=self._recording.left_out,
            proof=None if self._options.steps is None else self._options.steps.report,
        )  # fmt: skip

    def close(self) -> Report:
        """Commits what is queued, frees the buffers and returns the final report.

        Raises the error of the first commit that failed, and Busy, naming the steps that are not
        stored, if a commit does not go on (``recorder.timeout``). With ``push`` it pushes what is
        left, and warns of what could not be pushed. A second call only reports.
        """
        if self._closed or self._pid != os.getpid():
            return self.report
        self._closed = True
        _open.discard(self)
        self._left.close()  # in reverse order, each whatever another one raises
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
                "this recorder belongs to the process that made it",
                hint="make one in each process that is to record",
            )
        if self._closed:
            raise WrongUsage("this recorder is closed")


class Watching(StateRecorder):
    """A Recorder whose step the optimizer calls; a second call would record a batch twice."""

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raises WrongUsage."""
        raise WrongUsage(
            "this recorder's step is called by the optimizer already: mvc.watch made it",
            hint="leave the call out, or use mvc.Recorder instead of mvc.watch",
        )

    def batch_ended(self) -> None:
        """Records a step; the optimizer's hook calls this."""
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
    """A Recorder whose ``step`` the optimizer calls; ``close`` removes the hook.

    ``options`` are those of Recorder, without scheduler and scaler: these change after the
    optimizer's step, so a version taken during it would be half a batch behind. Raises WrongUsage
    for one of the two, and what Recorder raises.
    """
    for name in ("scheduler", "scaler"):
        if options.get(name) is not None:
            raise WrongUsage(
                f"watch cannot keep a {name}: it changes after the optimizer's step",
                hint="use mvc.Recorder, and call its step at the end of the batch",
            )
    recorder = Watching(
        repo, model, optimizer, include=include, every=every, start=start, **options
    )
    hook = optimizer.register_step_post_hook(lambda *_: recorder.batch_ended())
    recorder.on_close(hook.remove)
    return recorder


def complete(close: Callable[[], object], error: BaseException | None) -> None:
    """Ends a ``with`` block: an error of ``close`` becomes a note of the error in the block."""
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


# Queued versions are committed before the interpreter ends. A recorder's thread cannot do that by
# itself: once the main thread has ended, the thread pools that encode take no more work. This is
# the only hook that can run before theirs, because it is registered later; atexit runs after it.
getattr(threading, "_register_atexit")(_close_all)  # noqa: B009 (private, so not in stubs)
