"""Floats rounded by exact rational arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import cache

import numpy as np
import torch

NARROW = [
    "float16",
    "bfloat16",
    *(f"float8_{n}" for n in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
]
NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E,
       "float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}  # fmt: skip


def sign_bit(dtype: str) -> int:
    return 0x80 if dtype.startswith("float8") else 0x8000


@cache
def magnitudes(dtype: str) -> list[float]:
    """The numbers of the codes from 0 up, as torch has them, and the one that would come next."""
    codes = np.arange(256 if dtype.startswith("float8") else 1 << 15)
    data = codes.astype(np.uint8 if dtype.startswith("float8") else "<u2").tobytes()
    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).double().tolist()
    stop = next((i for i, v in enumerate(values) if not np.isfinite(v)), len(values))
    found = values[: min(stop, sign_bit(dtype) if dtype != "float8_e8m0fnu" else 255)]
    step = found[-1] if dtype == "float8_e8m0fnu" else found[-1] - found[-2]
    return [*found, found[-1] + step]


def coded(index: int, dtype: str, *, negative: bool) -> int:
    """The code of the number at ``index`` of ``magnitudes``, with a sign."""
    over = index == len(magnitudes(dtype)) - 1 and dtype[-3:] in {"3fn", "nuz", "fnu"}
    if over or (dtype == "float8_e8m0fnu" and negative):
        return NAN[dtype]
    has_sign = negative and (index or not dtype.endswith("fnuz"))
    return index | (sign_bit(dtype) if has_sign else 0)


def nearest(value: float, dtype: str) -> int:
    """The code of the number of ``dtype`` next to ``value``."""
    known, size = magnitudes(dtype), abs(value)
    if np.isnan(value):
        return NAN[dtype]
    index = len(known) - 1
    if size < known[-1]:
        index = max(bisect_right(known, size) - 1, 0)
        low, high = (abs(Fraction(size) - Fraction(known[i])) for i in (index, index + 1))
        up = bool(index & 1) or dtype == "float8_e8m0fnu"  # there ties are rounded up
        index += low > high or (low == high and up)
    return coded(index, dtype, negative=bool(np.signbit(value)))
