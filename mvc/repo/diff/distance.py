"""Computes distances between two tensors in float64, and converts tensors from and to float64.

Distances are computed block by block, because a block fits into the CPU cache. The conversion to
float64 is exact, except for 64-bit integers beyond 2**53. These large integers are subtracted as
integers, and rounded only for the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.adapters.python.arrays import has_dtype, make_array
from mvc.model.tensor import DTYPES, TensorSpec

_BLOCK = 1 << 16  # elements
_SAFE = (1e-140, 1e140)  # magnitudes whose squares neither overflow nor vanish
_Floats = NDArray[np.float64]

_NUMPY = {
    d.name: f"<{'f' if d.floating else 'i' if d.name.startswith(('int', 'qint')) else 'u'}{d.width}"
    for d in DTYPES.values()
    if d.name != "bfloat16" and (d.width > 1 or not d.floating)
}

# (exponent bits, mantissa bits, exponent bias, kind of special values). The formats are defined
# in Micikevicius et al., "FP8 Formats for Deep Learning" (2022), in Noune et al. (2022) (fnuz),
# and in the OCP Microscaling specification 1.0.
_SMALL = {
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
}
_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NARROW = {
    "bfloat16": (7, -126, 0),
    "float8_e4m3fn": (3, -6, 0x7F),
    "float8_e4m3fnuz": (3, -7, 0x80),
    "float8_e5m2": (2, -14, 0x7E),
    "float8_e5m2fnuz": (2, -15, 0x80),
    "float8_e8m0fnu": (0, -127, 0),
}
"""For each dtype: bits of the fraction, exponent of the smallest normal number, code for NaN."""

ROUNDED = {name for name, d in DTYPES.items() if d.floating} - {"float4_e2m1fn_x2"}
"""The dtypes that ``rounded`` supports: complex numbers, and all floats except packed pairs."""


class Distance(Struct, frozen=True):
    """``changed_share``: fraction of elements whose bits differ; 0 if there are no elements.

    ``l2``, ``max_abs``: L2 norm and largest magnitude of new - old. ``cosine``: cosine similarity
    of old and new; None if one tensor is all zeros. ``nonfinite``: number of elements that are
    infinite or NaN in one tensor or in both. ``l2``, ``max_abs`` and ``cosine`` ignore numbers
    that are not finite in one tensor or in both, and treat a complex number as a pair of numbers.
    """

    changed_share: float
    l2: float
    max_abs: float
    cosine: float | None
    nonfinite: int


def distance_of(
    old_dtype: str, old: Iterable[memoryview], new_dtype: str, new: Iterable[memoryview]
) -> Distance:
    """Compares two tensors that have the same number of elements.

    ``old``, ``new``: the bytes of the tensors in row-major order, in pieces. The number of elements
    of a piece is a multiple of 65,536, except for the last piece. If the dtypes differ, all
    elements count as changed.
    """
    elements = changed = nonfinite = 0
    l2 = largest = dot = old_size = new_size = 0.0
    itemsize, same = DTYPES[old_dtype].itemsize, old_dtype == new_dtype
    with np.errstate(all="ignore"):
        for a, b in zip(_blocks(old, old_dtype), _blocks(new, new_dtype), strict=True):
            count = len(a) // itemsize
            elements += count
            changed += _changed(a, b, itemsize) if same else count
            x, y = to_float64(a, old_dtype), to_float64(b, new_dtype)
            apart = _apart(a, old_dtype, b, new_dtype, old=x, new=y)
            if not np.isfinite(apart).all():
                finite = np.isfinite(x) & np.isfinite(y)
                nonfinite += count - int(finite.reshape(count, -1).all(axis=1).sum())
                x, y, apart = x[finite], y[finite], apart[finite]
            l2 = math.hypot(l2, _norm(apart))
            largest = max(largest, float(apart.max(initial=0.0)))
            old_size, new_size = math.hypot(old_size, _norm(x)), math.hypot(new_size, _norm(y))
            dot += _product(x, y)
    size = old_size * new_size
    cosine = max(-1.0, min(1.0, dot / size)) if size else None
    if not (math.isfinite(size) and math.isfinite(dot)):
        cosine = None
    return Distance(
        changed / elements if elements else 0.0, l2, largest, cosine, nonfinite=nonfinite
    )


def _blocks(pieces: Iterable[memoryview], dtype: str) -> Iterator[memoryview]:
    step = _BLOCK * DTYPES[dtype].itemsize
    return (piece[start : start + step] for piece in pieces for start in range(0, len(piece), step))


def _changed(a: memoryview, b: memoryview, itemsize: int) -> int:
    width = min(itemsize, 8)
    differs = np.frombuffer(a, f"<u{width}") != np.frombuffer(b, f"<u{width}")
    if itemsize > width:
        differs = differs.reshape(-1, itemsize // width).any(axis=1)
    return int(np.count_nonzero(differs))


def _apart(
    a: memoryview, a_dtype: str, b: memoryview, b_dtype: str, old: _Floats, new: _Floats
) -> _Floats:
    """|new - old|, exact even for 64-bit integers."""
    if a_dtype == b_dtype and a_dtype in {"int64", "uint64"}:
        x, y = np.frombuffer(a, _NUMPY[a_dtype]), np.frombuffer(b, _NUMPY[a_dtype])
        high = np.maximum(x, y).view("<u8")
        return _float64(high - np.minimum(x, y).view("<u8"))
    difference: _Floats = np.subtract(new, old)
    return np.abs(difference, out=difference)


def _norm(values: _Floats) -> float:
    """The L2 norm, computed even if squares are outside the range of float64."""
    square = _product(values, values)
    if _SAFE[0] ** 2 < square < _SAFE[1] ** 2:
        return math.sqrt(square)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0 or math.isinf(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(_product(scaled, scaled))


def _product(a: _Floats, b: _Floats) -> float:
    """The inner product, without BLAS, which would start threads for each block."""
    return float(np.einsum("i,i->", a, b))


def to_float64(data: memoryview, dtype: str) -> _Floats:
    """The elements as a flat float64 array. A complex or packed element becomes two numbers."""
    if dtype == "bfloat16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32)
        bits <<= 16
        return _float64(bits.view(np.float32))
    if dtype in _NUMPY:
        return _float64(np.frombuffer(data, _NUMPY[dtype]))
    numbers: _Floats = _byte_values(dtype)[np.frombuffer(data, np.uint8)].reshape(-1)
    return numbers


def as_numpy(spec: TensorSpec, data: memoryview) -> NDArray[Any]:
    """A tensor's bytes as a numpy array, without torch.

    Dtypes that numpy lacks become float32 or complex64, which represent each value exactly. Packed
    4-bit numbers get an additional last dimension of length two.
    """
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    numbers = to_float64(data, spec.dtype).astype(np.float32)
    if spec.dtype == "complex32":
        return numbers.view(np.complex64).reshape(spec.shape)
    pair = (2,) if numbers.size != spec.elements else ()
    return numbers.reshape((*spec.shape, *pair))


def _float64(values: NDArray[Any]) -> _Floats:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)


@cache
def _byte_values(dtype: str) -> NDArray[Any]:
    """The value of every byte of an 8-bit float, or the two values of a packed pair."""
    if dtype == "float8_e8m0fnu":
        return np.array([*(2.0 ** (e - 127) for e in range(255)), math.nan])
    if dtype == "float4_e2m1fn_x2":
        four = [*_FLOAT4, *(-v for v in _FLOAT4)]
        return np.array([(four[byte & 15], four[byte >> 4]) for byte in range(256)])
    bits, fraction, bias, special = _SMALL[dtype]
    codes = np.arange(256)
    exponent, mantissa = codes >> fraction & (1 << bits) - 1, codes & (1 << fraction) - 1
    significand = np.where(exponent == 0, mantissa, mantissa + (1 << fraction))
    values: NDArray[np.float64] = significand * 2.0 ** (np.maximum(exponent, 1) - bias - fraction)
    values[128:] *= -1
    if special == "ieee":
        top = exponent == (1 << bits) - 1
        values[top] = np.where(mantissa[top], math.nan, np.copysign(math.inf, values[top]))
    else:
        values[{"fn": [0x7F, 0xFF], "fnuz": [0x80]}[special]] = math.nan
    return values


def rounded(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """The elements of ``dtype`` that are nearest to ``values``, with ties to even.

    For a complex dtype, ``values`` has two numbers for each element. Overflow gives infinity, or
    NaN if the dtype has no infinity. Each NaN becomes the positive quiet NaN, in the
    result and in ``values``.
    """
    values[np.isnan(values)] = np.nan
    if dtype in _NUMPY:
        return values.astype(_NUMPY[dtype])
    fraction, least, _ = _NARROW[dtype]
    powers = (values.view(np.uint64) & 0x7FF << 52).view(np.float64)
    steps = np.clip(powers, 2.0**least, 2.0**1000) * 2.0**-fraction
    values = np.rint(values / steps) * steps
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    if dtype == "float8_e8m0fnu":  # only an exponent, without sign: negative values become NaN
        return np.asarray(np.minimum(values.astype("<f4").view("<u4") >> 23, 0xFF), np.uint8)
    return np.take(_codes(dtype), values.astype("<f2").view("<u2"))


@cache
def _codes(dtype: str) -> NDArray[np.uint8]:
    """Maps float16 bits to the code of the same number in an 8-bit float, or to the code of NaN."""
    numbers = _byte_values(dtype)
    numeric = np.flatnonzero(~np.isnan(numbers))
    codes = np.full(1 << 16, _NARROW[dtype][2], np.uint8)
    codes[0x8000] = 0  # for formats without a negative zero
    codes[numbers[numeric].astype("<f2").view("<u2")] = numeric
    return codes
