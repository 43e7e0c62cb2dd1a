"""Tensors that change from training weights to production weights, and the stages that change them.

These stages act when a version is made. The result is stored exactly.
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
    """One tensor that changes from training to production weights. All arrays are flat.

    *Words* are numbers as unsigned integers. ``before``: words of the previous production weights;
    do not write to them. ``after``: words of the new weights, changed in place. ``exact``: entries
    that stages must not change, because the old or new number is infinite or not a number; None if
    there are none. ``has_new_level``: stages with another step (``LossyStage.finer``) computed
    ``before``, so its step must not be reused.
    """

    format: Format
    before: Words
    after: Words
    exact: NDArray[np.bool_] | None
    has_new_level: bool = False

    @classmethod
    def pair(cls, kind: Format, before: Words, after: Words, *, new_level: bool = False) -> Moving:
        """The stages will overwrite ``after``."""
        wild = kind.infinite(before) | kind.infinite(after)
        exact = wild if bool(wild.any()) else None
        return cls(kind, before, after, exact, has_new_level=new_level)

    def distance(self) -> NDArray[Any]:
        """|before - after| of each entry (float32, or float64 for float64); -1 at ``exact``."""
        with np.errstate(all="ignore"):
            distance_: NDArray[Any] = np.subtract(
                values_of(self.before, self.format), values_of(self.after, self.format)
            )
        np.abs(distance_, out=distance_)
        if self.exact is not None:
            distance_[self.exact] = -1
        return distance_

    def restrict_to(self, chosen: NDArray[np.bool_]) -> None:
        """Undoes every change outside ``chosen`` and ``exact``."""
        if self.exact is not None:
            chosen = chosen | self.exact
        np.copyto(self.after, self.before, where=~chosen)


class LossyStage(Stage, frozen=True):
    """Makes production weights from training weights and the previous production weights."""

    lossy = True
    rounds_first: ClassVar[bool] = False  # changes tensors without a predecessor, too

    @abstractmethod
    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:
        """Changes every ``after`` in place. ``loss``: of the batch; None if unknown."""

    @abstractmethod
    def finer(self) -> LossyStage | None:
        """The stage that changes weights about half as much; None if it would change none."""


class ChoosingStage(LossyStage, frozen=True):
    """Chooses which changes are stored, before a delta is formed."""

    accepts = frozenset({Kind.PAIR})
    returns = Kind.CHOSEN
    needs = "to be before the delta"
