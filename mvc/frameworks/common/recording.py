"""What every callback holds: its repository, its options, and the Recorder of a training."""

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
from mvc.training.recorder import Recorder, Report, complete
from mvc.training.state.parts import StateSource


class Recording:
    """Records the trainings of a callback, one after the other: ``begin``, ``step``, ``close``."""

    def __init__(self, repo: AnyRepository, options: RecorderKeywords, *, every: int = 1) -> None:
        """Raises WrongUsage, NotARepository, InvalidName or InvalidPipeline."""
        self._given = GivenRepository(repo)
        self.options = RecorderOptions.of(options, every)
        self._recorder: Recorder | None = None
        self._report: Report | None = None
        self._raised: BaseException | None = None

    @property
    def repo(self) -> Repository:
        return self._given.repo

    @property
    def running(self) -> bool:
        """Whether steps of this process are recorded."""
        return self._recorder is not None

    @property
    def report(self) -> Report | None:
        """The Recorder's counts for this training or the last one; None before the first."""
        return self._report if self._recorder is None else self._recorder.report

    def find(self, rev: str | CommitId | None) -> CommitId:
        """The id of ``rev``; without one that of the branch's newest version."""
        return self.repo.find(self.options.tip if rev is None else rev)

    def begin(
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
        options = replace(self.options, start=start, origin=origin, **own)
        self._recorder = Recorder.of(self.repo, source, options)

    def step(
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
        """Waits until everything that was taken is durable; raises as ``step``."""
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
        """Completes what is queued, and raises what ``step`` could not raise any more."""
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


class Records:
    """What every callback offers, by its Recording."""

    _recording: Recording

    @property
    def repo(self) -> Repository:
        return self._recording.repo

    @property
    def report(self) -> Report | None:
        """The Recorder's counts for this training or the last one. None before the first."""
        return self._recording.report

    def close(self) -> object:
        """Completes the queued versions. Training that continues is no longer recorded."""
        return self._recording.close()

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
