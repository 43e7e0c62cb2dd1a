import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mvc.codecs.compressors import FAST, HUFFMAN
from mvc.codecs.steps import decode_numbers, encode_numbers
from mvc.codecs.varint import Cursor
from mvc.errors import DamagedData

METHODS = (None, HUFFMAN, FAST)
MOST = (1 << 40) - 1


def stored(numbers, method=None):
    return b"".join(map(bytes, encode_numbers(np.array(numbers, np.int64), method)))


def numbers(data, count, most=MOST, method=None):
    cursor = Cursor(data)
    found = decode_numbers(cursor, count, most, method)
    cursor.end()
    return found


def test_known_answers():
    # k = 0: quotients alone: 0 -> 1, 3 -> 0001, 1 -> 01.
    assert stored([0, 3, 1]) == bytes((0, 4, 0b1_0001_01_0))
    # k = 2: low bits lowest first 10 11 10, quotients 2, 1, 2 in unary.
    assert stored([9, 7, 9]) == bytes((2, 5, 0b10_11_10_00, 0b001_01_001))
    assert stored([]) == bytes((0, 0))


@given(
    hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, 5000)),
    st.sampled_from(METHODS),
)
def test_round_trip(array, method):
    assert (numbers(stored(array, method), len(array), 5000, method) == array).all()


@given(hnp.arrays(np.int64, st.integers(1, 300), elements=st.integers(0, MOST)))
def test_numbers_of_very_unequal_size(array):
    assert (numbers(stored(array), len(array)) == array).all()


def test_large_numbers():
    array = np.array([MOST, 0, MOST - 1, 12345678901])
    assert (numbers(stored(array), 4) == array).all()


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3])
def test_gaps_cost_little_more_than_their_entropy(share):
    rng = np.random.default_rng(4)
    at = np.flatnonzero(rng.random(400_000) < share)
    bits = 8 * len(stored(np.diff(at, prepend=-1) - 1))
    entropy = -400_000 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert bits < 1.05 * entropy


@given(st.binary(max_size=40), st.integers(0, 60))
def test_random_bytes(data, count):
    with pytest.raises(DamagedData):
        numbers(data + b"\x05", count, 1000)
        raise DamagedData("it may be sound, or not; nothing else is raised")


@pytest.mark.parametrize(
    ("damaged", "count"),
    [
        (bytes((2, 5, 0b10_11_10_01, 0b001_01_001)), 3),  # a bit behind the low ones
        (bytes((2, 5, 0b10_11_10_00, 0b001_01_010)), 3),  # the last quotient ends too early
        (bytes((2, 5, 0b10_11_10_00, 0b001_00_001)), 3),  # a number is missing
        (bytes((41, 0, 0, 0)), 1),
        (bytes((0, 0)), 1),
    ],
)
def test_damage_is_named(damaged, count):
    with pytest.raises(DamagedData):
        numbers(damaged, count)


def test_a_claim_allocates_nothing():
    tracemalloc.start()
    claim = bytes((0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F))
    with pytest.raises(DamagedData):
        numbers(claim, 10)
    with pytest.raises(DamagedData):
        numbers(bytes((30, 0)), 1 << 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_no_number_above_the_most():
    with pytest.raises(DamagedData):
        numbers(stored([7, 1]), 2, 6)
