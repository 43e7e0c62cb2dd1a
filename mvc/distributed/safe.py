"""Safe functions: when is a model still near enough to the reference?

A safe function is convex in the drift, and negative where the drift is safe: if the sum of its
values over the workers is not positive, neither is its value at their mean drift. All numbers
are float64: in float32 a quotient of 4.0 becomes 3.9999985, and a counter one too small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from statistics import fmean
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mvc.errors import WrongUsage

Vector = NDArray[np.float64]


def norm_of(vector: Vector) -> float:
    """The Euclidean norm. The order of additions does not depend on threads, as BLAS's may."""
    return math.sqrt(float(np.sum(np.square(vector))))


class SafeFunction(ABC):
    """How far a drift reaches, less ``radius ** power``. One is made for each round."""

    power: ClassVar[int] = 1

    def __init__(self, reference: Vector, radius: float) -> None:  # noqa: ARG002 - the cap's
        """Raises WrongUsage if nothing would be safe."""
        if not (0 < radius < math.inf):
            raise WrongUsage(f"the radius is {radius:g}: it must be a positive number")
        self.radius = radius
        self.at_zero = -(radius**self.power)

    @abstractmethod
    def reach(self, drift: Vector) -> float:
        """How far this drift reaches; zero for none."""

    def of(self, drift: Vector) -> float:
        return self.reach(drift) + self.at_zero

    def radius_of(self, drifts: Iterable[Vector]) -> float:
        """The radius at which the values of these drifts would add up to zero."""
        mean: float = fmean(map(self.reach, drifts)) ** (1 / self.power)
        return mean


class Norm(SafeFunction):
    """``|X| - r``."""

    def reach(self, drift: Vector) -> float:
        return norm_of(drift)


class Variance(SafeFunction):
    """``|X|^2 - r^2``: the sum is at most 0 if and only if the mean square of the drifts is r^2."""

    power = 2

    def reach(self, drift: Vector) -> float:
        return float(np.sum(np.square(drift)))


class Cap(SafeFunction):
    """The spherical cap ``max(-r - <X,E>/|E|, |X+E| - |E| - r)`` with ``r = T|E|``.

    What is safe contains the ball of radius r around the reference, and has about the
    reference's norm. It is not defined where the reference is zero.
    """

    def __init__(self, reference: Vector, radius: float) -> None:
        self._reference, self._norm = reference, norm_of(reference)
        if self._norm == 0:
            raise WrongUsage(
                "the spherical cap is not defined around a model that is zero everywhere",
                hint="train a little first, or take the safe function norm",
            )
        super().__init__(reference, radius)

    def reach(self, drift: Vector) -> float:
        along = float(np.sum(drift * self._reference)) / self._norm
        return max(-along, norm_of(drift + self._reference) - self._norm)


SAFE_FUNCTIONS: dict[str, type[SafeFunction]] = {"norm": Norm, "variance": Variance, "cap": Cap}
