"""watch: records after every step of the optimizer, without a line in the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import torch

from mvc.errors import WrongUsage
from mvc.training.checks import RecorderKeywords
from mvc.training.recorder import Recorder
from mvc.training.resume import Resumed

if TYPE_CHECKING:
    from mvc.api import Repository


class Watching(Recorder):
    """A Recorder whose step the optimizer calls; a second call would record a batch twice."""

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raises WrongUsage."""
        raise WrongUsage(
            "this recorder's step is called by the optimizer already: mvc.watch made it",
            hint="leave the call out, or use mvc.Recorder instead of mvc.watch",
        )

    def batch_ended(self) -> None:
        """Records a step; the optimizer's hook calls this."""
        super().step()


def watch(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    include: Sequence[str] | None = None,
    every: int = 1,
    start: int | Resumed | None = None,
    **options: Unpack[RecorderKeywords],
) -> Recorder:
    """A Recorder whose ``step`` the optimizer calls; ``close`` removes the hook.

    ``options`` are those of Recorder, without scheduler and scaler: these change after the
    optimizer's step, so a version taken during it would be half a batch behind. Raises WrongUsage
    for one of the two, and what Recorder raises.
    """
    for name in ("scheduler", "scaler"):
        if options.get(name) is not None:
            raise WrongUsage(
                f"watch cannot keep a {name}: it changes after the optimizer's step",
                hint="use mvc.Recorder, and call its step at the end of the batch",
            )
    recorder = Watching(
        repo, model, optimizer, include=include, every=every, start=start, **options
    )
    hook = optimizer.register_step_post_hook(lambda *_: recorder.batch_ended())
    recorder.on_close(hook.remove)
    return recorder
