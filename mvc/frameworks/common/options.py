"""What a pipeline asks of a training, and a framework may not show."""

from __future__ import annotations

from mvc.errors import WrongUsage
from mvc.lossy.decisions import DriftStage, Dsed
from mvc.lossy.topk import TopKOfEach
from mvc.training.checks import RecorderOptions


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
