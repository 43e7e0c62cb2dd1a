import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.compressors import FAST
from mvc.errors import DamagedData
from mvc.pipelines.pipeline import Pipeline


def decompress(frame, size):
    out = np.zeros(size, np.uint8)
    FAST.decompress_into(frame, out)
    return out.tobytes()


def compress(data, level):
    return Pipeline.parse(f"zstd:{level}").method.compress(data)


@given(st.binary(min_size=1, max_size=5000), st.sampled_from(["huff", "1", "19"]))
def test_round_trip(data, method):
    assert decompress(memoryview(compress(data, method)), len(data)) == data


def test_huff_spends_its_bits_on_symbols():
    rng = np.random.default_rng(0)
    plane = np.clip(rng.normal(120, 3, 1 << 16), 0, 255).astype(np.uint8)
    share = np.bincount(plane)[np.bincount(plane) > 0] / len(plane)
    entropy = -(share * np.log2(share)).sum() / 8 * len(plane)
    assert len(compress(plane, "huff")) < 1.03 * entropy


def forged(size: int) -> bytes:
    """A frame whose header declares ``size`` bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x01\x00\x00"


good = zstandard.ZstdCompressor().compress(bytes(1000))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        forged(1 << 40),
        forged(1000),
        good + b"x",
        good + good,
        good[:-1],
        zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1000)),
        good[:-1] + b"\x07",
        good[:7] + bytes((good[7] & 0xFE,)) + good[8:],
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)),
        zstandard.ZstdCompressor().compress(bytes(1 << 20)),
        struct.pack("<II", 0x184D2A50, 1000) + bytes(1000),
        b"\x28\xb5\x2f\xfd\x40\xf8" + struct.pack("<H", 744) + b"\x01\x00\x00",
    ],
)
def test_refuses_what_is_not_one_frame_of_the_recorded_size(frame):
    assert decompress(memoryview(good), 1000) == bytes(1000)
    with pytest.raises(DamagedData):
        decompress(memoryview(frame), 1000)


@pytest.mark.parametrize("level", ["20", "22"])
def test_the_highest_levels_keep_to_the_window(level):
    """A segment, the most that is ever compressed at once."""
    data = np.resize(np.random.default_rng(0).integers(0, 9, 70_001, dtype=np.uint8), 4 << 20)
    assert decompress(memoryview(compress(data, level)), len(data)) == data.tobytes()
