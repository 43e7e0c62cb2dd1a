"""The formulas of optimizers' steps, each a fixed sequence of IEEE operations.

A formula takes arrays of equal length and numbers, both of one dtype (float32 or float64), and
rounds after each operation, to nearest with ties to even; so every machine computes the same bits.
Division and square root are IEEE's as well. ``fma`` stands where kernels of torch multiply and add
with one rounding. A formula never asks for the sign or payload of a NaN, and no operation's result
depends on which of two zeros or NaNs a processor returns.

The formulas of a table begin with the base, then take the inputs, then the numbers.
``docs/format.md`` states each of them once more, for readers that are written from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from mvc.codecs.floats import Numbers

Formula = Callable[..., Numbers]

_SPLIT = np.float64(2**27 + 1)


class Rule(Struct, frozen=True):
    """A formula and what it takes: ``inputs`` arrays beside the base, and ``numbers``.

    ``wide``: the numbers are float64 whatever the arrays are, as in torch's fused kernels on GPUs.
    ``signed``: the first number is the gradient's sign, an array of ones, from a bitmap; ``falls``
    says whether a greater gradient makes the result less.
    """

    formula: Formula
    inputs: int
    numbers: int
    wide: bool = False
    signed: bool = False
    falls: bool = False


def fma(a: Any, b: Numbers, c: Numbers) -> Numbers:
    """``a * b + c``: float32 in float64 and rounded once more; float64 by exact product and sum."""
    if c.dtype != np.float64:
        wide: Numbers = np.multiply(b, a, dtype=np.float64)
        wide += c
        return wide.astype(np.float32)
    product, rest = _product(a, b)
    total = product + c
    other = total - product
    rest += (product - (total - other)) + (c - other)
    total += rest
    return total


def _product(a: Any, b: Numbers) -> tuple[Numbers, Numbers]:
    """``a * b`` in float64, and what rounding cost (Dekker)."""
    product = a * b
    high_a, high_b = a * _SPLIT, b * _SPLIT
    high_a = high_a - (high_a - a)
    high_b = high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, rest


def greater(a: Numbers, b: Numbers) -> Numbers:
    """``b`` where it is greater, else ``a``."""
    larger: Numbers = np.where(b > a, b, a)
    return larger


def _gradient(m: Numbers, old: Numbers, c: Any) -> Numbers:
    """The gradient between two first moments, where each is the one before plus c of the way."""
    gradient: Numbers = old + (m - old) / c
    return gradient


DECAYS: dict[str, Formula] = {
    "": lambda w, d: w if d == 1 else d * w,
    "s": lambda w, d: w - d * w,
    "f": lambda w, d: fma(-d, w, w),
}
"""Decoupled weight decay: what is left of the weights before the step."""

STEPS: dict[str, Formula] = {
    "1": lambda w, m, v, s, b, e: w - (s * m) / (np.sqrt(v) / b + e),
    "2": lambda w, m, v, s, b, e: fma(-s, m / (np.sqrt(v) / b + e), w),
    "3": lambda w, m, v, s, b, e: fma(-s, m / (np.sqrt(v) * b + e), w),
    "4": lambda w, m, v, s, b, e: w - m / ((np.sqrt(v) / b + e) / s),
    "5": lambda w, m, v, s, b, e: w - s * (m / (np.sqrt(v) / b + e)),
}
"""Adam's step, from decayed weights, first and second moment."""

RULES: dict[str, Rule] = {
    "decay.1": Rule(lambda m, b: b * m, 0, 1),
    "decay.2": Rule(lambda m, c: fma(-c, m, m), 0, 1),
    "square.1": Rule(
        lambda v, m, old, b, c, k: fma(c * (g := _gradient(m, old, k)), g, b * v), 2, 3
    ),
    "square.2": Rule(
        lambda v, m, old, b, c, k: fma(c, np.square(_gradient(m, old, k)), b * v), 2, 3
    ),
    "square.3": Rule(lambda v, m, old, b, c, k: b * v + c * (g := _gradient(m, old, k)) * g, 2, 3),
    "greater": Rule(greater, 1, 0),
    "momentum.1": Rule(lambda w, m, s: fma(-s, m, w), 1, 1),
    "momentum.2": Rule(lambda w, m, s: w - s * m, 1, 1),
}


def _step(decay: Formula, step: Formula) -> Formula:
    return lambda w, m, v, d, s, b, e: step(decay(w, d), m, v, s, b, e)


for _decay, _left in DECAYS.items():
    for _name, _formula in STEPS.items():
        RULES[f"adam.{_name}{_decay}"] = Rule(_step(_left, _formula), 2, 4)
