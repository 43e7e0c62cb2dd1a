"""Stages that change the production weights before they are deployed and stored.

They act when a version is made (``mvc.codecs.reduce``) and leave no trace in storage:
what is stored afterwards is stored exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

from mvc.codecs.lossy import grid, topk
from mvc.codecs.lossy.floats import FRACTION, Weights
from mvc.codecs.stages.base import Kind, Stage, number, plain, read_options, whole
from mvc.errors import InvalidPipeline, WrongUsage

_HOLD, _FINE = "0.52", "0.5"


class LossyStage(Stage, frozen=True):
    """Makes production weights of training weights and of the production weights before."""

    lossy = True
    begins: ClassVar[bool] = False  # acts on tensors without a predecessor, as on one of zeros

    @abstractmethod
    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:
        """Changes every ``after`` in place. ``loss``: the batch's; None if it is not known."""


class _Chooses(LossyStage, frozen=True):
    takes = frozenset({Kind.PAIR})
    gives = Kind.CHOSEN
    needs = "to stand before the delta"


class TopK(_Chooses, frozen=True):
    """Per tensor, only the entries that changed most (thesis §3.2.2, Eq. 3.1 to 3.3).

    ``share`` and ``least`` are shares of entries; ``curve`` is None without adaptation to
    the loss, else the l of the curve (0 for linear). ``carry``: the loss is the sum over
    the saves that were skipped.
    """

    share: Decimal
    least: Decimal
    curve: Decimal | None
    carry: bool
    usage = "topk:P[,min=M][,loss=linear|L][,carry]"
    about = "lossy: per tensor, takes over the share P of entries that changed most"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("min", "loss"), ("carry",))
        share, least, text = _shares(name, first, options)
        curve = None
        if "loss" in options:
            linear = options["loss"] == "linear"
            curve = number(name, "loss", "0" if linear else options["loss"], "-1000", "1000")
            text += f",loss={plain(curve) if curve else 'linear'}"
        carry = "carry" in options
        if carry and curve is None:
            raise InvalidPipeline(
                f"stage {name}: carry adds up losses, and needs loss=linear or loss=L"
            )
        return cls(text + (",carry" if carry else ""), share, least, curve, carry)

    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:
        share: Decimal | Fraction = self.share
        if self.curve is not None:
            if loss is None:
                raise WrongUsage(
                    f"stage {self.text} needs the loss of the batch",
                    hint="pass it: loss=X to a Recorder's step, metrics={'loss': X} to commit, "
                    "--metric loss=X to 'mvc commit'",
                )
            share = topk.share_at(loss, self.share, self.least, self.curve)
        topk.reduce(weights, share, self.least)


class TopKOfAll(_Chooses, frozen=True):
    """The entries that changed most of all tensors together, and some of every tensor."""

    share: Decimal
    least: Decimal
    usage = "topk-all:P[,min=M]"
    about = "lossy: of all tensors together, takes over the share P that changed most"
    scope = "group"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("min",), ())
        share, least, text = _shares(name, first, options)
        return cls(text, share, least)

    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:  # noqa: ARG002
        topk.reduce_all(weights, self.share, self.least)


class Grid(_Chooses, frozen=True):
    """Rounds weights to a grid; ``mvc.codecs.lossy.grid`` describes the three numbers."""

    coarse: Decimal
    hold: Decimal
    fine: Decimal
    usage = "grid:C[,hold=H][,fine=F]"
    about = "lossy: rounds to steps of about C standard deviations, finer in small tensors"
    begins = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("hold", "fine"), ())
        coarse = number(name, "C", first, "0.000001", "16")
        hold = number(name, "hold", options.get("hold", _HOLD), "0.5", "1")
        fine = number(name, "fine", options.get("fine", _FINE), "0", "1")
        shown = "" if plain(hold) == _HOLD else f",hold={plain(hold)}"
        shown += "" if plain(fine) == _FINE else f",fine={plain(fine)}"
        return cls(f"{name}:{plain(coarse)}{shown}", coarse, hold, fine)

    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:  # noqa: ARG002
        grid.reduce(weights, float(self.coarse), float(self.hold), float(self.fine))


class ResetBits(LossyStage, frozen=True):
    """Resets the ``low`` lowest bits of a float32's change; with ``high``, only of large changes.

    Other dtypes keep as many fraction bits as a float32 does, at most what they have.
    """

    low: int
    high: int
    usage = "lsb:N[,msb=M]"
    about = "lossy: resets the N lowest bits of a change (msb: of changes in the M highest bits)"
    takes = frozenset({Kind.PATTERNS})
    gives = Kind.RESET
    needs = "xor directly before it"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("msb",), ())
        low = whole(name, "N", first, 1, FRACTION)
        high = whole(name, "msb", options["msb"], 1, FRACTION) if "msb" in options else 0
        return cls(f"{name}:{low}{f',msb={high}' if high else ''}", low, high)

    def reduce(self, weights: Sequence[Weights], loss: float | None) -> None:  # noqa: ARG002
        for tensor in weights:
            tensor.reset_bits(self.low, self.high)


def _shares(name: str, first: str, options: dict[str, str]) -> tuple[Decimal, Decimal, str]:
    """The share P, the least share ``min``, and the text of the stage so far."""
    share = number(name, "P", first, "0", "1")
    least = number(name, "min", options.get("min", "0"), "0", "1")
    return share, least, f"{name}:{plain(share)}" + (f",min={plain(least)}" if least else "")
