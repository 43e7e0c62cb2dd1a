"""What every callback is: a repository, options, and the Recorder of the training that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from msgspec.structs import replace

from mvc.api import Repository
from mvc.errors import WrongUsage
from mvc.frameworks.common.repository import AnyRepository, GivenRepository
from mvc.ids import CommitId
from mvc.lossy import DriftStage, Dsed, TopKOfEach
from mvc.training.checks import Metrics, RecorderKeywords, RecorderOptions
from mvc.training.recorder import Report, StateRecorder, complete
from mvc.training.resume import Resumed
from mvc.training.state.parts import StateSource


class Records:
    """A callback that records trainings, one after the other: ``_begin``, ``_step``, ``close``."""

    resumed: Resumed | None = None
    """Where the training went on, and what was not as before; None if it began anew."""

    _recorder: StateRecorder | None = None
    _report: Report | None = None
    _raised: BaseException | None = None

    def _take_options(
        self, repo: AnyRepository, options: RecorderKeywords, *, every: int = 1
    ) -> RecorderOptions:
        """Raises WrongUsage, NotARepository, InvalidName or InvalidPipeline."""
        self._given = GivenRepository(repo)
        self._options = RecorderOptions.of(options, every)
        return self._options

    @property
    def repo(self) -> Repository:
        return self._given.repo

    @property
    def report(self) -> Report | None:
        """The Recorder's counts for this training or the last one; None before the first."""
        return self._report if self._recorder is None else self._recorder.report

    def _find(self, rev: str | CommitId | None) -> CommitId:
        """The id of ``rev``; without one that of the branch's newest version."""
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
        """Records a training, of which ``start`` steps were done before.

        Every version has the params ``hyper``, unless the user gave others of these names, and the
        ``files``, by their path in the folder of the model.
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
        """``Recorder.step``. What it raises ends the training, and ``close`` does not repeat it."""
        assert self._recorder is not None
        with self._noting_failure():
            return self._recorder.step(loss, batch, metrics, number=number, data=data)

    def flush(self) -> None:
        """Waits until everything that was taken is durable; raises as ``Recorder.flush``."""
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
        """Completes the queued versions. Training that continues is no longer recorded.

        Raises what could not be raised while the training went on.
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
            self._given.close()
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        complete(self.close, error)


# -- what a pipeline asks of a training, and a framework may not show ------------------------------


def stage_by_data(options: RecorderOptions) -> str | None:
    """The first stage that asks for the batch's data."""
    found = options.stages.decisions
    return next((stage.text for stage in found if isinstance(stage, DriftStage | Dsed)), None)


def stage_by_loss(options: RecorderOptions) -> str | None:
    """The stage that goes by the loss of the batch."""
    chosen = [stage for stage in options.stages.lossy if isinstance(stage, TopKOfEach)]
    return next((stage.text for stage in chosen if stage.curve is not None), None)


def refuse_data(options: RecorderOptions, why: str) -> None:
    """Raises WrongUsage naming what asks for the batch's data; ``why`` there are none."""
    stage = stage_by_data(options)
    functions = {"evaluate": options.evaluate, "monitor": options.monitor}
    asks = [f"stage {stage}"] if stage is not None else []
    asks += [name for name, function in functions.items() if function is not None]
    if asks:
        raise WrongUsage(
            f"{asks[0]} goes by the data of the batch, and {why}",
            hint="leave it out, or train in a loop of your own with mvc.Recorder",
        )
