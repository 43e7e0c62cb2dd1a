"""Tensors on their way from training to production weights, and the stages that change them.

Such a stage acts when a version is made and leaves no trace in storage: what is stored afterwards
is stored exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import Format, values_of
from mvc.codecs.stage import Kind, Stage
from mvc.codecs.words import Words


class Moving(Struct):
    """One tensor on its way from training to production weights.

    ``before``: words of the production weights so far, not to be written to. ``after``: words
    of the new ones, changed in place. ``exact``: where the new ones are taken over whatever
    happens, because one side is infinite or no number; None if nowhere. All are flat. ``anew``:
    the old ones were made by a finer or coarser form of the stages.
    """

    format: Format
    before: Words
    after: Words
    exact: NDArray[np.bool_] | None
    anew: bool = False

    @classmethod
    def pair(cls, kind: Format, before: Words, after: Words, *, anew: bool = False) -> Moving:
        """``after`` becomes the tensor's own."""
        wild = kind.infinite(before) | kind.infinite(after)
        exact = wild if bool(wild.any()) else None
        return cls(kind, before, after, exact, anew=anew)

    def distance(self) -> NDArray[Any]:
        """|before - after| by entry (float32, or float64 for float64); -1 where ``exact``."""
        with np.errstate(all="ignore"):
            moved: NDArray[Any] = np.subtract(
                values_of(self.before, self.format), values_of(self.after, self.format)
            )
        np.abs(moved, out=moved)
        if self.exact is not None:
            moved[self.exact] = -1
        return moved

    def take_only(self, chosen: NDArray[np.bool_]) -> None:
        """Undoes every change outside ``chosen`` and ``exact``."""
        if self.exact is not None:
            chosen = chosen | self.exact
        np.copyto(self.after, self.before, where=~chosen)


class LossyStage(Stage, frozen=True):
    """Makes production weights of training weights and of the production weights before."""

    lossy = True
    begins: ClassVar[bool] = False  # acts on tensors without a predecessor, as on one of zeros

    @abstractmethod
    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:
        """Changes every ``after`` in place. ``loss``: the batch's; None if it is not known."""

    @abstractmethod
    def finer(self) -> LossyStage | None:
        """The stage that changes weights about half as much; None if that is not at all."""


class ChoosingStage(LossyStage, frozen=True):
    """Chooses what of a change is taken over, before a delta is formed."""

    takes = frozenset({Kind.PAIR})
    gives = Kind.CHOSEN
    needs = "to stand before the delta"
