"""Bit reset: the low bits of a change are not taken over (thesis §3.2.4).

The mask acts on the exclusive or with the production weights, so what is cleared stays as
it is: after any number of versions the low bits are those of the first weights.
"""

from __future__ import annotations

import numpy as np

from mvc.codecs.lossy.floats import Format, Weights
from mvc.codecs.words import word_type

__all__ = ["high_mask", "low_mask", "reset"]

_FRACTION = 23  # bits of a float32's fraction, which the parameters count by


def low_mask(kind: Format, low: int) -> int:
    """The bits that are reset: for float32 the ``low`` lowest.

    Other formats keep ``23 - low`` bits of their fraction, or all that they have.
    """
    return (1 << kind.fraction - min(kind.fraction, _FRACTION - low)) - 1


def high_mask(kind: Format, high: int) -> int:
    """The ``high`` highest bits of the fraction, or all that there are."""
    fraction = kind.fraction
    return (1 << fraction) - (1 << fraction - min(high, fraction))


def reset(tensor: Weights, low: int, high: int = 0) -> None:
    """Resets the low bits of what changed, in place.

    With ``high``, only in entries that changed in one of the ``high`` highest bits of the
    fraction.
    """
    kind = word_type(tensor.format.width).type
    changed = tensor.before ^ tensor.after
    undone = changed & kind(low_mask(tensor.format, low))
    if high:
        undone[(changed & kind(high_mask(tensor.format, high))) == 0] = 0
    if tensor.exact is not None:
        undone[tensor.exact] = 0
    np.bitwise_xor(tensor.after, undone, out=tensor.after)
