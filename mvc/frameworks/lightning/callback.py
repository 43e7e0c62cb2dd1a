"""PyTorch Lightning: records versions of a model during ``Trainer.fit``, and resumes from them.

``MVCCallback`` passes the state after optimizer steps to a Recorder. A thread of the Recorder
commits each state as a version. ``MVCCheckpointIO`` stores the checkpoints of Lightning's
``ModelCheckpoint`` as versions (``mvc.frameworks.lightning.checkpoint``).
"""

# ruff: noqa: ARG002 (Lightning prescribes the parameters)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Unpack

from mvc.errors import NotInstalled, WrongUsage, how_to_install

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise NotInstalled(
        f"Lightning cannot be imported: {error}", hint=how_to_install("lightning")
    ) from error

from mvc.frameworks.common.hyper_parameters import hyper_parameters
from mvc.frameworks.common.recording import Records, stage_by_data, stage_by_loss
from mvc.frameworks.common.repository import AnyRepository
from mvc.frameworks.lightning.checkpoint import MVCCheckpointIO
from mvc.frameworks.lightning.loops import EPOCH, Order, comes_next
from mvc.frameworks.lightning.state import Resume, TrainerSource, VersionReader
from mvc.ids import CommitId
from mvc.training.checks import RecorderKeywords, whole_number
from mvc.training.recorder import complete
from mvc.training.state.parts import included

__all__ = ["MVCCallback", "MVCCheckpointIO"]

_HOOK = "on_train_batch_end"


