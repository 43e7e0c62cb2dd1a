"""The formulas of optimizers' steps, with which mvc predicts a tensor from older tensors.

Every machine must compute the same bits. So each formula is a fixed sequence of IEEE 754
operations. A formula receives arrays of equal length, and numbers, all of one dtype (float32 or
float64). Every operation rounds to the nearest number, with ties to even. ``fma`` is used where
kernels of torch multiply and add with a single rounding. No result depends on the sign or payload
of a NaN, or on whether a minimum or maximum is +0 or -0: CPUs differ in these bits.

``docs/format.md`` lists all formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.codecs.floats import Numbers

Formula = Callable[..., Numbers]

_SPLIT = np.float64(2**27 + 1)


class Rule(Struct, frozen=True):
    """A formula, the names of its arrays (the base first) and the names of its numbers.

    ``pull``: only for a rule whose arrays do not contain the signs of the gradient. A stored bitmap
    has the signs. ``pull`` computes the length of the step from the magnitude of the gradient, the
    root of the second moment plus the second number, and the first number. ``formula`` receives the
    base, the length with the sign, and the first number.
    ``falls``: whether a larger gradient reduces the result. ``graded``: whether the encoding sorts
    elements by the precision of their prediction.
    """

    arrays: str
    numbers: str
    formula: Formula
    pull: Formula | None = None
    falls: bool = False
    graded: bool = False

    @property
    def inputs(self) -> int:
        """Number of arrays in addition to the base."""
        return len(self.arrays.split()) - 1

    @property
    def signed(self) -> bool:
        """Whether the rule needs the signs of gradients, which a stored bitmap contains."""
        return self.pull is not None

    @property
    def count(self) -> int:
        """How many numbers the formula needs."""
        return len(self.numbers.split())


def fma(a: Any, b: Numbers, c: Numbers) -> Numbers:
    """``a * b + c`` with a single rounding.

    float32 is computed in float64, and float64 by exact product and sum.
    """
    if c.dtype != np.float64:
        wide: Numbers = np.multiply(b, a, dtype=np.float64)
        wide += c
        return wide.astype(np.float32)
    product, rest = _product(a, b)
    total = product + c
    added = total - product
    rest += (product - (total - added)) + (c - added)
    total += rest
    return total


def _product(a: Any, b: Numbers) -> tuple[Numbers, Numbers]:
    """``a * b`` in float64, and its rounding error (Dekker)."""
    product = a * b
    high_a, high_b = a * _SPLIT, b * _SPLIT
    high_a = high_a - (high_a - a)
    high_b = high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, rest


def greater(a: Numbers, b: Numbers) -> Numbers:
    """The larger of ``a`` and ``b``. ``a`` if ``a`` equals ``b``, or if ``a`` or ``b`` is NaN."""
    larger: Numbers = np.where(b > a, b, a)
    return larger


def _gradient(m: Numbers, old: Numbers, k: Any) -> Numbers:
    """The gradient. It is computed from the change of the first moment from ``old`` to ``m``."""
    gradient: Numbers = old + (m - old) / k
    return gradient


def squared(v: Numbers, old: Numbers, b: Any) -> Numbers:
    """A multiple of the gradient's square, from the new and the old second moment."""
    change: Numbers = v - b * old
    return change


def magnitude(change: Numbers, c: Any) -> Numbers:
    """The absolute value of the gradient, from the result of ``squared``."""
    square: Numbers = change / c
    np.fmax(square, 0, out=square)
    square += 0  # turns -0 into +0: which of these fmax returns depends on the CPU
    return np.sqrt(square, out=square)


def _nesterov(m: Numbers, old: Numbers, u: Any, q: Any) -> Numbers:
    """The gradient plus ``u`` times the new momentum ``m``."""
    return fma(u, m, m - u * old if q == 1 else (m - u * old) / q)


def _signed(
    name: str, arrays: str, numbers: str, formula: Formula, *, pull: Formula, falls: bool = False
) -> dict[str, Rule]:
    """Two rules that use the gradient's square. The name of the graded rule ends in g.

    The sign may be applied to the rounded result of ``pull``: rounding does not depend on the sign.
    """
    rule = Rule(arrays, numbers, formula, pull=pull, falls=falls)
    return {name: rule, f"{name}g": replace(rule, graded=True)}


