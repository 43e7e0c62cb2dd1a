"""Positions and values of what changed: on patterns, never on numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mvc.codecs.compressors import FAST
from mvc.codecs.sparse import OPTIONS, decode_sparse, encode_sparse
from mvc.codecs.stages import Sparse
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData
from tests.codecs.samples import TRAPS, WIDTHS

SETS = [
    ",".join(chosen) or "none"
    for count in range(5)
    for chosen in itertools.combinations(OPTIONS, count)
]
ZSTD = FAST


def through(words, options, method=None):
    chosen = Sparse.read("sparse", options).options
    stored = b"".join(map(bytes, encode_sparse(words, chosen, method)))
    cursor = Cursor(stored)
    values, at = decode_sparse(cursor, len(words), words.itemsize, chosen, method=method)
    cursor.end()
    out = np.zeros_like(words)
    out[slice(None) if at is None else at] = values
    assert np.array_equal(out, words)
    return stored


@pytest.mark.parametrize("options", SETS)
def test_changes_of_sign_alone_are_kept(options):
    through(TRAPS, options)
    through(np.concatenate([TRAPS, np.zeros(20, np.uint32)]), options, ZSTD)


@given(
    st.sampled_from(WIDTHS).flatmap(
        lambda width: arrays.arrays(
            f"<u{width}",
            st.integers(0, 300),
            elements=st.one_of(st.just(0), st.integers(0, 256**width - 1)),
            fill=st.just(0),
        )
    ),
    st.sampled_from(SETS),
    st.sampled_from([None, ZSTD]),
)
def test_round_trip(words, options, method):
    stored = through(words, options, method)
    if method is None:
        count = int(np.count_nonzero(words))
        dense = count > len(words) / 2 or not len(words)
        cost = len(words) * words.itemsize if dense else count * (8 + words.itemsize)
        assert len(stored) <= cost + 2


def test_layout_by_hand():
    words = np.zeros(400, "<u2")
    words[[3, 300]] = 0x0102, 0x0304
    at = np.array([3, 300], "<u8").tobytes()
    values = words[[3, 300]].tobytes()
    assert through(words, "none") == b"\2" + at + values
    assert through(words, "diff") == b"\2" + at[:8] + np.array([297], "<u8").tobytes() + values
    assert through(words, "values") == b"\2" + at + b"\2\4\1\3"
    assert through(words, "indices") == b"\2" + b"\3\x2c\0\1" + bytes(12) + values


def test_half_of_the_words_and_more_need_no_positions():
    words = np.array([1, 0, 2, 3], "<u4")
    assert through(words, "none") == b"\4" + words.tobytes()
    assert through(words[:2], "none") == b"\1" + bytes(8) + words[:1].tobytes()


def positions(*at):
    return np.array(at, "<u8").tobytes()


@pytest.mark.parametrize("options", ["none", "diff"])
@pytest.mark.parametrize(
    "data",
    [
        varint(11) + bytes(200),
        varint(1 << 40),
        varint(2) + positions(3, 3 - (1 << 64) + (1 << 64)) + bytes(8),
        varint(2) + positions(1 << 63, 1 << 63) + bytes(8),
        varint(3) + positions((1 << 64) - 1, 5, 1) + bytes(12),
        varint(1) + positions(10) + bytes(4),
        varint(2) + positions(9, 0) + bytes(8),
        varint(2) + positions(3),
        varint(1) + positions(3) + bytes(3),
        b"",
    ],
    ids=range(10),
)
def test_what_is_not_in_order_or_past_the_end(options, data):
    chosen = Sparse.read("sparse", options).options
    if options == "diff" and data == varint(2) + positions(3, 3) + bytes(8):
        data = varint(2) + positions(3, 0) + bytes(8)
    with pytest.raises(DamagedData):
        decode_sparse(Cursor(data), 10, 4, chosen, method=None)
