"""Keras 3 on the torch backend: a version of the model for every batch or epoch of ``fit``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from mvc.errors import CannotResume, NotInstalled, WrongUsage, how_to_install

try:
    import keras
    import torch  # noqa: F401 - the backend
except ImportError as error:
    raise NotInstalled(
        f"Keras cannot be imported: {error}",
        hint=f"{how_to_install('keras')}, and set KERAS_BACKEND=torch",
    ) from error

from mvc.api import Repository
from mvc.frameworks.common.hyper_parameters import hyper_parameters
from mvc.frameworks.common.recording import Records, refuse_data
from mvc.frameworks.common.repository import AnyRepository
from mvc.frameworks.keras.internals import begin_at, data_of_fit
from mvc.frameworks.keras.state import RestoredFit, TrainingSource
from mvc.frameworks.keras.variables import Filling, weights
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE
from mvc.training.checks import RecorderKeywords, whole_number
from mvc.training.recorder import Report
from mvc.training.state.parts import included


class MVCCallback(Records, keras.callbacks.Callback):
    """Records a training. List this callback last, so that versions include changes by all
    callbacks.

    ``repo`` is an open Repository, or the path of an existing repository. ``every`` is ``batch`` or
    ``epoch``. With ``batch``, every ``every_n_batches``-th batch is recorded. ``resume`` is the
    version from which the first ``fit`` continues. ``include`` lists parts to record: ``model``,
    ``optimizer``, ``rng``; by default all. The other options are those of ``mvc.Recorder``. A
    pipeline that needs the data of a batch is refused: Keras gives callbacks no data. A pipeline
    that needs the loss uses the loss that Keras logs.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        every: str = "batch",
        every_n_batches: int = 1,
        include: Sequence[str] | None = None,
        resume: str | CommitId | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        super().__init__()
        _check_backend()
        if every not in ("batch", "epoch"):
            raise WrongUsage(f"every is {every!r}: no such unit", hint="use batch or epoch")
        every_n_batches = whole_number("every_n_batches", every_n_batches, 1)
        if every == "epoch" and every_n_batches != 1:
            raise WrongUsage("every_n_batches needs every='batch'")
        self._by_epoch = every == "epoch"
        self._include = included(include, ("model", "optimizer", "rng"))
        self._resume = resume
        refuse_data(
            self._set_options(repo, options, every=every_n_batches),
            "Keras does not pass batches to callbacks",
        )
        self._steps = 0
        self._restored: RestoredFit | None = None  # the version to resume, until its epoch begins
        self._skip: Skip | None = None

    def close(self) -> Report | None:
        """Commits the queued versions, as ``on_train_end`` does. Call it after an exception."""
        self._end_skip()
        if self._restored is not None:  # fit has run no epoch
            self._restored = None
            begin_at(self.model, None)
        return super().close()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 (the name is Keras's)
        self.close()  # ends a previous fit that raised an exception
        model, data = self.model, data_of_fit()
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        origin = None
        if self._resume is not None:
            commit, epochs = self._find(self._resume), (self.params or {}).get("epochs")
            name = self._options.name
            restored = RestoredFit(self.repo, commit, name, model=model, data=data, epochs=epochs)
            self._resume, self._restored, self.resumed = None, restored, restored.resumed
            self._steps, origin = restored.resumed.step, commit
            begin_at(model, restored.epoch)
        self._thread = threading.get_ident()
        self._source = TrainingSource(model, self._include, data)
        hyper = _hyper(model, self.params or {})
        self._begin(self._source, start=self._steps, origin=origin, hyper=hyper)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        restored, self._restored = self._restored, None
        batches = (self.params or {}).get("steps")
        if restored is not None:
            self._enter(restored, epoch, batches)
        self._expected = restored.digest if restored is not None else None
        self._source.epoch_begins(epoch, batches)

    def _enter(self, restored: RestoredFit, epoch: int, batches: int | None) -> None:
        begin_at(self.model, None)
        if epoch != restored.epoch:
            raise CannotResume(
                f"{restored.resumed.commit.short} continues in epoch {restored.epoch}, not {epoch}",
                hint=f"pass initial_epoch={restored.epoch} to fit",
            )
        if not restored.batch:
            return
        if batches != restored.batches:
            raise CannotResume(
                f"the recorded epoch had {restored.batches} batches, this one has {batches}",
                hint="pass the same data and batch size, or resume from the end of an epoch",
            )
        restored.enter_epoch()
        self._entered = restored
        self._skip = Skip(self.model, restored.batch, restored.logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._check_thread()
        self._source.batch_begins()
        if self._expected is not None and self._source.digest != self._expected:
            self.close()
            raise CannotResume(
                "the order of the data differs from the recorded epoch, "
                "so its remaining batches are unknown",
                hint="pass the same data, batch size and shuffle, and the same callbacks",
            )
        if self._skip is not None:
            self._skip.announced = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._check_thread()
        if self._skip is not None:
            if not self._skip.left:
                self._end_skip()
                self._entered.leave_skipped()
        elif not self._by_epoch:
            self._source.batch, self._source.logs = batch + 1, _numbers(logs)
            self._record(self._source.epoch, batch + 1, self._source.logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._skip is not None:
            left = self._skip.left
            self.close()
            raise CannotResume(
                f"the epoch ended {left} batches before the version's position",
                hint="pass the same data and batch size",
            )
        if self._by_epoch:
            self._source.batch = 0
            self._record(epoch + 1, 0, _numbers(logs))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self.close()

    def _record(self, epoch: int, batch: int, metrics: Mapping[str, float]) -> None:
        self._steps += 1
        self._step(self._steps, batch={"epoch": epoch, "batch": batch}, metrics=metrics)

    def _end_skip(self) -> None:
        skip, self._skip = self._skip, None
        if skip is not None:
            skip.end()

    def _check_thread(self) -> None:
        # If the user passes the callback without a list, Keras calls the callback from another
        # thread, while the next batch trains.
        if threading.get_ident() != self._thread:
            raise WrongUsage(
                "Keras calls this callback from another thread than the training's",
                hint="pass the callbacks as a list: callbacks=[MVCCallback(repo)]",
            )


def load(
    model: Any, repo: Repository, rev: str | CommitId = "HEAD", *, name: str = DEFAULT_STATE
) -> CommitId:
    """Loads the weights of a version into ``model``, which must be built. Returns the version's id.

    Raises CannotResume if a weight is missing, unexpected, or of another shape or dtype. Then the
    model is unchanged.
    """
    _check_backend()
    commit, current = repo.find(rev), weights(model)
    if not current:
        raise CannotResume(
            "the model has no weights yet", hint="build it: model.build(input_shape), or call it"
        )
    state = repo.checkout(commit, path=name)
    if not isinstance(state, Mapping):
        raise CannotResume(f"{name} of {commit.short} is not a mapping of tensors")
    Filling("model", state, current).apply()
    return commit


def _hyper(model: Any, params: Mapping[str, Any]) -> dict[str, str]:
    """The optimizer's configuration, and the plain arguments of ``compile`` and ``fit``."""
    fit = {"epochs": params.get("epochs"), "steps_per_epoch": params.get("steps")}
    optimizer = None if model.optimizer is None else model.optimizer.get_config()
    loss = model.loss if isinstance(model.loss, str) else None
    return hyper_parameters(("optimizer", optimizer), ("", {"loss": loss, **fit}))


def _numbers(logs: Any) -> dict[str, float]:
    return {name: value for name, value in (logs or {}).items() if isinstance(value, float)}


def _check_backend() -> None:
    backend = keras.backend.backend()
    if backend != "torch":
        raise WrongUsage(
            f"Keras runs on {backend}; mvc records only on its torch backend, "
            "because other backends have states outside of torch",
            hint="set KERAS_BACKEND=torch before importing Keras",
        )


class Skip:
    """Skips the training of ``count`` batches.

    A Skip takes the place of the model's train function. For each of the ``count`` batches, a call
    only returns ``logs``.
    """

    def __init__(self, model: Any, count: int, logs: Mapping[str, float]) -> None:
        self._model = model
        self._train = model.train_function
        self._logs = dict(logs)
        self._fit = model.history  # Keras creates a new object for every fit
        self.announced = False  # whether Keras has called on_train_batch_begin for the batch
        self.left = count
        model.train_function = self

    def __call__(self, data: Any) -> Any:
        # An interrupted fit can leave its Skip behind. Then the next fit must not skip batches.
        if self._model.history is not self._fit or not self.announced:
            self.end()
            return self._train(data)
        self.announced = False
        self.left -= 1
        return dict(self._logs)

    def end(self) -> None:
        if self._model.train_function is self:
            self._model.train_function = self._train
