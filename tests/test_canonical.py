"""One encoding a value: what is not canonical is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.canonical import Reader, Writer, encode_uint
from mvc.errors import DamagedData

UINTS = st.integers(0, (1 << 64) - 1)
SINTS = st.integers(-(1 << 63), (1 << 63) - 1)


def reader(data: bytes) -> Reader:
    return Reader(data, "a value")


@given(UINTS, SINTS, st.binary(max_size=50), st.text(max_size=50), st.lists(UINTS, max_size=8))
def test_round_trip(uint: int, sint: int, blob: bytes, text: str, uints: list[int]) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return
    writer = Writer().uint(uint).sint(sint).blob(blob).text(text).uints(uints).raw(b"end")
    read = reader(writer.done())
    assert (read.uint(), read.sint(), read.blob(50)) == (uint, sint, blob)
    assert read.text(400).encode("utf-8", "surrogateescape") == text.encode(
        "utf-8", "surrogateescape"
    )
    assert (read.uints(1 << 64), read.raw(3)) == (tuple(uints), b"end")
    read.end()


@given(st.binary(max_size=12))
def test_a_number_that_is_read_is_written_the_same_way(data: bytes) -> None:
    read = reader(data)
    try:
        value = read.uint()
    except DamagedData:
        return
    assert encode_uint(value) == data[: read.position]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends within"),
        (b"\x80", "ends within"),
        (b"\x80\x00", "redundant"),
        (b"\xff\x80\x00", "redundant"),
        (b"\xff" * 9 + b"\x02", "exceeds"),
        (b"\xff" * 10 + b"\x01", "longer than 64 bits"),
    ],
)
def test_numbers_that_nobody_writes(data: bytes, why: str) -> None:
    with pytest.raises(DamagedData, match=f"a value is damaged: .*{why}"):
        reader(data).uint()


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_numbers_that_cannot_be_written(value: int) -> None:
    with pytest.raises(ValueError, match="64 unsigned bits"):
        encode_uint(value)


def test_limits_and_ends() -> None:
    with pytest.raises(DamagedData, match="exceeds 5"):
        reader(b"\x06").uint(5)
    with pytest.raises(DamagedData, match="exceeds 2"):
        reader(b"\x03abc").blob(2)
    with pytest.raises(DamagedData, match="3 bytes are missing"):
        reader(b"ab").raw(3)
    with pytest.raises(DamagedData, match="cannot fit"):
        reader(b"\xff\xff\x03").count(1 << 40)
    with pytest.raises(DamagedData, match="1 bytes follow"):
        reader(b"a").end()


def test_bytes_that_are_no_utf8_stay_as_they_are() -> None:
    data = Writer().blob(b"\xff\xfe").done()
    text = reader(data).text(9)
    assert Writer().text(text).done() == data
