from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import text


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (3_551_040, "3.55 MB"),
        (9_999, "10.0 kB"),
        (99_990, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (10**18, "1000 PB"),
    ],
)
def test_size(nbytes: int, shown: str) -> None:
    assert text.size(nbytes) == shown


@given(st.integers(0, 10**17))
def test_size_is_short_and_within_half_a_percent(nbytes: int) -> None:
    value, unit = text.size(nbytes).split()
    scale = 1000 ** ("B", "kB", "MB", "GB", "TB", "PB").index(unit)
    assert len(value) <= 4
    assert abs(float(value) * scale - nbytes) <= 0.0051 * nbytes


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "0 %"),
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33.3 %"),
        (1, 10**6, "< 0.1 %"),
        (10**6 - 1, 10**6, "> 99.9 %"),
        (7, 5, "140.0 %"),
    ],
)
def test_percent_never_rounds_to_none_or_all(part: int, whole: int, shown: str) -> None:
    assert text.percent(part, whole) == shown


def test_count() -> None:
    assert text.count(1, "tensor") == "1 tensor"
    assert text.count(1234, "tensor") == "1,234 tensors"
    assert text.count(0, "copy", "copies") == "0 copies"


def test_shape() -> None:
    assert text.shape((64, 3, 7, 7)) == "64x3x7x7"
    assert text.shape(()) == "scalar"
    assert text.shape((0,)) == "0"


def test_one_line_is_printable() -> None:
    assert text.one_line("\n first\x1b[31m \nsecond") == "first\\x1b[31m "


def test_stored_for() -> None:
    assert text.stored_for(300, 1000) == "300 B stored for 1.00 kB (30.0 %)"
    assert text.stored_for(1000, 300) == "1.00 kB stored for 300 B"
    assert text.stored_for(5, 0) == "5 B stored"
