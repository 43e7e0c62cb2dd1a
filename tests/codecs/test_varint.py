import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_round_trip(numbers):
    cursor = Cursor(b"".join(map(varint, numbers)))
    assert [cursor.varint() for _ in numbers] == numbers
    cursor.end()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x00", b"\xff" * 9, b"\xff" * 20])
def test_refuses_what_is_short_padded_or_too_large(data):
    with pytest.raises(DamagedData):
        Cursor(data).varint()


def test_never_reads_past_the_end():
    cursor = Cursor(b"abc")
    assert bytes(cursor.read(2)) == b"ab"
    with pytest.raises(DamagedData):
        cursor.read(2)
    with pytest.raises(DamagedData):
        cursor.end()
