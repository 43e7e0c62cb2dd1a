"""The stage ``grid``: rounds the entries of a tensor to multiples of a step, a power of two.

*Production weights* are the rounded weights, which are stored and deployed. *Training weights* are
the optimizer's weights, which stay unrounded (``mvc.lossy.reducer``). docs/pipelines.md describes
the size of the step, and when it changes. Training weights fluctuate from batch to batch. Without a
margin, a weight half-way between two multiples would change with every batch. So a weight stays at
its multiple until it is more than ``hold`` steps away.

Changes smaller than a step are not lost: if all entries of a tensor change by a tenth of a step,
about a tenth of the rounded entries change by one step. With a much larger ``hold``, such changes
would be lost. Rounding errors do not add up, because each version is rounded from its training
weights. The step is not stored, because it can be derived from the previous production weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from mvc.codecs.floats import Numbers, subnormals, values_of, words_of_values
from mvc.codecs.stage import Stage, number, plain, read_options
from mvc.lossy.weights import ChoosingStage, LossyStage, Moving

_HOLD, _FINE = "0.52", "0.5"
_FINEST = Decimal("0.03")  # with a smaller C, deltas are hardly smaller than exact deltas
_SMALLEST = -126  # exponent; numbers below 2^-126 have fewer bits in float32


class Grid(ChoosingStage, frozen=True):
    """lossy: rounds to steps of about C standard deviations, finer in small tensors

    A tensor whose entries are all equal is copied exactly, because it has no spread from which a
    step could be derived. Entries that are infinite or not a number are copied exactly, too.
    """

    coarse: Decimal
    hold: Decimal
    fine: Decimal
    usage = "grid:C[,hold=H][,fine=F]"
    rounds_first = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("hold", "fine"), ())
        coarse = number(name, "C", first, low="0.000001", high="16")
        hold = number(name, "hold", options.get("hold", _HOLD), low="0.5", high="1")
        fine = number(name, "fine", options.get("fine", _FINE), low="0", high="1")
        shown = "" if plain(hold) == _HOLD else f",hold={plain(hold)}"
        shown += "" if plain(fine) == _FINE else f",fine={plain(fine)}"
        return cls(f"{name}:{plain(coarse)}{shown}", coarse, hold, fine)

    def finer(self) -> LossyStage | None:
        coarse = self.coarse / 2
        if coarse < _FINEST:
            return None
        text = self.text.replace(f":{plain(self.coarse)}", f":{plain(coarse)}", 1)
        return Grid(text, coarse, self.hold, self.fine)

    @subnormals()
    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:  # noqa: ARG002
        coarse, hold, fine = float(self.coarse), float(self.hold), float(self.fine)
        longest = max((len(tensor.after) for tensor in weights), default=0)
        for tensor in weights:
            after = values_of(tensor.after, tensor.format)
            before = values_of(tensor.before, tensor.format)
            wanted = wanted_exponent(_finite(after, tensor), coarse, longest, fine)
            if wanted is None:
                continue
            # The previous step is reused, unless a finer or coarser stage (``finer``) chose it.
            exponent = (
                wanted if tensor.has_new_level else _exponent(_finite(before, tensor), wanted)
            )
            values = _rounded(before, after, exponent, hold=hold, largest=tensor.format.largest)
            words = words_of_values(values, tensor.format)
            rounded = True if tensor.exact is None else ~tensor.exact
            np.copyto(tensor.after, words, where=rounded)


def wanted_exponent(values: Numbers, coarse: float, longest: int, fine: float) -> int | None:
    """The exponent of a tensor's step, from the spread of its entries.

    None if all entries are equal. ``longest``: the number of entries of the largest tensor.
    """
    with np.errstate(all="ignore"):  # a spread beyond float64 is infinite
        spread = float(np.std(values, dtype=np.float64)) if len(values) else 0.0
    if not 0 < spread < math.inf:
        return None
    finer = fine * math.log2(longest / len(values))
    return max(round(math.log2(coarse) + math.log2(spread) - finer), _SMALLEST)


def _finite(values: Numbers, tensor: Moving) -> Numbers:
    return values if tensor.exact is None else values[~tensor.exact]


def _exponent(before: Numbers, wanted: int) -> int:
    """The exponent of the step of ``before`` if it differs from ``wanted`` by at most one.

    Otherwise, or if ``before`` has only zeros, returns ``wanted``.
    """
    near = (e for e in (wanted + 1, wanted, wanted - 1) if _on_grid(before, e))
    return next(near, wanted) if before.any() else wanted


def _on_grid(values: Numbers, exponent: int) -> bool:
    """Whether all values are multiples of the step. To save time, checks a few values first."""
    for part in (values[:256], values):
        with np.errstate(all="ignore"):
            scaled = np.ldexp(part, -exponent)
        if not bool((scaled == np.rint(scaled)).all()):
            return False
    return True


def _rounded(
    before: Numbers, after: Numbers, exponent: int, *, hold: float, largest: float
) -> Numbers:
    """``after`` rounded to multiples of the step. Where the change is small, ``before`` stays.

    ``largest``: the largest finite number of the tensor's dtype. Scaling by a power of two is
    exact.
    """
    with np.errstate(all="ignore"):
        last_multiple = float(np.floor(np.ldexp(largest, -exponent)))
        multiples = np.rint(np.ldexp(after, -exponent)).clip(-last_multiple, last_multiple)
        change = np.abs(after - before)
        is_still = change <= after.dtype.type(math.ldexp(hold, exponent))
        is_still &= np.ldexp(np.rint(np.ldexp(before, -exponent)), exponent) == before
        on_grid = np.ldexp(multiples, exponent)
        np.copyto(on_grid, before, where=is_still)
    # Adding 0.0 turns -0.0 into +0.0.
    result: Numbers = on_grid + on_grid.dtype.type(0)
    return result
