"""Safe functions: is the mean of the workers' models close enough to the newest global model?

A worker's *drift* is its model minus the *reference*, the newest global model. A safe function is
convex in the drift, and negative if the drift is safe. If the sum of the function's values over all
workers is at most 0, the function's value at the mean drift is at most 0, too. All numbers are
float64: float32 may turn a quotient of 4.0 into 3.9999985, which a counter rounds down to 3.
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
    """The Euclidean norm. Unlike in BLAS, the number of threads does not change the bits."""
    return math.sqrt(float(np.sum(np.square(vector))))


class SafeFunction(ABC):
    """The value at a drift is ``reach(drift) - radius ** power``.

    Every round creates a new safe function.
    """

    power: ClassVar[int] = 1

    def __init__(self, reference: Vector, radius: float) -> None:  # noqa: ARG002 - for Cap, Own
        """Raises WrongUsage for an invalid radius."""
        if not (0 < radius < math.inf):
            raise WrongUsage(f"the radius is {radius:g}: it must be a positive number")
        self.radius = radius
        self.at_zero = -(radius**self.power)

    @abstractmethod
    def reach(self, drift: Vector) -> float:
        """The size of a drift, to compare with ``radius ** power``; 0 for a drift of zero."""

    def of(self, drift: Vector) -> float:
        return self.reach(drift) + self.at_zero

    def radius_of(self, drifts: Iterable[Vector]) -> float:
        """The radius at which the values of these drifts would sum to zero."""
        mean: float = fmean(map(self.reach, drifts)) ** (1 / self.power)
        return mean


class Norm(SafeFunction):
    """``|X| - r`` for the drift X."""

    def reach(self, drift: Vector) -> float:
        return norm_of(drift)


class Variance(SafeFunction):
    """``|X|^2 - r^2`` for the drift X.

    The sum over the workers is at most 0 if and only if the mean square of the drifts is at most
    r^2.
    """

    power = 2

    def reach(self, drift: Vector) -> float:
        return float(np.sum(np.square(drift)))


class Cap(SafeFunction):
    """The spherical cap ``max(-r - <X,E>/|E|, |X+E| - |E| - r)``.

    X is the drift, E the reference, r the radius. The model X + E is safe if its norm is less than
    ``|E| + r``, and its component along E is more than ``|E| - r``. E must not be zero.
    """

    def __init__(self, reference: Vector, radius: float) -> None:
        self._reference, self._norm = reference, norm_of(reference)
        if self._norm == 0:
            raise WrongUsage(
                "the spherical cap is not defined around a model that is zero everywhere",
                hint="train a little first, or use the safe function norm",
            )
        super().__init__(reference, radius)

    def reach(self, drift: Vector) -> float:
        along = float(np.sum(drift * self._reference)) / self._norm
        return max(-along, norm_of(drift + self._reference) - self._norm)


class Own(SafeFunction):
    """``f(X) - f(0) - r`` with the user's convex function f.

    ``function.value`` and ``function.gradient`` receive the drift and the reference, in float64 and
    read-only. The gradient may be any subgradient. Only ``check`` uses the gradient.
    """

    def __init__(self, function: Any, reference: Vector, radius: float) -> None:
        super().__init__(reference, radius)
        self._function, self._reference = function, np.broadcast_to(reference, reference.shape)
        self._zero = float(self._call("value", np.zeros(len(reference)), ()))

    def reach(self, drift: Vector) -> float:
        return float(self._call("value", drift, ())) - self._zero

    def check(self) -> None:
        """Raises WrongUsage if the function is not convex or its gradient is wrong.

        Compares the function with tangents near the end of the safe zone, in random directions,
        because a convex function is nowhere below a tangent.
        """
        directions = np.random.default_rng(0).normal(size=(2, len(self._reference)))
        edges = [self._edge(direction) for direction in (*directions, *-directions)]
        for step, start, direction in product((1e-5, -1e-5, 1.0, -1.0), edges, edges[:2]):
            slope = float(np.sum(self._call("gradient", start, start.shape) * direction))
            rise = self.reach(start + step * direction) - self.reach(start)
            # The tolerance allows for rounding of the values and of f(0).
            if rise < step * slope - 1e-10 * (self.radius + abs(rise)) - 1e-13 * abs(self._zero):
                fault = "is not convex" if abs(step) == 1 else "has a wrong gradient"
                raise WrongUsage(
                    f"the safe function {fault}: "
                    f"it rises at {rise / step:.6g} where its gradient says {slope:.6g}"
                )

    def _edge(self, direction: Vector) -> Vector:
        """A drift in this direction that is not safe, at most eight times as long as a safe
        drift.
        """
        for exponent in range(-60, 60, 3):
            if self.reach(drift := direction * 2.0**exponent) > self.radius:
                return drift
        raise WrongUsage(
            f"the safe zone has no end: a drift of length {norm_of(drift):.0e} is safe"
        )

    def _call(self, method: str, drift: Vector, shape: tuple[int, ...]) -> NDArray[Any]:
        """The value or the gradient. Raises WrongUsage if the result is not finite or its shape is
        wrong.
        """
        result = np.asarray(
            getattr(self._function, method)(np.broadcast_to(drift, drift.shape), self._reference)
        )
        if result.shape != shape or result.dtype.kind not in "fiu":
            raise WrongUsage(
                f"the {method} of the safe function is {result.dtype} {result.shape}: "
                f"it must be float64 {shape}"
            )
        if not np.isfinite(result).all():
            raise WrongUsage(f"the {method} of the safe function is not finite")
        return result


SAFE_FUNCTIONS: dict[str, type[SafeFunction]] = {"norm": Norm, "variance": Variance, "cap": Cap}
