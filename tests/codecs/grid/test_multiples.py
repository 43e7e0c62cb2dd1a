import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.steps import BY_CODE, common_exponent, multiples, words_of_multiples
from mvc.codecs.words import word_type

FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = BY_CODE


def words(values, dtype="<f4"):
    array = np.array(values, dtype)
    return array.view(word_type(array.itemsize))


def test_known_exponents():
    assert common_exponent(words([1.0, 2.0]), FLOAT32) == 0
    assert common_exponent(words([0.75, -0.5, 0]), FLOAT32) == -2
    assert common_exponent(words([6.0, 4.0]), FLOAT32) == 1
    assert common_exponent(words([0.1]), FLOAT32) == -27
    assert common_exponent(words([2.0**-149]), FLOAT32) == -149
    assert common_exponent(words([0.0, 0.0]), FLOAT32) == 0
    assert common_exponent(words([0.375], "<f8"), FLOAT64) == -3
    assert common_exponent(words([2.0**-24], "<f2"), FLOAT16) == -24
    assert common_exponent(np.array([0x3FC0], "<u2"), BFLOAT16) == -1  # 1.5


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -0.0])
def test_what_is_no_multiple(value):
    assert common_exponent(words([1.0, value]), FLOAT32) is None


def test_known_multiples():
    found = multiples(words([0.75, -0.5, 0]), FLOAT32, -2)
    assert found.tolist() == [3, -2, 0]
    assert multiples(words([0.75]), FLOAT32, -1) is None
    assert multiples(words([np.nan]), FLOAT32, 0) is None
    assert multiples(words([1e30]), FLOAT32, -1000) is None
    assert words_of_multiples(np.array([3, -2, 0]), FLOAT32, -2).view("<f4").tolist() == [
        0.75,
        -0.5,
        0,
    ]


def test_zero_is_positive():
    assert words_of_multiples(np.array([0]), FLOAT32, -5).tolist() == [0]


def test_what_has_no_exact_word():
    assert words_of_multiples(np.array([(1 << 24) + 1]), FLOAT32, 0) is None
    assert words_of_multiples(np.array([257]), BFLOAT16, 0) is None
    assert words_of_multiples(np.array([1]), FLOAT32, 200) is None
    assert words_of_multiples(np.array([1]), FLOAT16, -30) is None


@pytest.mark.parametrize("kind", BY_CODE, ids=lambda kind: kind.name)
@given(
    numbers=st.lists(st.integers(-255, 255), min_size=1, max_size=50), exponent=st.integers(-14, 7)
)
def test_there_and_back(kind, numbers, exponent):
    array = np.array(numbers)
    made = words_of_multiples(array, kind, exponent)
    assert (multiples(made, kind, exponent) == array).all()
    found = common_exponent(made, kind)
    assert found >= exponent or not array.any()
    again = multiples(made, kind, found)
    assert (words_of_multiples(again, kind, found) == made).all()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_every_float_is_a_multiple_of_something(values):
    made = words(values)
    if (made == 0x80000000).any():
        assert common_exponent(made, FLOAT32) is None
        return
    exponent = common_exponent(made, FLOAT32)
    whole = np.ldexp(made.view("<f4").astype("f8"), -exponent)
    assert (whole == np.rint(whole)).all()
    assert not whole.any() or (whole % 2).any()
