"""The share of entries that Top-K keeps, as a curve over the loss (thesis §3.2.2, Eq. 3.2 and 3.3).

The thesis's printed Eq. 3.3 does not pass through (0, 0) and (1, 1). With b = |l| and m the
positive root of b m (1 + m) = 1,

    g(x) = 1 / (b (x + m)) - m = m (1 - x) / (x + m)

falls from 1 to 0; the second form has no difference of near-equal numbers. Then f(x) = x is
the linear curve, 1 - g(x) for l < 0 lies above it, g(1 - x) for l > 0 below. l = 0 is the
limit of both: linear.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

__all__ = ["HIGHEST_LOSS", "curve", "offset", "share_at"]

HIGHEST_LOSS = 0.5
"""The loss from which on the whole share is kept."""


def offset(bend: float) -> float:
    """m, the root of |bend| m (1 + m) = 1; ``bend`` is not 0."""
    b = abs(bend)
    return 2 / (b * (math.sqrt(1 + 4 / b) + 1))


def curve(x: float, bend: float) -> float:
    """f(x) for x from 0 to 1: 0 at 0, 1 at 1, increasing."""
    if bend == 0:
        return x
    m = offset(bend)
    if bend < 0:
        return x * (1 + m) / (x + m)
    return x * m / (1 - x + m)


def share_at(loss: float, share: Decimal, least: Decimal, bend: Decimal) -> Fraction:
    """p: ``least`` at a loss of 0, ``share`` from ``HIGHEST_LOSS`` on.

    A loss that is no number counts as high: the weights moved by more than can be said.
    Seven digits of the loss and of the curve count, as many as a float32 has: a loss of 0.1
    is a tenth, although no binary number is.
    """
    known = HIGHEST_LOSS if math.isnan(loss) else min(max(loss, 0.0), HIGHEST_LOSS)
    x = _decimal(known) / Fraction(HIGHEST_LOSS)
    y = _decimal(curve(float(x), float(bend))) if bend else x
    low = Fraction(least)
    return y * (Fraction(share) - low) + low


def _decimal(number: float) -> Fraction:
    return Fraction(f"{number:.7g}")
