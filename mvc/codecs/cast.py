"""A copy of a tensor in a narrower float type: a bf16 model beside its fp32 master.

Computed on bit patterns, rounding to nearest with ties to even, so that a copy
that equals the cast of its master need not be stored. NaN handling follows what
torch's CPU kernels do; the caller compares the bytes before relying on it.
"""

from __future__ import annotations

import numpy as np

from mvc.codecs.words import Words
from mvc.errors import WrongUsage

__all__ = ["cast", "supported"]

_CASTS = {("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32")}
_BLOCK = 1 << 16  # elements


def supported(source: str, to: str) -> bool:
    """Whether :func:`cast` goes from dtype ``source`` to dtype ``to``."""
    return (source, to) in _CASTS


def cast(base: memoryview, source: str, to: str) -> bytearray:
    """The bytes of ``base`` (dtype ``source``) as dtype ``to``, both little-endian."""
    if not supported(source, to):
        raise WrongUsage(f"no cast from {source} to {to}")
    width = 8 if source == "float64" else 4
    if len(base) % width:
        raise WrongUsage(f"{len(base)} bytes are not whole {source} elements")
    out = bytearray(len(base) // 2)
    bits = np.frombuffer(base, f"<u{width}")
    target = np.frombuffer(out, f"<u{width // 2}")
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        part = target[start : start + _BLOCK]
        if to == "bfloat16":
            part[:] = _to_bfloat16(block)
        else:
            part[:] = _narrow(block, f"<f{width}", f"<f{width // 2}")
    return out


def _to_bfloat16(bits: Words) -> Words:
    with np.errstate(over="ignore"):
        rounded: Words = bits + (0x7FFF + (bits >> 16 & 1))
    rounded >>= 16
    # Rounding would carry a NaN's payload into the exponent.
    rounded[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FC0
    return rounded


def _narrow(bits: Words, source: str, to: str) -> Words:
    with np.errstate(all="ignore"):
        return bits.view(source).astype(to).view(f"<u{np.dtype(to).itemsize}")
