"""Behind the training: a thread that commits staged states in order.

It spends its time in hashing, compression and writing, which release the interpreter's lock.
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
from mvc.repo.commit.request import metrics_from
from mvc.repo.content.hashing import hash_file
from mvc.repo.repository import CommitResult, Repository
from mvc.serving.served_version import Delivered
from mvc.training.lossy.drift import Monitor
from mvc.training.lossy.dsed import Evaluate
from mvc.training.lossy.reducing import Reducing
from mvc.training.queue import Item, Queue
from mvc.training.staging import Slot
from mvc.training.state.parts import PRODUCTION, Source, training_path

__all__ = ["Behind", "Metrics", "Options", "reducing_for"]

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
    on_deploy: Callable[[Delivered], object] | None = None
    evaluate: Evaluate | None = None
    monitor: Monitor | None = None
    exact: Sequence[str] | None = field(default=None, hash=False)
    keep_training: bool = False
    message: str = ""
    author: str | None = None
    origin: CommitId | None = None
    """The version that the training was set back to before it began."""

    def numbers(self, loss: Any, metrics: Metrics | None) -> dict[str, float]:
        """What a version says of its step, with what is said of every one."""
        common = self.metrics
        given = {**((common() if callable(common) else common) or {}), **(metrics or {})}
        if loss is not None:
            given["loss"] = loss
        return metrics_from(given)


class Behind:
    """The thread, what it has done, and what went wrong in it.

    ``production`` is the newest version that is durable and was handed out.
    """

    def __init__(
        self,
        repo: Repository,
        queue: Queue,
        options: Options,
        *,
        weights: bool,
        reducing: Reducing | None = None,
    ) -> None:
        """``weights``: whether the model's own state is among what is staged. ``reducing``
        makes production weights of it, for a pipeline that is lossy or decides.
        """
        self._repo = repo
        self._queue = queue
        self._options = options
        self._weights = weights
        self._reducing = reducing
        self._coding = Pipeline.parse(options.pipeline).coding()
        self.production: Delivered | None = None
        self.durable = 0
        self.skipped = 0
        self.failed = 0
        self.newest: tuple[int, CommitResult] | None = None
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
                # The versions behind it are whole states of their own and are still written.
                self.failed += not done
                self._failure = self._failure or error
                self.first_failure = self.first_failure or error
            finally:
                self._queue.give_back(item)

    def _commit(self, item: Item) -> CommitResult | None:
        """What became of a staged state; None if its version is skipped."""
        item.slot.ready()
        if self._reducing is None:
            return self._keep(item, item.slot.state["model"])
        training = item.slot.state["model"]
        made, _ = self._reducing.offer(training, loss=item.loss, data=item.data)
        if made is None:
            return None
        try:
            return self._keep(item, made)
        except BaseException:
            self._reducing.take_back()
            raise

    def _keep(self, item: Item, model: Mapping[str, Any]) -> CommitResult:
        options = self._options
        training = item.slot.state["training"]
        reduced = self._reducing is not None
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
        (name, first), *others = states.items()
        # Weights that are only now being made were not live when the step was called.
        as_of_call = options.deploy is not None and not reduced
        return self._repo.commit(
            first,
            name=name,
            beside=dict(others),
            message=self._message(item.step),
            metrics=item.metrics,
            deploy=options.deploy,
            at=item.called_ns if as_of_call else None,
            time=item.called_ns,
            author=options.author,
            pipeline=self._coding.text if reduced else options.pipeline,
            produced_by=options.pipeline if reduced else None,
        )

    def _message(self, step: int) -> str:
        prefix, origin = self._options.message, self._options.origin
        text = f"{prefix}: step {step}" if prefix else f"step {step}"
        if origin is not None and not self.durable:  # where the training's history joins
            text += f" (resumed from {origin.short})"
        return text

    def _hand_out(self, item: Item, made: CommitResult) -> None:
        """Gives the durable version to whoever deploys, in memory of its own."""
        act = self._options.on_deploy
        if not self._weights or (self._reducing is None and act is None and not item.awaited):
            return
        state = self._reducing.handed_out() if self._reducing else _copy(item.slot.state["model"])
        moment = made.commit.time_ns if made.deployment is None else made.deployment.time_ns
        self.production = Delivered(state, made.id, moment)
        if act is not None:
            act(self.production)


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    """A staged state in memory of its own; its buffers are about to hold another version."""
    slot = Slot()
    slot.fill(state)
    return slot.state


def reducing_for(repo: Repository, source: Source, options: Options) -> Reducing | None:
    """What makes production weights; None for a pipeline that only stores."""
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
    return Reducing(
        repo,
        options.name,
        pipeline,
        evaluate=options.evaluate,
        monitor=options.monitor,
        exact=named.union(buffers() if buffers is not None else ()),
        named=named,
    )
