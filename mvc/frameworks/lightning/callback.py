"""PyTorch Lightning: versions of a model while a Trainer fits it, and training that goes on.

``MVCCallback`` hands every optimizer step to a Recorder, whose thread commits it
(``mvc.training.writer_thread``). ``MVCCheckpointIO``
keeps what ``ModelCheckpoint`` saves (``mvc.frameworks.lightning.checkpoint``).
"""

# ruff: noqa: ARG002 (Lightning says what its hooks are given)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from msgspec.structs import replace

from mvc.errors import NotInstalled, WrongUsage, how_to_install

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise NotInstalled(
        f"Lightning cannot be imported: {error}", hint=how_to_install("lightning")
    ) from error

from mvc.api.repository import Repository
from mvc.frameworks.common.options import Options, checked, included, stage_by_data, stage_by_loss
from mvc.frameworks.common.repository import AnyRepository, GivenRepository
from mvc.frameworks.lightning.checkpoint import MVCCheckpointIO
from mvc.frameworks.lightning.loops import EPOCH, Order, comes_next
from mvc.frameworks.lightning.state import Reader, Resume, TrainerSource
from mvc.ids import CommitId
from mvc.lossy.decisions import Evaluate, Monitor
from mvc.training.checks import whole
from mvc.training.recorder import Recorder, Report, complete
from mvc.training.resume import Resumed

__all__ = ["MVCCallback", "MVCCheckpointIO"]

_HOOK = "on_train_batch_end"


class _Options(Options, total=False):
    """Here decisions see the batch of ``training_step``."""

    evaluate: Evaluate | None
    monitor: Monitor | None


class MVCCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records a version after every ``every_n_steps``-th batch in which an optimizer stepped.

    ``repo`` is an open Repository, or the path of an existing one. ``include`` names any of
    ``model``, ``optimizer``, ``scheduler``, ``scaler``, ``rng``; by default all. The other
    options are those of ``mvc.Recorder``. The loss and ``trainer.callback_metrics`` are
    metrics of each version. Decisions of a lossy pipeline see the batch of ``training_step``.

    To go on bit for bit: ``trainer.fit(model, ckpt_path=callback.resume())``.
    """

    def __init__(
        self,
        repo: AnyRepository,
        *,
        every_n_steps: int = 1,
        include: Sequence[str] | None = None,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__()
        self._given = GivenRepository(repo)
        self._options = checked(options, whole("every_n_steps", every_n_steps, 1), _Options)
        self._by_loss = stage_by_loss(self._options)
        self._by_data = stage_by_data(self._options) is not None
        self._decides = bool(self._options.stages.decisions)
        self._include = frozenset(included(include))
        self._steps = 0
        self._recorder: Recorder | None = None
        self._report: Report | None = None
        self._resume: Resume | None = None
        self._reader: Reader | None = None
        self._order: Order | None = None
        self._waiting: Callable[[], None] | None = None
        self.resumed: Resumed | None = None

    @property
    def repo(self) -> Repository:
        """The repository; opened if need be."""
        return self._given.repo

    @property
    def report(self) -> Report | None:
        """The recorder's counts for this ``fit`` or the last one. None before the first."""
        return self._report if self._recorder is None else self._recorder.report

    def resume(self, rev: str | CommitId | None = None) -> str:
        """What to pass to ``trainer.fit`` as ``ckpt_path``, so that it goes on from a version.

        ``rev`` is by default the newest version of ``branch``; without that HEAD.
        Raises CannotResume with the reason; here what the version lacks, in ``fit`` what does
        not fit the model, the optimizers or the loaders.
        """
        commit = self.repo.find(self._options.tip if rev is None else rev)
        self._resume = Resume(self.repo, commit, self._options.name)
        return self._resume.path

    # -- hooks, in the order in which they are called ----------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise WrongUsage(
                f"MVCCallback does not work with {type(trainer.strategy).__name__}",
                hint="it takes one device or DDP; sharded states cannot be kept yet",
            )
        # Last, so that what the other callbacks change after a batch is in its version.
        trainer.callbacks = [*(c for c in trainer.callbacks if c is not self), self]
        self.resumed = None
        if self._resume is not None:
            self._reader = Reader(trainer.strategy.checkpoint_io, trainer, self._resume)
            trainer.strategy.checkpoint_io = self._reader
        self._order = Order(trainer)
        self._source = TrainerSource(trainer, self._order, self._include)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._remove_reader(trainer)
        if self._resume is not None and trainer.ckpt_path != self._resume.path:
            self._resume = None  # the user went on from elsewhere
        origin = None
        if self._resume is not None:
            self._resume.on_fit_start(trainer)
            self.resumed = self._resume.resumed
            self._steps, origin = self.resumed.step, self.resumed.commit
        if trainer.is_global_zero and not trainer.fast_dev_run:
            # Not before the module has all its layers: its buffers are asked for here.
            options = replace(self._options, origin=origin)
            self._recorder = Recorder.of(self.repo, self._source, options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._seen = trainer.global_step
        self._ended = False  # an epoch whose last batch was recorded, but not yet its end
        if self._resume is not None and self._order is not None:
            self._resume.on_train_start(trainer, self._order)
            self.resumed = self._resume.resumed
        self._last: tuple[Any, Any, int] | None = None
        self._loss: Any = None
        if is_overridden(_HOOK, pl_module):
            self._wait_for(pl_module, trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._resume is not None and self._order is not None:
            self._resume.on_train_epoch_start(self._order)
            self._resume = None
        self._record_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._resume = None
        if self._waiting is None:
            self._record_batch(trainer, outputs, batch, batch_idx)
        else:
            self._last = outputs, batch, batch_idx

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._record_epoch(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        complete(lambda: self._finish(trainer), exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._finish(trainer)

    def _wait_for(self, module: Any, trainer: Any) -> None:
        """Has a batch recorded after the module's own hook, which comes after all callbacks.

        It may change weights (clip them, move an average), and the next batch begins with that.
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
        self._waiting = release

    def _record_batch(self, trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._recorder is None or trainer.global_step == self._seen:
            return  # gradients are still gathered: there is no new version yet
        self._seen = trainer.global_step
        self._steps += 1
        self._source.next = comes_next(trainer)
        self._loss = _loss(outputs)
        data = batch if self._by_data else None
        taken = self._take(trainer, trainer.current_epoch, batch_idx + 1, self._loss, data)
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        # No batch belongs to the end of an epoch, so there is nothing to decide about.
        self._ended = taken and last and not self._decides

    def _record_epoch(self, trainer: Any) -> None:
        """The state once validation and schedulers are done, from which the next epoch begins."""
        if self._recorder is not None and self._ended:
            self._ended = False
            self._source.next = EPOCH
            loss = self._loss if self._by_loss else None
            self._take(trainer, trainer.fit_loop.epoch_progress.current.processed, 0, loss, None)

    def _take(self, trainer: Any, epoch: int, batch: int, loss: Any, data: Any) -> bool:
        assert self._recorder is not None
        if self._by_loss and loss is None:
            raise WrongUsage(
                f"stage {self._by_loss} goes by the loss of the batch",
                hint="return it from training_step",
            )
        position = {"epoch": epoch, "batch": batch, "global_step": trainer.global_step}
        metrics = trainer.callback_metrics
        return self._recorder.step(loss, position, metrics, number=self._steps, data=data)

    def _remove_reader(self, trainer: Any) -> None:
        if self._reader is not None:
            trainer.strategy.checkpoint_io, self._reader = self._reader.inner, None

    def _finish(self, trainer: Any) -> None:
        self._remove_reader(trainer)
        self._resume = None
        if self._order is not None:
            self._order.release()
            self._order = None
        if self._waiting is not None:
            self._waiting()
            self._waiting = None
        recorder, self._recorder = self._recorder, None
        try:
            if recorder is not None:
                recorder.close()
        finally:
            self._report = self._report if recorder is None else recorder.report
            self._given.close()


def _loss(outputs: Any) -> Any:
    """The loss in what ``training_step`` returned. None if there is no single number."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return found if found is not None and getattr(found, "ndim", 0) == 0 else None
