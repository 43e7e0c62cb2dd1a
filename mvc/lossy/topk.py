"""Top-K: lossy stages that store only the entries of tensors that changed most.

All other entries keep their values of the previous version (thesis §3.2.2). docs/pipelines.md
describes the stages. The share of stored entries may depend on the loss. A curve from (0, 0) to
(1, 1) with the parameter l maps the loss to the share. For l = 0 the curve is a straight line. For
l < 0 the curve is 1 - g(x), and for l > 0 it is g(1 - x), where

    g(x) = m (1 - x) / (x + m)

and m is the positive root of |l| m (1 + m) = 1. The curve differs from equation 3.3 of the thesis,
because equation 3.3 does not pass through (0, 0) and (1, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mvc.codecs.stage import Stage, number, plain, read_options
from mvc.errors import InvalidPipeline, WrongUsage
from mvc.lossy.weights import ChoosingStage, LossyStage, Moving

LOUB = Decimal("0.5")
"""The loss upper bound of the thesis: from this loss on, the full share P is stored."""

_SAMPLE = 1 << 13
_MARGIN = 5  # margin of a sampled quantile, in standard deviations


class _TopK(ChoosingStage, frozen=True):
    share: Decimal
    least: Decimal

    def finer(self) -> LossyStage | None:
        share = 2 * self.share
        head, comma, options = self.text.partition(",")
        text = f"{head.partition(':')[0]}:{plain(share)}{comma}{options}"
        return None if share >= 1 else replace(self, text=text, share=share)


class TopKOfEach(_TopK, frozen=True):
    """lossy: per tensor, stores only the share P of entries that changed most

    ``share`` and ``least``: the largest and the smallest share of entries to store. ``curve``: the
    parameter l of the curve, or None if the share does not depend on the loss. ``loub``: if the
    loss is ``loub`` or more, the share is ``share``.
    """

    curve: Decimal | None
    loub: Decimal
    usage = "topk:P[,min=M][,loss=linear|L][,loub=B]"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("min", "loss", "loub"), ())
        share, least, text = _shares(name, first, options)
        curve, loub_text = None, options.get("loub", str(LOUB))
        loub = number(name, "loub", loub_text, low="0.0001", high="1000000")
        if "loss" in options:
            linear = options["loss"] == "linear"
            curve = number(
                name, "loss", "0" if linear else options["loss"], low="-1000", high="1000"
            )
            text += f",loss={plain(curve) if curve else 'linear'}"
        elif "loub" in options:
            raise InvalidPipeline(f"stage {name}: loub is for losses, and needs loss=linear or L")
        text += f",loub={plain(loub)}" if loub != LOUB else ""
        return cls(text, share, least, curve=curve, loub=loub)

    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:
        share: Decimal | Fraction = self.share
        if self.curve is not None:
            if loss is None:
                raise WrongUsage(
                    f"stage {self.text} needs the loss of the batch",
                    hint="pass it: loss=X to a Recorder's step, metrics={'loss': X} to commit, "
                    "--metric loss=X to 'mvc commit'",
                )
            share = share_at(loss, self.share, self.least, self.curve, loub=self.loub)
        sizes = [len(tensor.after) for tensor in weights]
        for tensor, k in zip(weights, counts(sizes, share, self.least), strict=True):
            tensor.restrict_to(largest(tensor.distance(), k))


class TopKOfAll(_TopK, frozen=True):
    """lossy: of all tensors together, stores only the share P that changed most

    So that small tensors change, too, each tensor stores at least ``least`` * n of its entries. n
    is the number of entries of the largest tensor. If entries changed equally, the entry in the
    earlier tensor, or with the smaller index, is stored.
    """

    usage = "topk-all:P[,min=M]"
    scope = "group"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("min",), ())
        share, least, text = _shares(name, first, options)
        return cls(text, share, least)

    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:  # noqa: ARG002
        if not weights:
            return
        sizes = [len(tensor.after) for tensor in weights]
        floor = math.floor(Fraction(self.least) * max(sizes))
        distances = [tensor.distance() for tensor in weights]
        chosen = largest(np.concatenate(distances), math.ceil(Fraction(self.share) * sum(sizes)))
        parts = np.split(chosen, np.cumsum(sizes)[:-1])
        for tensor, distance, own in zip(weights, distances, parts, strict=True):
            if int(np.count_nonzero(own)) < floor:
                own |= largest(distance, floor)
            tensor.restrict_to(own)


def _shares(name: str, first: str, options: dict[str, str]) -> tuple[Decimal, Decimal, str]:
    """The share P, the least share ``min``, and the text of the stage so far."""
    share = number(name, "P", first, low="0", high="1")
    least = number(name, "min", options.get("min", "0"), low="0", high="1")
    return share, least, f"{name}:{plain(share)}" + (f",min={plain(least)}" if least else "")


def counts(sizes: Sequence[int], share: Decimal | Fraction, least: Decimal | Fraction) -> list[int]:
    """For each tensor, the number of entries that change.

    The number is min(size, max(ceil(share * size), floor(largest size * least))). Equation 3.1 of
    the thesis has min in place of max. Shares are exact fractions, so that rounding errors do not
    increase the result of ceil.
    """
    floor = math.floor(Fraction(least) * max(sizes, default=0))
    exact = Fraction(share)
    return [min(size, max(math.ceil(exact * size), floor)) for size in sizes]


def largest(distance: NDArray[Any], k: int) -> NDArray[np.bool_]:
    """Marks the ``k`` largest entries of ``distance``. Of equal entries, marks the first."""
    if not 0 < k < len(distance):
        return np.full(len(distance), k > 0)
    bound = _bound(distance, k)
    marked: NDArray[np.bool_] = distance > bound
    missing = k - int(np.count_nonzero(marked))
    marked[np.flatnonzero(distance == bound)[:missing]] = True
    return marked


def _bound(distance: NDArray[Any], k: int) -> Any:
    """The k-th largest entry.

    If there are many entries, first estimates a lower bound of the result from a sample. Then only
    the entries above the lower bound are partitioned.
    """
    if len(distance) > 4 * _SAMPLE:
        sample = np.sort(distance[:: len(distance) // _SAMPLE])
        below = len(sample) * (1 - k / len(distance))
        spread = _MARGIN * math.sqrt(below * k / len(distance))
        upper = distance[distance >= sample[max(0, int(below - spread))]]
        if len(upper) >= k:
            distance = upper
    return np.partition(distance, len(distance) - k)[len(distance) - k]


def offset(bend: float) -> float:
    """m, the positive root of |bend| m (1 + m) = 1. ``bend`` must not be 0."""
    b = abs(bend)
    return 2 / (b * (math.sqrt(1 + 4 / b) + 1))


def curve(x: float, bend: float) -> float:
    """The curve for x from 0 to 1. It increases from 0 to 1."""
    if bend == 0:
        return x
    m = offset(bend)
    if bend < 0:
        return x * (1 + m) / (x + m)
    return x * m / (1 - x + m)


def share_at(
    loss: float, share: Decimal, least: Decimal, bend: Decimal, *, loub: Decimal = LOUB
) -> Fraction:
    """The share of entries to store: ``least`` at a loss of 0, ``share`` from the loss ``loub`` on.

    A loss of NaN counts as high. The loss and the curve are rounded to seven digits, the precision
    of a float32. So a loss of 0.1 in float32 counts as exactly a tenth.
    """
    top, x = Fraction(loub), Fraction(1)
    if loss < top:  # False for NaN
        x = min(_decimal(max(loss, 0.0)) / top, x)
    y = _decimal(curve(float(x), float(bend))) if bend else x
    low = Fraction(least)
    return y * (Fraction(share) - low) + low


def _decimal(number: float) -> Fraction:
    return Fraction(f"{number:.7g}")
