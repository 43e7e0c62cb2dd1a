"""Converts float tensors to a type of half the width, such as float32 to bfloat16.

Some checkpoints have a tensor and a narrower copy of the tensor. If the converted tensor is equal
to the copy, the copy need not be stored. The caller must compare all bytes, because torch may
convert NaNs to other bytes. The result of a conversion does not depend on the CPU. docs/format.md,
"Codings", defines the bits of the result.
"""

from __future__ import annotations

import numpy as np

from mvc.codecs.words import Words
from mvc.errors import WrongUsage

RATIO = 2
"""Width of the source divided by width of the result: every cast halves the width."""

_BLOCK = 1 << 16  # elements


def supported(source: str, to: str) -> bool:
    """Whether :func:`cast` converts dtype ``source`` to dtype ``to``."""
    return (source, to) in _ROUND


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
        cut = slice(start, start + _BLOCK)
        target[cut] = _ROUND[source, to](bits[cut])
    return out


def round_bfloat16(bits: Words) -> Words:
    """The bits of the bfloat16 numbers that are nearest to float32 numbers, ties to even.

    ``bits``: the bits of the float32 numbers. The result has dtype uint32.
    """
    rounded: Words = bits + (0x7FFF + (bits >> 16 & 1))
    rounded >>= 16
    # The addition above turns some NaNs into infinity or zero.
    rounded[(bits & 0x7FFFFFFF) > 0x7F800000] = 0xFFFF
    return rounded


def _to_float16(bits: Words) -> Words:
    with np.errstate(all="ignore"):
        rounded: Words = bits.view("<f4").astype("<f2").view("<u2")
    nan = np.flatnonzero((bits & 0x7FFFFFFF) > 0x7F800000)
    rounded[nan] = bits[nan] >> 16 & 0x8000 | 0x7E00 | bits[nan] >> 13 & 0x3FF
    return rounded


def _to_float32(bits: Words) -> Words:
    values = bits.view("<f8")
    with np.errstate(all="ignore"):
        rounded: Words = values.astype("<f4").view("<u4")
    magnitude = bits & 0x7FFFFFFFFFFFFFFF
    nan = np.flatnonzero(magnitude > 0x7FF0000000000000)
    rounded[nan] = bits[nan] >> 32 & 0x80000000 | 0x7FC00000 | bits[nan] >> 29 & 0x7FFFFF
    # Below 2^-126, a float32 is subnormal: an integer times 2^-149. The integer is computed here,
    # because a CPU may convert subnormal numbers to zero.
    small = np.flatnonzero(magnitude < 0x3810000000000000)
    scaled = np.rint(np.abs(values[small]) * 2.0**149).astype("<u8")
    rounded[small] = bits[small] >> 32 & 0x80000000 | scaled
    return rounded


_ROUND = {
    ("float32", "bfloat16"): round_bfloat16,
    ("float32", "float16"): _to_float16,
    ("float64", "float32"): _to_float32,
}
