"""The stages that change training weights to production weights, and the tensors that they change.

*Production weights* are near the training weights, but need fewer bytes as deltas. These stages act
when a version is made. The result is stored exactly.
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
    """One tensor on its way from training weights to production weights. All arrays are flat.

    *Words* are the bits of numbers, as unsigned integers. ``before``: words of the previous
    production weights; do not write to them. ``after``: words of the new weights, changed in place.
    ``exact``: entries that stages must not change, because the old or new number is infinite or not
    a number; None if there are no such entries. ``has_new_level``: stages with another step
    (``LossyStage.finer``) computed ``before``, so the step of ``before`` must not be reused.
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
        """|before - after| of each entry; -1 at ``exact``.

        The dtype is float64 for tensors of float64, else float32.
        """
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
    rounds_first: ClassVar[bool] = False  # whether it changes tensors without a predecessor, too

    @abstractmethod
    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:
        """Changes every ``after`` in place. ``loss``: the loss of the batch; None if unknown."""

    @abstractmethod
    def finer(self) -> LossyStage | None:
        """A stage that changes weights about half as much; None if it would not change any."""


class ChoosingStage(LossyStage, frozen=True):
    """Chooses which changes are stored, before a delta is formed."""

    accepts = frozenset({Kind.PAIR})
    returns = Kind.CHOSEN
    needs = "to be before the delta"
