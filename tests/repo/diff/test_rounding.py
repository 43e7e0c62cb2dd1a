"""float64 is rounded once to each dtype, as exact arithmetic says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.repo.diff.distance import ROUNDED, rounded, to_float64
from tests.repo.nearest import NAN, NARROW, coded, magnitudes, nearest

EDGES = [0.0, math.inf, math.nan, 5e-324, 2.0**-150, 2.0**-133, 1.7e308, 2.0**127, 2.0**128]


def code(values: Iterable[float], dtype: str) -> list[int]:
    with np.errstate(all="ignore"):
        return rounded(np.array([*values]), dtype).view("u1" if dtype[5] == "8" else "<u2").tolist()


@pytest.mark.parametrize("dtype", [*NARROW, "float8_e8m0fnu"])
def test_numbers_ties_and_what_is_next_to_them(dtype: str) -> None:
    known = np.array(magnitudes(dtype))
    middles = (known[1:] + known[:-1]) / 2
    low = np.arange(len(middles))
    even = low + 1 if dtype == "float8_e8m0fnu" else low + (low & 1)
    cases = [(known[:-1], low), (np.nextafter(middles, 0), low)]
    cases += [(middles, even), (np.nextafter(middles, np.inf), low + 1)]
    for negative in (False, dtype != "float8_e8m0fnu"):
        for values, indices in cases:
            wanted = [coded(int(i), dtype, negative=negative) for i in indices]
            assert code(-values if negative else values, dtype) == wanted
    ends = [*EDGES, *(-edge for edge in EDGES)]
    assert code(ends, dtype) == [nearest(v, dtype) for v in ends]


@pytest.mark.parametrize("dtype", [*NARROW, "float8_e8m0fnu"])
@given(data=st.data())
def test_any_number(dtype: str, data: st.DataObject) -> None:
    known = magnitudes(dtype)
    i = data.draw(st.integers(0, len(known) - 2))
    middle, away = (known[i] + known[i + 1]) / 2, data.draw(st.integers(-3, 3))
    tie = middle + away * math.ulp(middle)
    values = [tie, -tie, *data.draw(st.lists(st.floats(), max_size=20))]
    assert code(values, dtype) == [nearest(v, dtype) for v in values]


@given(st.lists(st.floats(), min_size=1))
def test_float32_is_the_nearest(values: list[float]) -> None:
    with np.errstate(all="ignore"):
        found = rounded(np.array(values), "float32")
    for value, near in zip(values, found, strict=True):
        if math.isnan(value):
            assert near.view("<u4") == 0x7FC00000
        elif np.isfinite(near):
            others = (np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))
            off = abs(Fraction(value) - Fraction(float(near)))
            with np.errstate(over="ignore"):
                finite = [float(other) for other in others if np.isfinite(other)]
            assert all(off <= abs(Fraction(value) - Fraction(other)) for other in finite)


def test_a_tie_of_float32_is_no_tie_of_the_number() -> None:
    above = 1 + 2.0**-8 + 2.0**-40
    assert float(np.float64(above).astype(ml_dtypes.bfloat16)) == 1.0  # rounded twice
    assert code([above], "bfloat16") == [0x3F81]


def test_a_nan_has_one_form() -> None:
    odd = np.array([0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    for dtype, bits in NAN.items():
        assert set(code(odd.tolist(), dtype)) == {bits}
    assert rounded(odd.copy(), "float64").view(np.uint64).tolist() == [0x7FF8 << 48] * 2


@pytest.mark.parametrize("dtype", sorted(ROUNDED - {"float8_e8m0fnu"}))
@given(st.binary(min_size=16, max_size=64))
def test_what_has_the_dtype_already_stays(dtype: str, data: bytes) -> None:
    data = data[: len(data) // 16 * 16]
    values = to_float64(memoryview(data), dtype)
    found = rounded(values.copy(), dtype)
    again = to_float64(memoryview(found.tobytes()), dtype)
    np.testing.assert_array_equal(again, values)
    assert (np.signbit(again) == np.signbit(values))[~np.isnan(values)].all()
