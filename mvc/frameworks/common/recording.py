"""The base class of the callbacks for training frameworks, such as Lightning.

A callback records a training: at each step it passes the state to a Recorder, which commits
versions to a repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from msgspec.structs import replace

from mvc.api import Repository
from mvc.errors import WrongUsage
from mvc.frameworks.common.repository import AnyRepository, RepositoryArgument
from mvc.ids import CommitId
from mvc.lossy import DriftStage, OnNewWeights, TopKOfEach
from mvc.training.checks import Metrics, RecorderKeywords, RecorderOptions
from mvc.training.recorder import Report, StateRecorder, complete
from mvc.training.resume import Resumed
from mvc.training.state.parts import StateSource


class Records:
    """Records one training after another, each by ``_begin``, ``_step`` and ``close``."""

    resumed: Resumed | None = None
    """Where the training resumed, and which conditions differ now. None for a new training."""

    _recorder: StateRecorder | None = None
    _report: Report | None = None
    _raised: BaseException | None = None

    def _set_options(
        self, repo: AnyRepository, options: RecorderKeywords, *, every: int = 1
    ) -> RecorderOptions:
        """Checks and sets the options. ``every``: steps from one version to the next.

        Raises WrongUsage, NotARepository, InvalidName or InvalidPipeline.
        """
        self._repository = RepositoryArgument(repo)
        self._options = RecorderOptions.of(options, every)
        return self._options

    @property
    def repo(self) -> Repository:
        return self._repository.repo

    @property
    def report(self) -> Report | None:
        """The counts of the current or latest training. None before the first training."""
        return self._report if self._recorder is None else self._recorder.report

    def _find(self, rev: str | CommitId | None) -> CommitId:
        """The commit of the revision ``rev``. Without ``rev``, the branch's newest commit."""
        return self.repo.find(self._options.tip if rev is None else rev)

    def _begin(
        self,
        source: StateSource,
        *,
        start: int = 0,
        origin: CommitId | None = None,
        hyper: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Starts recording a training. The first ``start`` steps were done earlier.

        ``hyper``: params of every version; the params of the user take precedence. ``files``:
        additional files of every version. Maps paths relative to the model's folder to the bytes of
        the files.
        """
        own = {"hyper": hyper or {}, "files": files or {}}
        options = replace(self._options, start=start, origin=origin, **own)
        self._recorder = StateRecorder.of(self.repo, source, options)

    def _step(
        self,
        number: int,
        *,
        loss: Any = None,
        batch: Any = None,
        metrics: Metrics | None = None,
        data: Any = None,
    ) -> bool:
        """Calls ``Recorder.step``. If this raises an error, ``close`` does not raise it again."""
        assert self._recorder is not None
        with self._noting_failure():
            return self._recorder.step(loss, batch, metrics, number=number, data=data)

    def flush(self) -> None:
        """Waits until all copied states are durable. Raises the errors of ``Recorder.flush``."""
        if self._recorder is not None:
            with self._noting_failure():
                self._recorder.flush()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as failure:
            self._raised = failure
            raise

    def close(self) -> Report | None:
        """Commits the queued versions and stops recording.

        Raises the error of a failed commit, unless ``_step`` or ``flush`` has raised this error.
        """
        recorder, self._recorder = self._recorder, None
        try:
            if recorder is not None:
                recorder.close()
        except BaseException as failure:
            if failure is not self._raised:
                raise
        finally:
            self._report = self._report if recorder is None else recorder.report
            self._repository.close()
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        complete(self.close, error)


# -- data and losses that a pipeline needs and a framework may not provide --------------------


def stage_by_data(options: RecorderOptions) -> str | None:
    """The first stage of the pipeline that needs the data of each batch; None if none does."""
    return next(
        (
            stage.text
            for stage in options.stages.decisions
            if isinstance(stage, DriftStage | OnNewWeights)
        ),
        None,
    )


def stage_by_loss(options: RecorderOptions) -> str | None:
    """The stage of the pipeline that needs the loss of each batch; None if none does."""
    chosen = [stage for stage in options.stages.lossy if isinstance(stage, TopKOfEach)]
    return next((stage.text for stage in chosen if stage.curve is not None), None)


def refuse_data(options: RecorderOptions, why: str) -> None:
    """Raises WrongUsage if an option needs the data of each batch, which a framework lacks.

    ``why``: the end of the message, which says why the data are not available.
    """
    stage = stage_by_data(options)
    functions = {"evaluate": options.evaluate, "monitor": options.monitor}
    users = [f"stage {stage}"] if stage is not None else []
    users += [name for name, function in functions.items() if function is not None]
    if users:
        raise WrongUsage(
            f"{users[0]} needs the data of the batch, and {why}",
            hint="remove it, or call mvc.Recorder from your own training loop",
        )
