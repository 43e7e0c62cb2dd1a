"""A callback for the Trainer of Hugging Face transformers: a version of every step.

``MVCCallback(repo)`` records, ``callback.resume(trainer)`` goes on from a version with the
same bits. A version is taken when a step is over: after the logging, evaluation and saving
that belong to it, which draw random numbers too, and before the next one begins.
"""

# ruff: noqa: ARG002 (the Trainer prescribes what its events take)

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from transformers import TrainerCallback

from mvc.errors import CannotResume, WrongUsage
from mvc.frameworks.common.epoch_order import Drawing
from mvc.frameworks.common.options import checked, included
from mvc.frameworks.common.stages import refuse_data, stage_by_loss
from mvc.frameworks.huggingface.checkpoint import write_checkpoint
from mvc.frameworks.huggingface.state import TrainerSource, differences, parts_of, refuse_sharded
from mvc.ids import CommitId
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.repository import Repository
from mvc.serving.served_version import ServedVersion
from mvc.training.checks import opened, whole
from mvc.training.recorder import Recorder, Report, complete
from mvc.training.resume import Resumed, check_model, resume, training_state, training_weights
from mvc.training.state.parts import unwrap
from mvc.training.state.rng import rng_state, set_rng_state
from mvc.training.writer_thread import RecorderOptions

__all__ = ["MVCCallback"]

Metrics = Mapping[str, Any]


