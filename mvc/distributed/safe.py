"""Safe functions: when is a model still near enough to the reference?

A safe function is convex in the drift, and negative where the drift is safe: if the sum of its
values over the workers is not positive, neither is its value at their mean drift. All numbers
are float64: in float32 a quotient of 4.0 becomes 3.9999985, and a counter one too small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

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


class Own(SafeFunction):
    """``f(X) - f(0) - r`` with a convex function f of the user's.

    ``function.value`` and ``function.gradient`` get the drift and the reference, in float64 and
    not writable. Any subgradient will do. It serves ``check``.
    """

    def __init__(self, function: Any, reference: Vector, radius: float) -> None:
        super().__init__(reference, radius)
        self._function, self._reference = function, np.broadcast_to(reference, reference.shape)
        self._zero = float(self._asked("value", np.zeros(len(reference)), ()))

    def reach(self, drift: Vector) -> float:
        return float(self._asked("value", drift, ())) - self._zero

    def check(self) -> None:
        """Raises WrongUsage if it is not safe. Tries its tangents around the end of the safe zone,
        in random directions: a convex function is nowhere below one.
        """
        ways = np.random.default_rng(0).normal(size=(2, len(self._reference)))
        edges = [self._edge(way) for way in (*ways, *-ways)]
        for step, start, way in product((1e-5, -1e-5, 1.0, -1.0), edges, edges[:2]):
            slope = float(np.sum(self._asked("gradient", start, start.shape) * way))
            rise = self.reach(start + step * way) - self.reach(start)
            # But for rounding, of the values and of f(0).
            if rise < step * slope - 1e-10 * (self.radius + abs(rise)) - 1e-13 * abs(self._zero):
                fault = "is not convex" if abs(step) == 1 else "has a wrong gradient"
                raise WrongUsage(
                    f"the safe function {fault}: "
                    f"it rises at {rise / step:.6g} where its gradient says {slope:.6g}"
                )

    def _edge(self, way: Vector) -> Vector:
        """A drift this way that is not safe, at most eight times as long as one that is."""
        for exponent in range(-60, 60, 3):
            if self.reach(drift := way * 2.0**exponent) > self.radius:
                return drift
        raise WrongUsage(
            f"the safe function has no end: a drift of length {norm_of(drift):.0e} is safe"
        )

    def _asked(self, what: str, drift: Vector, shape: tuple[int, ...]) -> NDArray[Any]:
        """The value or the gradient. Raises WrongUsage unless it is finite and of this shape."""
        found = np.asarray(
            getattr(self._function, what)(np.broadcast_to(drift, drift.shape), self._reference)
        )
        if found.shape != shape or found.dtype.kind not in "fiu":
            raise WrongUsage(
                f"the {what} of the safe function is {found.dtype} {found.shape}: "
                f"it must be float64 {shape}"
            )
        if not np.isfinite(found).all():
            raise WrongUsage(f"the {what} of the safe function is not finite")
        return found


SAFE_FUNCTIONS: dict[str, type[SafeFunction]] = {"norm": Norm, "variance": Variance, "cap": Cap}
