"""Safe functions and their thresholds: when is a model still near enough to the reference?

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
from msgspec import Struct
from numpy.typing import NDArray

from mvc.errors import WrongUsage

Vector = NDArray[np.float64]


def norm_of(vector: Vector) -> float:
    """The Euclidean norm. The order of additions does not depend on threads, as BLAS's may."""
    return math.sqrt(float(np.sum(np.square(vector))))


class SafeFunction(ABC):
    """How far a drift reaches, less ``radius ** power``. One is made for each round."""

    name: ClassVar[str]
    power: ClassVar[int] = 1

    def __init__(self, reference: Vector, radius: float) -> None:
        """Raises WrongUsage if nothing would be safe."""
        self.radius = radius
        if not (0 < radius < math.inf):
            raise WrongUsage(f"the radius is {radius:g}: it must be a positive number")
        self.prepare(reference)
        self.at_zero = self.of(np.zeros_like(reference))

    def prepare(self, reference: Vector) -> None:  # noqa: B027 - most need nothing
        """Keeps what the function needs to know of the reference."""

    @abstractmethod
    def reach(self, drift: Vector) -> float:
        """How far this drift reaches; zero for none."""

    def of(self, drift: Vector) -> float:
        return self.reach(drift) - self.radius**self.power

    def radius_of(self, drifts: Iterable[Vector]) -> float:
        """The radius at which the values of these drifts would add up to zero."""
        mean: float = fmean(map(self.reach, drifts)) ** (1 / self.power)
        return mean


class Norm(SafeFunction):
    """``|X| - r``."""

    name = "norm"

    def reach(self, drift: Vector) -> float:
        return norm_of(drift)


class Variance(SafeFunction):
    """``|X|^2 - r^2``: the sum is at most 0 if and only if the mean square of the drifts is r^2."""

    name = "variance"
    power = 2

    def reach(self, drift: Vector) -> float:
        return float(np.sum(np.square(drift)))


class Cap(SafeFunction):
    """The spherical cap ``max(-r - <X,E>/|E|, |X+E| - |E| - r)`` with ``r = T|E|``.

    What is safe contains the ball of radius r around the reference, and has about the
    reference's norm. It is not defined where the reference is zero.
    """

    name = "cap"

    def prepare(self, reference: Vector) -> None:
        self._reference = reference
        self._norm = norm_of(reference)
        if self._norm == 0:
            raise WrongUsage(
                "the spherical cap is not defined around a model that is zero everywhere",
                hint="train a little first, or take the safe function norm",
            )

    def reach(self, drift: Vector) -> float:
        along = float(np.sum(drift * self._reference)) / self._norm
        moved = norm_of(drift + self._reference)
        return max(-along, moved - self._norm)


SAFE_FUNCTIONS: dict[str, type[SafeFunction]] = {each.name: each for each in (Norm, Variance, Cap)}


PERIOD = 40
"""Updates in which a threshold is found where none is given."""


class Threshold(Struct, frozen=True):
    """How far a model may move, in one of four units.

    ``radius``: the distance r itself. ``relative``: T, with ``r = T|E|`` anew for each round.
    ``rho``: ``r = rho * rate * sqrt(n)`` with the learning rate and the number of parameters:
    about the number of steps straight ahead, so that it holds for other rates and networks.
    ``period``: r is found in the training, as how far the workers' models go in so many updates;
    ``PERIOD`` if nothing is given.
    """

    radius: float | None = None
    relative: float | None = None
    rho: float | None = None
    rate: float | None = None
    period: int | None = None

    def __post_init__(self) -> None:
        """Raises WrongUsage unless at most one unit is given, positive, and rho with a rate."""
        units = (self.radius, self.relative, self.rho, self.period)
        given = [each for each in units if each is not None]
        if len(given) > 1:
            raise WrongUsage("give the threshold as one of radius, relative (T), rho and period")
        if given and not (0 < given[0] < math.inf):
            raise WrongUsage(f"the threshold is {given[0]:g}: it must be a positive number")
        if self.rho is not None and self.rate is None:
            raise WrongUsage(
                "a threshold in rho needs the learning rate",
                hint="--rate, or join(model, optimizer) in the script",
            )
        if self.rate is not None and not (0 < self.rate < math.inf):
            raise WrongUsage(f"the learning rate is {self.rate:g}: it must be a positive number")

    @property
    def steps(self) -> int | None:
        """In how many updates the radius is found; None if it is given."""
        if (self.radius, self.relative, self.rho) == (None, None, None):
            return self.period or PERIOD
        return None

    def radius_at(self, reference: Vector, found: float | None = None) -> float | None:
        """The radius r of a round that begins with this reference; None while it is unknown.

        ``found``: what the training has found.
        """
        if self.radius is not None:
            return self.radius
        if self.relative is not None:
            return self.relative * norm_of(reference)
        if self.rho is None or self.rate is None:
            return found
        return self.rho * self.rate * math.sqrt(len(reference))

    def describe(self, reference: Vector, found: float | None = None) -> str:
        """All three units, as far as they are known: ``r = 0.5, T = 0.03, rho = 12``."""
        radius, norm = self.radius_at(reference, found), norm_of(reference)
        if radius is None:
            return f"r is found in the first {self.steps} updates"
        relative = f"{radius / norm:.4g}" if norm else "not defined (the model is zero)"
        rho = "unknown (no learning rate)"
        if self.rate is not None:
            rho = f"{radius / (self.rate * math.sqrt(len(reference))):.4g}"
        return f"r = {radius:.4g}, T = {relative}, rho = {rho}"