class MVCCallback(TrainerCallback):
    """Records a Trainer's steps; ``Trainer(callbacks=[MVCCallback(repo)])``.

    ``repo`` is an open Repository, or the path of an existing one. Every ``every_n_steps``-th
    step of the optimizer makes a version; None makes one where the Trainer saves a checkpoint.
    The other options are those of ``mvc.Recorder``; ``include`` names any of ``model``,
    ``optimizer``, ``scheduler``, ``scaler``, ``rng``. Only the first of several processes
    writes. A pipeline
    that decides by the data of a batch is refused, since the Trainer does not show it.

    What is queued is completed at the end of training, by ``close``, by the next training, or
    when the interpreter ends; so also after an exception.
    """

    def __init__(
        self,
        repo: Repository | str | PathLike[str],
        *,
        every_n_steps: int | None = 1,
        deploy: str | None = None,
        pipeline: str = "lossless",
        when_full: str = "block",
        metrics: Metrics | Callable[[], Metrics] | None = None,
        include: Sequence[str] | None = None,
        name: str = DEFAULT_STATE,
        queue_bytes: int | None = None,
        on_deploy: Callable[[ServedVersion], object] | None = None,
        exact: Sequence[str] = (),
        keep_training: bool = False,
    ) -> None:
        if every_n_steps is not None:  # None: where the Trainer saves
            every_n_steps = whole("every_n_steps", every_n_steps, 1)
        self._include = included(include)
        self._options = checked(
            deploy=deploy, pipeline=pipeline, when_full=when_full, metrics=metrics, name=name,
            queue_bytes=queue_bytes, on_deploy=on_deploy, exact=exact, keep_training=keep_training,
        )  # fmt: skip
        refuse_data(pipeline, "the Trainer does not hand batches to callbacks")
        self.repo = opened(repo)[0]
        self.resumed: Resumed | None = None
        self.report: Report | None = None
        self._every = every_n_steps
        self._name = name
        self._by_loss = stage_by_loss(pipeline) if metrics is None else None
        self._recorder: Recorder | None = None
        self._source: TrainerSource | None = None
        self._drawing = Drawing()
        self._pending = False
        self._logged: dict[str, float] = {}
        self._going_on: tuple[CommitId, Mapping[str, Any]] | None = None
        self._epoch_rng: Mapping[str, Any] | None = None  # to be set when the epoch begins

    # -- going on ------------------------------------------------------------------------

    def resume(self, trainer: Any, rev: str | CommitId = "HEAD", **options: Any) -> Any:
        """Trains on from a version, bit for bit; returns what ``trainer.train`` returns.

        ``options`` go to ``trainer.train``. ``self.resumed`` says afterwards where training
        went on and what was not as before. Raises CannotResume where the version lacks what
        training needs, or does not fit the trainer; then nothing was trained.
        """
        if self not in trainer.callback_handler.callbacks:
            raise WrongUsage(
                "this callback is none of the trainer's", hint="Trainer(callbacks=[callback])"
            )
        if getattr(trainer.args, "restore_callback_states_from_checkpoint", False):
            raise CannotResume(
                "the states of other callbacks are not kept",
                hint="leave restore_callback_states_from_checkpoint at False",
            )
        self._end()
        commit = self.repo.find(rev)
        kept = training_state(self.repo, commit, self._name, production=True)
        _check(trainer, training_weights(self.repo, commit, self._name, kept), kept)
        self._going_on = commit, kept
        output = Path(trainer.args.output_dir)
        self.repo.context.store.fs.make_dirs(output)
        try:
            with tempfile.TemporaryDirectory(prefix="mvc-resume-", dir=output) as folder:
                write_checkpoint(self.repo, commit, Path(folder), self._name, full=False)
                return trainer.train(resume_from_checkpoint=folder, **options)
        finally:
            self._going_on = self._epoch_rng = None

    def checkpoint(self, rev: str | CommitId, folder: str | PathLike[str]) -> str:
        """Writes a version as a checkpoint folder of the Trainer, and returns its path.

        ``trainer.train(resume_from_checkpoint=...)`` takes it, as does ``from_pretrained``.
        Raises WouldOverwrite where the folder holds one of its files already.
        """
        write_checkpoint(self.repo, self.repo.find(rev), Path(folder), self._name, full=True)
        return str(folder)

    # -- events --------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        refuse_sharded()
        self._end()
        self._check_loss(args, state)
        parts = parts_of(live, self._include)
        self._source = TrainerSource(parts, args, state, live.get("train_dataloader"))
        if self._going_on is not None:
            self._go_on(live)
        if state.is_world_process_zero:
            origin = self._going_on[0] if self._going_on is not None else None
            options = RecorderOptions(start=state.global_step, origin=origin, **self._options)
            self._recorder = Recorder.of(self.repo, self._source, options)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._settle(state)
        self._drawing.forget()
        if self._epoch_rng is not None:
            set_rng_state(self._epoch_rng)
            self._epoch_rng = None
        if self._source is not None:
            self._source.epoch_rng = rng_state()

    def on_step_begin(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.look()
        self._settle(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._logged = {}
        self._drawing.watch()
        self._pending = self._every is not None and state.global_step % self._every == 0

    def on_save(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.watch()
        self._pending = self._pending or self._every is None

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **live: Any,
    ) -> None:
        self._drawing.watch()
        if logs is not None and "train_runtime" in logs:
            self._settle(state)  # the end: the best model may be loaded right after it
        else:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            self._logged.update(numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._drawing.watch()

    def on_train_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._settle(state)
        self._end()

    # -- inside --------------------------------------------------------------------------

    def _settle(self, state: Any) -> None:
        """Records the finished step, with what was logged for it."""
        if not self._pending:
            return
        self._pending = False
        if self._source is None:
            return
        self._source.gather()
        if self._recorder is not None:
            self._source.data_draws = self._drawing.seen
            step = int(state.global_step)
            self._recorder.step(batch=step, metrics=self._logged, number=step)

    def _go_on(self, live: Mapping[str, Any]) -> None:
        assert self._going_on is not None and self._source is not None
        commit, kept = self._going_on
        parts = parts_of(live, None)
        resumed = resume(
            self.repo,
            parts.model,
            parts.optimizer,
            scheduler=parts.scheduler,
            scaler=parts.scaler,
            rev=commit,
            name=self._name,
        )
        self._source.restore(kept)
        self._epoch_rng = kept["epoch_rng"]
        self._drawing = Drawing(seen=kept["data_draws"])
        more = differences(kept, self._source)
        self.resumed = replace(resumed, differs=(*resumed.differs, *more))

    def _check_loss(self, args: Any, state: Any) -> None:
        """Takes the loss of a step when the Trainer logs it."""
        every_step = args.logging_strategy == "steps" and state.logging_steps == 1
        if self._by_loss is not None and not every_step:
            raise WrongUsage(
                f"stage {self._by_loss} goes by the loss, which the Trainer does not log "
                "for every step",
                hint="TrainingArguments(logging_steps=1)",
            )

    def _end(self) -> None:
        """Completes the queued versions."""
        self._pending = False
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self.report = recorder.close()

    def close(self) -> None:
        """Completes the queued versions. Training that continues is no longer recorded."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        complete(self.close, error)


def _check(trainer: Any, weights: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Raises CannotResume if the model is another one. Call it before the Trainer loads weights."""
    model = trainer.model
    if set(weights) != set(model.state_dict()):  # else it was recorded with the wrapper's names
        model = unwrap(model)
    check_model(model, weights, kept)
