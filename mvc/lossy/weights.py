"""Base classes of the stages that compute production weights from training weights.

*Production weights* are near the training weights, but their deltas need fewer bytes. They are
stored exactly.
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
    """One tensor that the stages change from training to production weights. Its arrays are flat.

    *Words* are the bits of numbers, as unsigned integers. ``before``: words of the previous
    production weights (read-only). ``after``: words of the training weights, which the stages
    overwrite. ``exact``: True for entries that stages must not change, because the old or the new
    number is infinite or NaN; None if there are no such entries. ``has_new_level``: a coarser or
    finer form of the stages computed ``before`` (``LossyStage.finer``), so do not reuse its step.
    """

    format: Format
    before: Words
    after: Words
    exact: NDArray[np.bool_] | None
    has_new_level: bool = False

    @classmethod
    def pair(cls, kind: Format, before: Words, after: Words, *, new_level: bool = False) -> Moving:
        """Computes ``exact``. The stages will overwrite the array ``after``."""
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
        """Resets entries to ``before``, except where ``chosen`` or ``exact`` is True."""
        if self.exact is not None:
            chosen = chosen | self.exact
        np.copyto(self.after, self.before, where=~chosen)


class LossyStage(Stage, frozen=True):
    """Makes production weights from training weights and the previous production weights."""

    lossy = True
    rounds_first: ClassVar[bool] = False  # whether it also changes tensors without a predecessor

    @abstractmethod
    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:
        """Changes every ``after`` in place. ``loss``: the loss of the batch; None if unknown."""

    @abstractmethod
    def finer(self) -> LossyStage | None:
        """The stage that changes weights about half as much; None if it would change no weight."""


class ChoosingStage(LossyStage, frozen=True):
    """Chooses which changes are stored, before a delta is formed."""

    accepts = frozenset({Kind.PAIR})
    returns = Kind.CHOSEN
    needs = "to be before the delta"