class MVCCallback(Records, Callback):  # type: ignore[misc, unused-ignore]
    """Records a version after every ``every_n_steps``-th batch in which an optimizer stepped.

    ``repo`` is an open Repository, or the path of an existing repository. ``include`` lists parts
    to record: ``model``, ``optimizer``, ``scheduler``, ``scaler``, ``rng``; by default all. The
    other options are those of ``mvc.Recorder``. The loss and ``trainer.callback_metrics`` become
    metrics of each version. The stages ``drift`` and ``dsed`` get the batch of ``training_step``.

    To resume bit for bit: ``trainer.fit(model, ckpt_path=callback.resume())``.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        every_n_steps: int = 1,
        include: Sequence[str] | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        super().__init__()
        every = whole_number("every_n_steps", every_n_steps, 1)
        chosen = self._set_options(repo, options, every=every)
        self._by_loss = stage_by_loss(chosen)
        self._by_data = stage_by_data(chosen) is not None
        self._decides = bool(chosen.stages.decisions)
        self._include = frozenset(included(include))
        self._steps = 0
        self._resume: Resume | None = None
        self._undo = ExitStack()  # undoes what a fit changed in trainer and module

    def resume(self, rev: str | CommitId | None = None) -> str:
        """Returns the ``ckpt_path`` with which ``trainer.fit`` resumes from a version.

        ``rev`` is by default the newest version of the option ``branch``, or HEAD without this
        option. Raises CannotResume if the version lacks a needed part. ``fit`` raises CannotResume
        if the model, an optimizer or a loader does not match the version.
        """
        self._resume = Resume(self.repo, self._find(rev), self._options.name)
        return self._resume.path

    # -- hooks, in the order of their calls -----------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise WrongUsage(
                f"MVCCallback does not work with {type(trainer.strategy).__name__}",
                hint="train on one device or with DDP; sharded states are not supported",
            )
        # Make this callback the last, so that a version includes changes by all callbacks.
        trainer.callbacks = [*(c for c in trainer.callbacks if c is not self), self]
        self.resumed = None
        if self._resume is not None:
            self._undo.callback(VersionReader(trainer, self._resume).remove)
        self._order = Order(trainer)
        self._undo.callback(self._order.release)
        self._source = TrainerSource(trainer, self._order, self._include)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._resume is not None and trainer.ckpt_path != self._resume.path:
            self._resume = None  # ``fit`` was called with another ``ckpt_path``
        origin = None
        if self._resume is not None:
            self._resume.on_fit_start(trainer)
            self.resumed = self._resume.resumed
            self._steps, origin = self.resumed.step, self.resumed.commit
        if trainer.is_global_zero and not trainer.fast_dev_run:
            # ``_begin`` reads the module's buffers, so it runs after the module's ``setup`` hook,
            # which may create layers.
            owners = (pl_module, trainer.datamodule)
            hyper = hyper_parameters(*(("", getattr(owner, "hparams", None)) for owner in owners))
            self._begin(self._source, origin=origin, hyper=hyper)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._seen = trainer.global_step
        self._ended = False  # whether the epoch's last batch, but not its end, was recorded
        if self._resume is not None:
            self._resume.on_train_start(trainer, self._order)
            self.resumed = self._resume.resumed
        self._last: tuple[Any, Any, int] | None = None
        self._loss: Any = None
        self._waits = is_overridden(_HOOK, pl_module)
        if self._waits:
            self._wait_for(pl_module, trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._resume is not None:
            self._resume.on_train_epoch_start(self._order)
            self._resume = None
        self._record_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._resume = None
        if self._waits:
            self._last = outputs, batch, batch_idx
        else:
            self._record_batch(trainer, outputs, batch, batch_idx)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._record_epoch(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        complete(self._finish, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._finish()

    def _wait_for(self, module: Any, trainer: Any) -> None:
        """Records each batch after the module's own ``on_train_batch_end``.

        Lightning calls this hook of the module after all callbacks. The hook may change weights
        (for example by clipping or averaging), and the next batch starts from the changed weights.
        """
        hook, own = getattr(module, _HOOK), vars(module).get(_HOOK)

        def then(*arguments: Any) -> None:
            hook(*arguments)
            if self._last is not None:
                last, self._last = self._last, None
                self._record_batch(trainer, *last)

        def release() -> None:
            vars(module).pop(_HOOK, None)
            if own is not None:
                setattr(module, _HOOK, own)

        setattr(module, _HOOK, then)
        self._undo.callback(release)

    def _record_batch(self, trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._recorder is None or trainer.global_step == self._seen:
            return  # gradients still accumulate: no new version yet
        self._seen = trainer.global_step
        self._steps += 1
        self._source.next = comes_next(trainer)
        self._loss = _loss(outputs)
        recorded = self._record(
            trainer,
            {"epoch": trainer.current_epoch, "batch": batch_idx + 1},
            loss=self._loss,
            data=batch if self._by_data else None,
        )
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        # A pipeline that decides whether a version is saved needs a batch. ``_record_epoch`` has
        # none.
        self._ended = recorded and last and not self._decides

    def _record_epoch(self, trainer: Any) -> None:
        """Records the state at the end of an epoch: after validation and scheduler steps."""
        if self._recorder is not None and self._ended:
            self._ended = False
            self._source.next = EPOCH
            epoch = trainer.fit_loop.epoch_progress.current.processed
            loss = self._loss if self._by_loss else None
            self._record(trainer, {"epoch": epoch, "batch": 0}, loss=loss)

    def _record(
        self, trainer: Any, position: dict[str, int], *, loss: Any, data: Any = None
    ) -> bool:
        if self._by_loss and loss is None:
            raise WrongUsage(
                f"stage {self._by_loss} needs the loss of the batch",
                hint="return the loss from training_step",
            )
        return self._step(
            self._steps,
            loss=loss,
            batch={**position, "global_step": trainer.global_step},
            metrics=trainer.callback_metrics,
            data=data,
        )

    def _finish(self) -> None:
        self._undo.close()
        self._resume = None
        super().close()


def _loss(outputs: Any) -> Any:
    """The loss in the result of ``training_step``. None if the loss is not a single number."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if loss is not None and getattr(loss, "ndim", 0) == 0 else None
