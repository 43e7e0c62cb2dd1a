import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.words import combine, unzigzag, word_type, zigzag
from mvc.errors import WrongUsage
from tests.codecs.samples import widths

pytestmark = pytest.mark.usefixtures("arithmetic")


def test_zigzag_known_answers():
    words = np.array([0, 0xFFFFFFFF, 1, 0xFFFFFFFE, 0x7FFFFFFF, 0x80000000], np.uint32)
    before = words.copy()
    zigzag(words)
    assert words.tolist() == [0, 1, 2, 3, 0xFFFFFFFE, 0xFFFFFFFF]
    unzigzag(words)
    assert (words == before).all()


@given(widths, st.binary(max_size=200))
def test_zigzag_is_undone_for_every_pattern(width, data):
    words = np.frombuffer(bytearray(data), word_type(width), len(data) // width)
    before = words.copy()
    zigzag(words)
    unzigzag(words)
    assert (words == before).all()


@given(st.sampled_from(["sub", "xor"]), widths, st.data())
def test_combine_goes_there_and_back(operator, width, data):
    size = data.draw(st.integers(0, 50))
    start, delta = (data.draw(st.binary(min_size=size, max_size=size)) for _ in "ab")
    state = bytearray(start)
    combine(operator, memoryview(state), memoryview(delta), width)
    combine(operator, memoryview(state), memoryview(delta), width, reverse=True)
    assert state == start


def test_combine_refuses_unequal_lengths_and_odd_widths():
    with pytest.raises(WrongUsage):
        combine("xor", memoryview(bytearray(4)), memoryview(bytes(5)), 4)
    with pytest.raises(WrongUsage):
        combine("xor", memoryview(bytearray(6)), memoryview(bytes(6)), 3)
    with pytest.raises(WrongUsage):
        combine("xor", memoryview(bytearray(6)), memoryview(bytes(6)), 0)
