"""Rows of symbols there and back, their sizes, and the known codes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.varint import Cursor
from mvc.errors import DamagedData
from mvc.lossy.lc.coders import ans, huffman, packed
from mvc.lossy.lc.coders.huffman import encode, lengths_of
from mvc.lossy.lc.packing import pack, per_byte, unpack
from tests.lossy.lc.states import entropy

CODERS = {"huffman": huffman, "packed": packed, "ans": ans}


def there_and_back(coding, symbols, alphabet):
    data = b"".join(CODERS[coding].encode(symbols, alphabet))
    cursor = Cursor(data + b"end")
    found = CODERS[coding].decode(cursor, len(symbols), alphabet)
    assert bytes(cursor.read(3)) == b"end"
    assert found.tolist() == symbols.tolist()
    return len(data)


@st.composite
def rows(draw):
    alphabet = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 17, 256, 257, 5000]))
    count = draw(st.integers(0, 3000))
    skew = draw(st.floats(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    row = (alphabet * rng.random(count) ** (1 + skew)).astype(int)
    return row.astype(np.uint8 if alphabet <= 256 else np.uint16), alphabet


@pytest.mark.parametrize("coding", CODERS)
@given(row=rows())
def test_there_and_back(coding, row):
    there_and_back(coding, *row)


@pytest.mark.parametrize("coding", CODERS)
@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("alphabet", [2, 4, 7, 40, 2000])
def test_long_rows(coding, count, alphabet):
    rng = np.random.default_rng(count)
    row = np.minimum(rng.geometric(0.4, count) - 1, alphabet - 1)
    row[::5000] = alphabet - 1
    there_and_back(coding, row.astype(np.uint8 if alphabet <= 256 else np.uint16), alphabet)


SHARES = (
    [0.5, 0.25, 0.15, 0.1],
    [0.9, 0.05, 0.03, 0.02],
    [0.95, 0.01, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005],
    [0.7, *[0.3 / 30] * 30],
)


@pytest.mark.parametrize("shares", SHARES)
def test_ans_is_within_two_per_cent_of_the_entropy(shares):
    rng = np.random.default_rng(0)
    row = rng.choice(len(shares), 1_000_000, p=shares).astype(np.uint8)
    assert 8 * there_and_back("ans", row, len(shares)) <= 1.02 * entropy(np.bincount(row))


def test_huffman_has_the_known_lengths():
    assert lengths_of([6, 1, 1, 2]).tolist() == [1, 3, 3, 2]
    assert lengths_of([2, 3, 2, 3]).tolist() == [2, 2, 2, 2]
    assert lengths_of([0, 5, 0]).tolist() == [0, 1, 0]
    assert lengths_of([0, 0]).tolist() == [0, 0]


def test_huffman_takes_what_its_lengths_say():
    row = np.repeat([0, 1, 2, 3], [6, 1, 1, 2]).astype(np.uint8)
    # form, number of lengths, two bytes of lengths, number of bits, 16 bits
    assert b"".join(encode(row, 4)).hex() == "01043123" + "10" + _bits(row)


def _bits(row):
    words = {0: "0", 3: "10", 1: "110", 2: "111"}
    text = "".join(words[s] for s in row.tolist())
    return f"{int(text, 2):0{len(text) // 4}x}"


def test_words_have_at_most_fifteen_bits():
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = lengths_of(fibonacci)
    assert int(lengths.max()) <= 15
    assert sum(2.0 ** -int(n) for n in lengths) == 1


@pytest.mark.parametrize("coding", CODERS)
@given(row=rows(), at=st.floats(0, 1), bit=st.integers(0, 7), cut=st.booleans())
def test_damage_is_told_or_harmless(coding, row, at, bit, cut):
    """Never another error, never symbols outside the alphabet, never another number of them."""
    symbols, alphabet = row
    data = bytearray(b"".join(CODERS[coding].encode(symbols, alphabet)))
    if not data:
        return
    place = min(int(at * len(data)), len(data) - 1)
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    try:
        found = CODERS[coding].decode(Cursor(bytes(data)), len(symbols), alphabet)
    except DamagedData:
        return
    assert len(found) == len(symbols)
    assert int(found.max(initial=0)) < alphabet


@pytest.mark.parametrize("together, precision", [(0, 12), (1, 0), (1, 11), (1, 17)])
def test_letters_that_no_encoder_writes(together, precision):
    """Of alphabets above 256 a letter is one symbol, never none."""
    lanes, known, states = bytes((4, 1, 1)), b"", bytes(20)
    data = bytes((2, together, precision)) + lanes + known + states
    with pytest.raises(DamagedData, match="unknown letter size"):
        CODERS["ans"].decode(Cursor(data), 10, 300)


def test_packing():
    assert [per_byte(n) for n in (1, 2, 3, 4, 5, 16, 17, 256, 257)] == [8, 8, 4, 4, 2, 2, 1, 1, 0]
    row = np.array([1, 2, 3, 0, 2], np.uint8)
    assert pack(row, 4).tolist() == [1 | 2 << 2 | 3 << 4, 2]
    assert pack(row, 2).tolist() == [1 | 2 << 4, 3, 2]
    assert pack(row & 1, 8).tolist() == [0b00101]
    for count in (1, 2, 4, 8):
        small = row & (1 << 8 // count) - 1
        assert unpack(pack(small, count), count, 5).tolist() == small.tolist()
