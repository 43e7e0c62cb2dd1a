import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.payload import Payload, pack_chunks
from mvc.errors import DamagedData


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=9), st.sampled_from([1, 2, 4, 8]))
def test_round_trip(chunks, width):
    nbytes = max(0, len(chunks) * 64 - 5)
    data = b"".join(pack_chunks(chunks, width, 64))
    payload = Payload(data, nbytes)
    assert (payload.width, payload.chunk_size, payload.count) == (width, 64, len(chunks))
    assert [bytes(payload.chunk(i)) for i in range(payload.count)] == chunks


def test_one_chunk_costs_one_byte_and_is_not_copied():
    chunk = bytes(100)
    parts = pack_chunks([chunk], 4, 1 << 20)
    assert len(parts[0]) == 1
    assert parts[1] is chunk


@pytest.mark.parametrize(
    ("data", "nbytes"),
    [
        (b"", 0),
        (b"\x00", 0),
        (b"\xff", 0),
        (b"\x52x", 0),
        (b"\x52", 5),
        (b"\x1a\x05abc", 100),
        (b"\x1a\x03abc", 100),
        (b"\x1a\x00abc", 100),
        (b"\x1a\x80\x00abc", 100),
        (b"\x52abc", 1 << 62),
    ],
)
def test_what_does_not_tile_is_damage(data, nbytes):
    with pytest.raises(DamagedData):
        Payload(data, nbytes)
