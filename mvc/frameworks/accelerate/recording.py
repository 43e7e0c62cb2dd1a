"""Accelerate: what ``accelerator.save_state`` saves becomes a version as well.

``attach(accelerator, repo)`` registers accelerate's own hook. It is called before files are
written, so the version is made of the states themselves: models, optimizers, schedulers,
scaler, random generators, positions in the data, registered objects. Nothing of it changes
until the files are written: version and folder have the same content. With a lossy pipeline
the version holds production weights; the folder is accelerate's, exact as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self

from mvc.errors import WrongUsage
from mvc.frameworks.accelerate.data import Epochs
from mvc.frameworks.accelerate.resume import load
from mvc.frameworks.accelerate.state import AcceleratorSource
from mvc.frameworks.common.options import checked
from mvc.frameworks.common.stages import refuse_decisions, stage_by_loss
from mvc.frameworks.huggingface.state import refuse_sharded
from mvc.ids import CommitId
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.repository import Repository
from mvc.serving.served_version import ServedVersion
from mvc.training.checks import RecorderOptions, opened
from mvc.training.recorder import Recorder, Report, complete
from mvc.training.resume import Resumed

__all__ = ["Attached", "attach"]

Metrics = Mapping[str, Any]


def attach(
    accelerator: Any,
    repo: Repository | str | PathLike[str],
    *,
    wait: bool = True,
    deploy: str | None = None,
    pipeline: str = "lossless",
    when_full: str = "block",
    metrics: Metrics | Callable[[], Metrics] | None = None,
    name: str = DEFAULT_STATE,
    queue_bytes: int | None = None,
    on_deploy: Callable[[ServedVersion], object] | None = None,
    exact: Sequence[str] = (),
    keep_training: bool = False,
) -> Attached:
    """Makes a version of every ``save_state`` from now on.

    ``repo`` is an open Repository, or the path of an existing one. With ``wait`` the version is
    durable when ``save_state`` returns, without it is on its way. The other options are those
    of ``mvc.Recorder``. Raises WrongUsage where no process holds the whole model, and for a
    pipeline that decides whether to save: ``save_state`` is told to.
    """
    refuse_sharded()
    options = checked(
        deploy=deploy, pipeline=pipeline, when_full=when_full, metrics=metrics, name=name,
        queue_bytes=queue_bytes, on_deploy=on_deploy, exact=exact, keep_training=keep_training,
    )  # fmt: skip
    refuse_decisions(pipeline, "save_state always saves")
    stage = stage_by_loss(pipeline)
    if stage is not None and metrics is None:
        raise WrongUsage(
            f"stage {stage} goes by the loss, which save_state does not know",
            hint='pass metrics=lambda: {"loss": ...}',
        )
    return Attached(accelerator, opened(repo)[0], options, wait=wait)


class Attached:
    """The result of ``attach``: ``load`` restores a version, ``detach`` ends recording."""

    def __init__(
        self, accelerator: Any, repo: Repository, options: dict[str, Any], *, wait: bool
    ) -> None:
        self.repo = repo
        self.saves = 0
        self._origin: CommitId | None = None
        self._accelerator = accelerator
        self._options = options
        self._wait = wait
        self._epochs = Epochs(accelerator)
        self._source = AcceleratorSource(accelerator, self._epochs)
        self._recorder: Recorder | None = None
        self._hook = accelerator.register_save_state_pre_hook(self._on_save)

    # -- recording -----------------------------------------------------------------------

    def _on_save(self, _models: Any, _weights: Any, _output_dir: Any) -> None:
        """Accelerate's hook; every process calls it, the first one writes."""
        self.saves += 1
        self._source.gather()
        if not self._accelerator.is_main_process:
            return
        if self._recorder is None:
            options = RecorderOptions(start=self.saves - 1, origin=self._origin, **self._options)
            self._recorder = Recorder.of(self.repo, self._source, options)
        self._recorder.step(number=self.saves)
        if self._wait:
            self._recorder.flush()

    @property
    def report(self) -> Report | None:
        """Counts of the Recorder; None before the first save."""
        return self._recorder.report if self._recorder is not None else None

    def flush(self) -> None:
        """Waits until all that was saved is durable."""
        if self._recorder is not None:
            self._recorder.flush()

    def detach(self) -> None:
        """Removes the hook and completes the queued versions."""
        self._hook.remove()
        if self._recorder is not None:
            self._recorder.close()

    # -- the data --------------------------------------------------------------------------

    def batches(self, loader: Any) -> Iterator[Any]:
        """One epoch of a prepared loader; after ``load`` what was left of the one kept.

        An epoch that is left by ``break`` counts as begun: the next call begins another one,
        but after ``load`` what was left of it comes first.
        """
        return self._epochs.batches(loader)

    def epoch(self, loader: Any) -> int:
        """The number of the epoch that ``batches`` would give now, from 0."""
        return self._epochs.epoch(loader)

    # -- going back ------------------------------------------------------------------------

    def load(self, rev: str | CommitId = "HEAD") -> Resumed:
        """Sets everything that ``save_state`` saves to a version.

        ``Resumed.step`` is the number of the save. Raises CannotResume where the version does
        not fit what was prepared and registered; then nothing has changed.
        """
        commit = self.repo.find(rev)
        resumed = load(self.repo, commit, self._options["name"], self._accelerator, self._epochs)
        self.saves, self._origin = resumed.step, resumed.commit
        return resumed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        complete(self.detach, error)
