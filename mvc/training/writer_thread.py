"""The writer thread: commits staged states in order while the training goes on.

Most of its time goes to hashing, compression and writing, which release the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mvc.adapters.python.state import from_state
from mvc.codecs.pipeline import Pipeline
from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.commit.request import CommitOptions, metrics_from
from mvc.repo.commit.result import CommitResult
from mvc.repo.content.hashing import hash_file
from mvc.repo.repository import Repository
from mvc.serving.served_version import ServedVersion
from mvc.training.lossy.drift import Monitor
from mvc.training.lossy.dsed import Evaluate
from mvc.training.lossy.state_reducer import StateReducer
from mvc.training.queue import Item, Queue
from mvc.training.staging import Slot
from mvc.training.state.parts import PRODUCTION, StateSource, training_path

__all__ = ["Metrics", "RecorderOptions", "WriterThread", "reducer_for"]

Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class RecorderOptions:
    """Options of a Recorder; its docstring explains each of them."""

    deploy: str | None = None
    pipeline: str = "lossless"
    every: int = 1
    when_full: str = "block"
    metrics: Metrics | Callable[[], Metrics] | None = field(default=None, hash=False)
    name: str = DEFAULT_STATE
    queue_bytes: int | None = None
    start: int = 0
    on_deploy: Callable[[ServedVersion], object] | None = None
    evaluate: Evaluate | None = None
    monitor: Monitor | None = None
    exact: Sequence[str] | None = field(default=None, hash=False)
    keep_training: bool = False
    message: str = ""
    author: str | None = None
    origin: CommitId | None = None
    """The version that the training resumed from."""

    def numbers(self, loss: Any, metrics: Metrics | None) -> dict[str, float]:
        """The metrics of one version: those of every version, those of the step, and its loss."""
        common = self.metrics
        given = {**((common() if callable(common) else common) or {}), **(metrics or {})}
        if loss is not None:
            given["loss"] = loss
        return metrics_from(given)


class WriterThread:
    """The thread, its counts and its errors.

    ``production`` is the newest version that is durable and was handed out; ``newest`` the step
    and the commit of the last durable version.
    """

    def __init__(
        self,
        repo: Repository,
        queue: Queue,
        options: RecorderOptions,
        *,
        weights: bool,
        reducer: StateReducer | None = None,
    ) -> None:
        """``weights``: whether staged states include the model's. ``reducer`` makes production
        weights of it, for a pipeline that is lossy or has decisions.
        """
        self._repo = repo
        self._queue = queue
        self._options = options
        self._weights = weights
        self._reducer = reducer
        self._coding = Pipeline.parse(options.pipeline).coding()
        self.production: ServedVersion | None = None
        self.durable = 0
        self.skipped = 0
        self.failed = 0
        self.newest: tuple[int, CommitResult] | None = None
        self.first_failure: BaseException | None = None
        self._failure: BaseException | None = None  # not raised to the caller yet
        self._thread = threading.Thread(target=self._run, name="mvc-recorder", daemon=True)
        self._thread.start()

    def raise_failure(self) -> None:
        """Raises the first error since the last call, if there was one."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def end(self) -> None:
        """Waits until everything queued is committed. The queue must be closed."""
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.take()) is not None:
            done = False
            try:
                made = self._commit(item)
                done = True
                if made is None:
                    self.skipped += 1
                else:
                    self.newest = item.step, replace(made, state=None)
                    self.durable += 1
                    self._hand_out(item, made)
            except BaseException as error:
                # Later versions are complete states and are still committed.
                self.failed += not done
                self._failure = self._failure or error
                self.first_failure = self.first_failure or error
            finally:
                self._queue.give_back(item)

    def _commit(self, item: Item) -> CommitResult | None:
        """Commits a staged state; None if the pipeline skips it."""
        item.slot.ready()
        if self._reducer is None:
            return self._store(item, item.slot.state["model"])
        training = item.slot.state["model"]
        made, _ = self._reducer.offer(training, loss=item.loss, data=item.data)
        if made is None:
            return None
        try:
            return self._store(item, made)
        except BaseException:
            self._reducer.take_back()
            raise

    def _store(self, item: Item, model: Mapping[str, Any]) -> CommitResult:
        options = self._options
        training = item.slot.state["training"]
        reduced = self._reducer is not None
        if reduced:
            kept = item.slot.state["model"] if options.keep_training else None
            training |= {
                "schema": PRODUCTION,
                "of": training.get("schema"),
                "pipeline": options.pipeline,
                "weights": kept,
            }
        if options.origin is not None:
            training["origin"] = str(options.origin)
        states = {training_path(options.name): training}
        if self._weights:
            root = hash_file(from_state(model), options.name).state.root
            training["root"] = root.hex()
            states = {options.name: model, **states}
        # Production weights are made here, so they were not live when the step was called.
        as_of_call = options.deploy is not None and not reduced
        return self._repo.commit(
            path=options.name,
            states=states,
            message=self._message(item.step),
            metrics=item.metrics,
            deploy=options.deploy,
            at=item.called_ns if as_of_call else None,
            pipeline=self._coding.text if reduced else options.pipeline,
            options=CommitOptions(
                author=options.author,
                time=item.called_ns,
                produced_by=options.pipeline if reduced else None,
            ),
        )

    def _message(self, step: int) -> str:
        prefix, origin = self._options.message, self._options.origin
        text = f"{prefix}: step {step}" if prefix else f"step {step}"
        if origin is not None and not self.durable:
            text += f" (resumed from {origin.short})"
        return text

    def _hand_out(self, item: Item, made: CommitResult) -> None:
        """Passes the durable version to ``on_deploy``, in memory of its own."""
        act = self._options.on_deploy
        if not self._weights or (self._reducer is None and act is None and not item.awaited):
            return
        state = self._reducer.live_state() if self._reducer else _copy(item.slot.state["model"])
        moment = made.commit.time_ns if made.deployment is None else made.deployment.time_ns
        self.production = ServedVersion(state, made.id, moment)
        if act is not None:
            act(self.production)


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a staged state, whose buffers will soon hold another version."""
    slot = Slot()
    slot.fill(state)
    return slot.state


def reducer_for(
    repo: Repository, source: StateSource, options: RecorderOptions
) -> StateReducer | None:
    """Makes production weights for a pipeline that is lossy or has decisions; else None.

    Raises WrongUsage where options and pipeline do not fit together.
    """
    pipeline = Pipeline.parse(options.pipeline)
    if not pipeline.lossy and not pipeline.decisions:
        if options.keep_training:
            raise WrongUsage("keep_training is for lossy pipelines: others keep them anyway")
        return None
    if not source.weights:
        raise WrongUsage(
            "a lossy pipeline makes production weights, but the model is not recorded",
            hint="record with 'model' in include",
        )
    buffers = getattr(source, "exact", None)
    if buffers is None and options.exact is None:
        raise WrongUsage(
            "a lossy pipeline must know which tensors are no weights, and these states do not say",
            hint="name the buffers: exact=[...]",
        )
    named = frozenset(options.exact or ())
    return StateReducer(
        repo,
        options.name,
        pipeline,
        evaluate=options.evaluate,
        monitor=options.monitor,
        exact=named.union(buffers() if buffers is not None else ()),
        named=named,
    )
