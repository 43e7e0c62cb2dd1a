"""What the stages of a pipeline ask of a framework, which may have no answer."""

from __future__ import annotations

from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages.decisions import Drift, Dsed
from mvc.codecs.stages.lossy import TopK
from mvc.errors import WrongUsage

__all__ = ["decisions", "refuse_data", "refuse_decisions", "stage_by_data", "stage_by_loss"]


def decisions(pipeline: str) -> list[str]:
    """The stages that decide whether there is a version. Raises InvalidPipeline."""
    return [stage.text for stage in Pipeline.parse(pipeline).decisions]


def stage_by_data(pipeline: str) -> str | None:
    """The first stage that asks for the batch's data. Raises InvalidPipeline."""
    found = Pipeline.parse(pipeline).decisions
    return next((stage.text for stage in found if isinstance(stage, Drift | Dsed)), None)


def stage_by_loss(pipeline: str) -> str | None:
    """The stage that goes by the loss of the batch. Raises InvalidPipeline."""
    chosen = [stage for stage in Pipeline.parse(pipeline).lossy if isinstance(stage, TopK)]
    return next((stage.text for stage in chosen if stage.curve is not None), None)


def refuse_data(pipeline: str, why: str) -> None:
    """Raises WrongUsage naming the stage that asks for data; ``why`` there are none."""
    stage = stage_by_data(pipeline)
    if stage is not None:
        raise WrongUsage(
            f"stage {stage} goes by the data of the batch, and {why}",
            hint="leave it out, or train in a loop of your own with mvc.Recorder",
        )


def refuse_decisions(pipeline: str, why: str) -> None:
    """Raises WrongUsage naming a stage that may skip a version, and ``why`` none is skipped."""
    found = decisions(pipeline)
    if found:
        raise WrongUsage(
            f"stage {found[0]} decides whether there is a version, but {why}", hint="leave it out"
        )
