import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.patch import BLOCK, decode_patch, encode_patch
from mvc.errors import DamagedData


def through(new, base, extra=b""):
    data = encode_patch(memoryview(new), memoryview(base), extra)
    assert decode_patch(memoryview(data), memoryview(base), extra, len(new)) == new
    return data


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=50))
def test_round_trip_of_any_bytes(new, base, extra):
    through(new, base, extra)
    through(base + new, base)


def test_a_small_edit_costs_little():
    base = random.Random(0).randbytes(200_000)
    assert len(through(base[:100_000] + b"inserted" + base[100_000:], base)) < 100
    assert len(through(base, base)) < 60
    assert len(through(b"", base)) == 0
    assert len(through(base[:5000], b"", extra=base[:6000])) < 60


def test_buffers_of_several_blocks():
    base = random.Random(1).randbytes(2 * BLOCK + 12_345)
    new = base[:1000] + b"x" + base[1000:BLOCK] + base[BLOCK + 500 :] + b"end"
    assert len(through(new, base)) < 12_000


def test_a_base_that_looks_like_a_trained_dictionary():
    base = b"\x37\xa4\x30\xec" + bytes(range(256)) * 4
    through(base[::-1] + base, base)


def test_a_wrong_base_or_damage_never_escapes_as_another_error():
    base = random.Random(2).randbytes(5000)
    data = encode_patch(memoryview(base), memoryview(base))
    for wrong in (data[:-1], data + b"\0", b"", b"\xff" * 20, data[:5] + b"\x7f" + data[6:]):
        with pytest.raises(DamagedData):
            decode_patch(memoryview(wrong), memoryview(base), b"", len(base))
    with pytest.raises(DamagedData):
        decode_patch(memoryview(data), memoryview(base), b"", 1 << 60)
