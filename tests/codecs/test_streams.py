import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.compressors import FAST, HUFFMAN
from mvc.codecs.streams import (
    CONSTANT,
    FRAME,
    RAW,
    SPARSE,
    decode_bitmap,
    decode_stream,
    encode_stream,
)
from mvc.codecs.varint import Cursor
from mvc.codecs.words import positions
from mvc.errors import DamagedData
from mvc.pipelines.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("arithmetic")

LINES = ["zstd:huff", "zstd:1", "zlib:1", "bz2:9", "lzma:6", "brotli:4"]
METHODS = [Pipeline.parse(line).method for line in LINES]


def through(data, method=HUFFMAN):
    stored = b"".join(map(bytes, encode_stream(data, method)))
    cursor = Cursor(stored)
    back = decode_stream(cursor, len(data), method)
    cursor.end()
    assert bytes(np.broadcast_to(np.asarray(back, np.uint8), len(data))) == data.tobytes()
    return stored


@given(st.binary(max_size=3000), st.sampled_from(METHODS))
def test_round_trip_of_any_bytes(data, method):
    assert len(through(np.frombuffer(data, np.uint8), method)) <= len(data) + 1


@given(st.integers(0, 50_000), st.floats(0, 1), st.integers(1, 256), st.integers(0, 99))
def test_round_trip_of_sparse_bytes(count, share, top, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, top, count, dtype=np.uint8)
    data[rng.random(count) > share] = 0
    through(data)


def test_each_form_is_used_where_it_belongs():
    rng = np.random.default_rng(0)
    random = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
    assert through(random)[0] == RAW
    assert through(np.full(1 << 16, 9, np.uint8)) == bytes((CONSTANT, 9))
    assert through(np.minimum(random, 40))[0] == FRAME
    few = np.where(rng.random(1 << 16) < 0.02, random, 0).astype(np.uint8)
    stored = through(few)
    assert stored[0] == SPARSE
    share = float((few != 0).mean())
    limit = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) / 8 + share
    assert len(stored) < 1.1 * limit * len(few)


def test_next_to_nothing_changed_costs_next_to_nothing():
    data = np.zeros(1 << 20, np.uint8)
    data[[5, 70_000, 1_000_000]] = 1, 2, 3
    assert len(through(data)) < 80


def test_a_bitmap_must_not_mark_past_its_end():
    cursor = Cursor(bytes((RAW, 0b11100000)))
    marks, count = decode_bitmap(cursor, 3, FAST, "x")
    assert count == 3 and positions(marks, 3).tolist() == [0, 1, 2]
    with pytest.raises(DamagedData):
        decode_bitmap(Cursor(bytes((RAW, 0b11110000))), 3, FAST, "x")


def test_bitmaps_of_bitmaps_end():
    with pytest.raises(DamagedData):
        decode_stream(Cursor(bytes((SPARSE,)) * 100), 1 << 20)
