"""Predicts the values of a tensor after an optimizer's step.

A delta then stores only the difference between the prediction and the new values.
A *rule* is the formula of a step. A *prediction* is a rule with numbers, such as the learning rate.
It computes the new values from the *base* (the previous values) and from *inputs*, such as moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from mvc.codecs.floats import Numbers, subnormals
from mvc.codecs.optim.rules import RULES, Rule, magnitude, squared
from mvc.codecs.words import Bytes, scratch_bytes
from mvc.errors import InvalidPipeline, WrongUsage
from mvc.limits import MAX_PIPELINE_TEXT

PREFIX = "optim"
_BLOCK = 1 << 17  # bytes of an array that are processed at once, to stay in the CPU cache
PREDICTED: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
"""The dtypes of tensors that rules predict, with the corresponding types in numpy."""
GRADES = 10
"""Number of grades. A grade is the uncertainty of an element's prediction, as a power of 2.

Grade 0 is an uncertainty of at most a few units in the last place.
"""
_FRACTION = {"float32": 23, "float64": 52}
_NANS = {"float32": 0x7FC00000, "float64": 0x7FF8000000000000}  # bits of every NaN in results


class Prediction(Struct, frozen=True):
    """A prediction, named in a coding (how bytes are encoded) by ``optim:RULE:DTYPE:NUMBERS``.

    ``optim:adam.1:float32:1.0,0.001,0.5,1e-08`` predicts weights from the previous weights and from
    first and second moments. Equal texts are equal predictions.
    """

    rule: str
    dtype: str
    numbers: tuple[float, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Prediction:
        """The prediction with this text.

        Raises InvalidPipeline unless the text is known and canonical.
        """
        prefix, rule, dtype, numbers = (*text.split(":"), "", "", "", "")[:4]
        try:
            parsed = Prediction(rule, dtype, tuple(map(float, filter(None, numbers.split(",")))))
        except ValueError as error:
            raise InvalidPipeline(f"{text!r} contains an invalid number") from error
        known = prefix == PREFIX and rule in RULES and dtype in PREDICTED
        if not known or len(text) > MAX_PIPELINE_TEXT or parsed.text != text:
            raise InvalidPipeline(f"{text!r} is no prediction")
        if len(parsed.numbers) != parsed._rule.count or not all(map(math.isfinite, parsed.numbers)):
            raise InvalidPipeline(f"{text!r} must have {parsed._rule.count} finite numbers")
        return parsed

    @property
    def text(self) -> str:
        numbers = ",".join(map(repr, self.numbers))
        return ":".join((PREFIX, self.rule, self.dtype, *([numbers] if numbers else [])))

    @property
    def inputs(self) -> int:
        """The number of arrays that the rule needs in addition to the base."""
        return self._rule.inputs

    @property
    def signed(self) -> bool:
        """Whether the rule needs the signs of gradients, which a stored bitmap contains."""
        return self._rule.signed

    @property
    def graded(self) -> bool:
        """Whether elements have grades (``GRADES``), by the uncertainty of their prediction."""
        return self._rule.graded

    @property
    def finer(self) -> Prediction:
        """Returns this prediction with the graded form of its rule, if the rule has such a form."""
        rule = f"{self.rule}g"
        return replace(self, rule=rule) if rule in RULES and RULES[rule].graded else self

    @property
    def width(self) -> int:
        return PREDICTED[self.dtype].itemsize

    @property
    def _rule(self) -> Rule:
        return RULES[self.rule]

    def fill(
        self,
        base: memoryview,
        inputs: Sequence[memoryview],
        out: memoryview,
        signs: Bytes | None = None,
        *,
        new: memoryview | None = None,
        grades: Bytes | None = None,
    ) -> Bytes:
        """Writes the predicted values into ``out``, which may be ``base``. Returns the signs.

        All buffers have the same length. ``signs``: 1 for each element with a negative gradient,
        else 0. Without ``signs``, the signs that predict ``new`` best are used. ``grades``: if the
        rule is graded, receives the grade of each element. Bytes after the last whole element are
        copied from the base. Raises MvcError if this thread cannot compute with subnormal numbers.
        """
        count, rule = len(out) // self.width, self._rule
        if signs is None:
            signs = scratch_bytes("signs", count if self.signed and new is not None else 0)
        if any(len(data) != len(out) for data in (base, *inputs)) or len(inputs) != self.inputs:
            raise WrongUsage(f"{self.text} takes a base and {self.inputs} inputs of equal length")
        if len(signs) != (count if self.signed else 0):
            raise WrongUsage(f"{self.text} takes {'' if self.signed else 'no '}signs")
        kind = PREDICTED[self.dtype]
        numbers = [*map(kind.type, self.numbers)]
        arrays = [np.frombuffer(data, kind, count) for data in (base, *inputs)]
        wanted = None if new is None else np.frombuffer(new, kind, count)
        target = np.frombuffer(out, kind, count)
        step = _BLOCK // self.width
        with np.errstate(all="ignore"), subnormals():
            for at in range(0, count, step):
                cut = slice(at, at + step)
                first, *rest = (array[cut] for array in arrays)
                if rule.pull is None:
                    target[cut] = self._predicted(first, *rest, *numbers)
                    continue
                (after, before), (number, small, decay, share) = rest, numbers
                change = squared(after, before, decay)
                pull = rule.pull(magnitude(change, share), np.sqrt(after) + small, number)
                if wanted is not None:
                    middle, part = rule.formula(first, pull * 0, number), wanted[cut]
                    below = part > middle if rule.falls else part < middle
                    signs[cut] = below & (change > 0) if rule.graded else below
                pull *= 1 - 2 * signs[cut].view(np.int8)
                result = self._predicted(first, pull, number)
                if grades is not None:
                    grades[cut] = self._grades(first, result, after, change)
                target[cut] = result
        out[count * self.width :] = base[count * self.width :]
        return signs

    def moving(self, inputs: Sequence[memoryview]) -> NDArray[np.bool_]:
        """For a graded rule, returns True for each element with a nonzero gradient."""
        kind = PREDICTED[self.dtype]
        new, old = (np.frombuffer(data, kind, len(data) // self.width) for data in inputs)
        with np.errstate(all="ignore"), subnormals():
            above: NDArray[np.bool_] = squared(new, old, self._decay) > 0
        return above

    @property
    def _decay(self) -> Any:
        """The decay of the older second moment in a graded rule."""
        return PREDICTED[self.dtype].type(self.numbers[2])

    def _grades(self, first: Numbers, result: Numbers, after: Numbers, change: Numbers) -> Bytes:
        """The grade of each element: how many bits of ``result`` are uncertain."""
        unknown = ((result - first) / result) * (after / change)
        words, fraction = unknown.view(f"<u{self.width}"), _FRACTION[self.dtype]
        words >>= fraction
        exponents = words.astype(f"<u{self.width // 4}")  # for float32 this drops the sign
        exponents &= (1 << 8 * self.width - 1 - fraction) - 1
        below = (1 << 8 * self.width - 2 - fraction) - 2  # the exponent of a half
        np.clip(exponents, below, below + GRADES - 1, out=exponents)
        exponents -= below
        return exponents.astype(np.uint8)

    def _predicted(self, *terms: Any) -> Numbers:
        """The result of the formula. All NaNs in the result get the same bits."""
        result: Numbers = self._rule.formula(*terms)
        nans: NDArray[np.bool_] = np.isnan(result)
        if nans.any():
            result.view(f"<u{self.width}")[nans] = _NANS[self.dtype]
        return result
