"""Counts the steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["CountSteps"]


class CountSteps:
    """Counts the steps of all optimizers of torch while its block runs, in ``steps``.

    ``told`` is called with each number.
    """

    def __init__(self, told: Callable[[int], object] | None = None) -> None:
        self.steps = 0
        self._told = told

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._step)
        return self

    def _step(self, *_: object) -> None:
        self.steps += 1
        if self._told is not None:
            self._told(self.steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hook.remove()
