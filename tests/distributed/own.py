"""Safe functions of a user's own: good ones, and some with a fault each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Weighted:
    """The norm with a weight: with 1, what ``norm`` is."""

    weight: float = 1.0

    def value(self, drift, reference):
        return self.weight * math.sqrt(float(np.sum(np.square(drift))))

    def gradient(self, drift, reference):
        return self.weight**2 * drift / self.value(drift, reference)


class Squares:
    """What ``variance`` is, but for its threshold: r in place of its square."""

    def value(self, drift, reference):
        return np.sum(np.square(drift))

    def gradient(self, drift, reference):
        return 2 * drift


class Cap:
    """What ``cap`` is."""

    def value(self, drift, reference):
        return max(self._sides(drift, reference))

    def gradient(self, drift, reference):
        along, out = self._sides(drift, reference)
        there = drift + reference
        return there / _norm(there) if out > along else -reference / _norm(reference)

    def _sides(self, drift, reference):
        norm = _norm(reference)
        return -float(np.sum(drift * reference)) / norm, _norm(drift + reference) - norm


class Length:
    """The square of the model's norm: large where nothing has moved."""

    def value(self, drift, reference):
        return np.sum(np.square(drift + reference))

    def gradient(self, drift, reference):
        return 2 * (drift + reference)


class Largest:
    """The largest change of a parameter, over one that is 3 where nothing has moved."""

    def value(self, drift, reference):
        return 3 + np.abs(drift).max()

    def gradient(self, drift, reference):
        at = np.arange(len(drift)) == np.abs(drift).argmax()
        return np.where(at, np.sign(drift), 0)


def _norm(vector):
    return math.sqrt(float(np.sum(np.square(vector))))


def faulty(value=Weighted().value, gradient=Weighted().gradient):
    """The norm with another value or gradient."""

    class Faulty:
        def value(self, drift, reference):
            return value(drift, reference)

        def gradient(self, drift, reference):
            return gradient(drift, reference)

    return Faulty()