def _decayed(name: str, arrays: str, numbers: str, formula: Formula) -> dict[str, Rule]:
    """Two rules for a step after decoupled weight decay.

    In the first rule, the decay is a multiplication. In the second rule, whose name ends in f, the
    decay is a subtraction.
    """
    inputs = len(arrays.split()) - 1

    def after(decay: Formula) -> Formula:
        def step(w: Numbers, *rest: Any) -> Numbers:
            d, *numbers = rest[inputs:]
            return formula(decay(w, d), *rest[:inputs], *numbers)

        return step

    numbers = f"d {numbers}"
    return {
        name: Rule(arrays, numbers, after(lambda w, d: w if d == 1 else d * w)),
        f"{name}f": Rule(arrays, numbers, after(lambda w, d: fma(-d, w, w))),
    }


RULES: dict[str, Rule] = {
    # First moments and momentum, if the gradient is zero.
    "decay.1": Rule("m", "b", lambda m, b: b * m),
    "decay.2": Rule("m", "k", lambda m, k: fma(-k, m, m)),
    # Second moments, from first moments.
    "square.1": Rule(
        "v m o",
        "b c k",
        lambda v, m, o, b, c, k: fma(c * (g := _gradient(m, o, k)), g, b * v),
    ),
    "square.2": Rule(
        "v m o",
        "b c k",
        lambda v, m, o, b, c, k: fma(c, np.square(_gradient(m, o, k)), b * v),
    ),
    "square.3": Rule(
        "v m o",
        "b c k",
        lambda v, m, o, b, c, k: b * v + (c * (g := _gradient(m, o, k))) * g,
    ),
    "square.4": Rule(
        "v m o",
        "b c h k",
        lambda v, m, o, b, c, h, k: fma(c * (g := (m - h * o) / k), g, b * v),
    ),
    "square.5": Rule(
        "v m o",
        "b k",
        lambda v, m, o, b, k: fma(b, v, fma(-b, s := np.square(_gradient(m, o, k)), s)),
    ),
    "greater": Rule("x v", "", greater),
    # Weights, from first and second moments.
    **_decayed(
        "adam.1",
        "w m v",
        "s b e",
        lambda w, m, v, s, b, e: w - (s * m) / (np.sqrt(v) / b + e),
    ),
    **_decayed(
        "adam.2",
        "w m v",
        "s b e",
        lambda w, m, v, s, b, e: fma(-s, m / (np.sqrt(v) / b + e), w),
    ),
    **_decayed(
        "adam.3",
        "w m v",
        "s b e",
        lambda w, m, v, s, b, e: fma(-s, m / (np.sqrt(v) * b + e), w),
    ),
    **_decayed(
        "adam.4",
        "w m v",
        "s b e",
        lambda w, m, v, s, b, e: w - m / ((np.sqrt(v) / b + e) / s),
    ),
    **_decayed("adam.5", "w m v", "b e", lambda w, m, v, b, e: w - m / (np.sqrt(v) / b + e)),
    # Weights, from momentum.
    "momentum.1": Rule("w m", "s", lambda w, m, s: fma(-s, m, w)),
    "momentum.2": Rule("w m", "s", lambda w, m, s: w - s * m),
    "nesterov.1": Rule(
        "w m o", "s u q", lambda w, m, o, s, u, q: fma(-s, _nesterov(m, o, u, q), w)
    ),
    "nesterov.2": Rule("w m o", "s u q", lambda w, m, o, s, u, q: w - s * _nesterov(m, o, u, q)),
    # Weights and momentum from second moments, which do not contain the gradient's sign.
    **_signed(
        "root.1",
        "w v o",
        "s e b c",
        lambda w, p, _s: w - p,
        pull=lambda r, d, s: (s * r) / d,
        falls=True,
    ),
    **_signed(
        "root.2",
        "w v o",
        "s e b c",
        lambda w, p, s: fma(-s, p, w),
        pull=lambda r, d, _s: r / d,
        falls=True,
    ),
    **_signed(
        "pushed.1",
        "m v o",
        "u e b c",
        lambda m, p, u: u * m + p,
        pull=lambda r, d, _u: r / d,
    ),
}
