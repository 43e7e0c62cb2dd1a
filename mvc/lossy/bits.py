"""Bit reset: undoes the change of low bits (thesis §3.2.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mvc.codecs.floats import Format
from mvc.codecs.stage import Kind, Stage, read_options, whole_number
from mvc.codecs.words import word_type
from mvc.lossy.weights import LossyStage, Moving

FRACTION = 23  # number of bits of a float32's fraction
_FINER = 4  # a finer stage resets 4 bits fewer


class ResetBits(LossyStage, frozen=True):
    """lossy: resets the N lowest bits of a change (msb: of changes in the M highest bits)

    A change is the xor of new weights and previous production weights. If a bit of the change is
    reset, this bit of the weights keeps its previous value. ``low``: N, the number of bits to
    reset. ``high``: M; if not 0, resets only elements that changed in one of the M highest bits of
    the fraction. N and M are numbers of bits of a float32.
    """

    low: int
    high: int
    usage = "lsb:N[,msb=M]"
    accepts = frozenset({Kind.PATTERNS})
    returns = Kind.RESET
    needs = "xor directly before it"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("msb",), ())
        low = whole_number(name, "N", first, low=1, high=FRACTION)
        msb = options.get("msb")
        high = 0 if msb is None else whole_number(name, "msb", msb, low=1, high=FRACTION)
        return cls(f"{name}:{low}{f',msb={high}' if high else ''}", low, high)

    def finer(self) -> LossyStage | None:
        low = self.low - _FINER
        if low < 1:
            return None
        return ResetBits(self.text.replace(f":{self.low}", f":{low}", 1), low, self.high)

    def reduce(self, weights: Sequence[Moving], loss: float | None) -> None:  # noqa: ARG002
        for tensor in weights:
            word = word_type(tensor.format.width).type
            changed = tensor.before ^ tensor.after
            undone = changed & word(low_mask(tensor.format, self.low))
            if self.high:
                undone[(changed & word(high_mask(tensor.format, self.high))) == 0] = 0
            if tensor.exact is not None:
                undone[tensor.exact] = 0
            np.bitwise_xor(tensor.after, undone, out=tensor.after)


def low_mask(kind: Format, low: int) -> int:
    """The bits to reset. For float32, these are the ``low`` lowest bits.

    In other formats, the ``23 - low`` highest bits of the fraction are not reset.
    """
    return (1 << kind.fraction - min(kind.fraction, FRACTION - low)) - 1


def high_mask(kind: Format, high: int) -> int:
    """The ``high`` highest bits of the fraction, or all bits if the fraction has fewer."""
    return (1 << kind.fraction) - (1 << kind.fraction - min(high, kind.fraction))
