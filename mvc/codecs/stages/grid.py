"""The frontier's stages: production weights on a grid, and deltas in whole steps of it.

``grid`` chooses the weights, ``steps`` is the delta between two of them, ``gaps`` codes
which entries moved, and ``lattice`` is what full records are coded with. Where a tensor is on
no grid (integers, entries taken over exactly, the first version of a constant one) a delta is
an exclusive or, coded as byte planes. Nothing of this is in the thesis but the idea to
quantise instead of resetting bits (its future work).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy import bool_
from numpy.typing import NDArray

from mvc.codecs import words
from mvc.codecs.stages.base import CODINGS_2, Kind, Stage, number, plain, read_options
from mvc.codecs.stages.compress import Compressor
from mvc.codecs.stages.deltas import Operator
from mvc.codecs.stages.lossy import LossyStage
from mvc.codecs.stages.rearrange import Planes
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor
from mvc.codecs.words import Words
from mvc.errors import InvalidPipeline

if TYPE_CHECKING:
    from decimal import Decimal

    from mvc.codecs.lossy.floats import Weights

__all__ = ["Gaps", "Grid", "Lattice", "OnGrid", "Steps"]

_HOLD = "0.52"
_FINE = "0.5"


@dataclass(frozen=True)
class Grid(LossyStage):
    """Rounds weights to multiples of a power of two near ``coarse`` standard deviations.

    An entry that is within ``hold`` steps of its production weight keeps it. Steps of smaller
    tensors than the largest are finer by the power ``fine`` of the ratio of their sizes.
    """

    coarse: Decimal
    hold: Decimal
    fine: Decimal
    usage = "grid:C[,hold=H][,fine=F]"
    about = "lossy: rounds to steps of about C standard deviations, finer in small tensors"
    takes = frozenset({Kind.PAIR})
    gives = Kind.CHOSEN
    needs = "to stand before the delta"
    begins = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """``grid:C[,hold=H][,fine=F]``."""
        first, options = read_options(name, parameter, ("hold", "fine"), ())
        coarse = number(name, "C", first, "0.000001", "16")
        hold = number(name, "hold", options.get("hold", _HOLD), "0.5", "1")
        fine = number(name, "fine", options.get("fine", _FINE), "0", "1")
        shown = "" if plain(hold) == _HOLD else f",hold={plain(hold)}"
        shown += "" if plain(fine) == _FINE else f",fine={plain(fine)}"
        return cls(f"{name}:{plain(coarse)}{shown}", coarse, hold, fine)

    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:  # noqa: ARG002
        """As ``LossyStage.reduce``."""
        from mvc.codecs.lossy import grid

        grid.reduce(weights, float(self.coarse), float(self.hold), float(self.fine))


class Steps(Operator):
    """Whole steps on a tensor's grid; patterns where it is on none."""

    usage = "steps"
    about = "delta: whole steps on a tensor's grid (exclusive or where it is on none)"
    gives = Kind.STEPS
    feature = CODINGS_2

    def encode(self, new: Words, base: Words, out: Words) -> None:
        """``out`` = the patterns that tell what changed."""
        words.difference("xor", new, base, out)

    def decode(self, state: Words, delta: Words, *, reverse: bool) -> None:
        """Moves ``state`` along patterns in place."""
        words.move("xor", state, delta, reverse=reverse)


class OnGrid(Planes, ABC):
    """What codes words on a grid; byte planes for all others."""

    feature = CODINGS_2

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """No parameter."""
        if parameter:
            raise InvalidPipeline(f"stage {name} takes no parameter, not {parameter!r}")
        return cls(name)

    @abstractmethod
    def encode_grid(
        self, new: Words, base: Words, changed: NDArray[bool_], compressor: Compressor | None
    ) -> Parts | None:
        """Parts to be joined; None for words on no grid. Without a base it is ``new`` itself."""

    @abstractmethod
    def decode_grid(
        self, cursor: Cursor, state: Words, compressor: Compressor | None, *, reverse: bool
    ) -> Words:
        """The patterns that move ``state``, or for full records the words themselves."""


class Gaps(OnGrid):
    """The gaps between the entries that moved, and how many steps each moved."""

    usage = "gaps"
    about = "codes steps: Rice codes of the gaps between the entries that moved, and signs"
    takes = frozenset({Kind.STEPS})
    needs = "the steps of the stage steps before it"
    delta = True

    def full(self) -> Stage | None:
        """Full records hold the multiples themselves."""
        return Lattice("lattice")

    def encode_grid(
        self, new: Words, base: Words, changed: NDArray[bool_], compressor: Compressor | None
    ) -> Parts | None:
        """As ``OnGrid.encode_grid``."""
        from mvc.codecs import steps

        return steps.encode_delta(new, base, changed, compressor)

    def decode_grid(
        self, cursor: Cursor, state: Words, compressor: Compressor | None, *, reverse: bool
    ) -> Words:
        """As ``OnGrid.decode_grid``."""
        from mvc.codecs import steps

        return steps.apply_delta(cursor, state, reverse=reverse, compressor=compressor)


class Lattice(OnGrid):
    """The multiples of a tensor on a grid."""

    usage = "lattice"
    about = "full records on a grid: how many steps every entry is from zero"
    takes = frozenset({Kind.TENSOR})
    needs = "to stand first, without a delta"

    def encode_grid(
        self,
        new: Words,
        base: Words,  # noqa: ARG002
        changed: NDArray[bool_],  # noqa: ARG002
        compressor: Compressor | None,
    ) -> Parts | None:
        """As ``OnGrid.encode_grid``."""
        from mvc.codecs import steps

        return steps.encode_full(new, compressor)

    def decode_grid(
        self,
        cursor: Cursor,
        state: Words,
        compressor: Compressor | None,
        *,
        reverse: bool,  # noqa: ARG002
    ) -> Words:
        """As ``OnGrid.decode_grid``."""
        from mvc.codecs import steps

        return steps.decode_full(cursor, len(state), state.itemsize, compressor)
