"""Quantised blocks: streams of bytes at the same places, wherever a chunk begins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import DamagedData, InvalidPipeline
from mvc.limits import CHUNK
from mvc.pipelines.pipeline import Pipeline
from tests.codecs.samples import full_and_back, quantised, there_and_back

pytestmark = pytest.mark.usefixtures("arithmetic")

WEIGHTS = np.random.default_rng(0).standard_normal((1000, 1024)).astype(np.float32)
OLD = quantised(WEIGHTS).tobytes()
MOVED = WEIGHTS + 1e-3 * np.random.default_rng(1).standard_normal(WEIGHTS.shape).astype("f4")
NEW = quantised(MOVED).tobytes()
PLANES = Pipeline.parse("lossless")
BLOCKS = PLANES.in_blocks(20)


@given(
    st.integers(2, 1024), st.sampled_from(["sub | zigzag", "xor"]), st.binary(max_size=3000),
    st.sampled_from(["", " | zstd:huff", " | bz2:1"]), st.integers(1, 40), st.randoms(),
)  # fmt: skip
def test_any_bytes_of_any_block_length(length, delta, data, method, repeats, random_):
    pipeline = Pipeline.parse(f"{delta} | blocks:{length}{method}")
    data = data * repeats
    other = bytearray(data)
    for _ in range(len(data) // 50):
        other[random_.randrange(len(data))] ^= random_.randrange(256)
    for width in (1, 4):
        assert len(there_and_back(pipeline, data, bytes(other), width)) <= len(data) + 4
        full_and_back(pipeline, data, width)


@pytest.mark.parametrize("start", [0, 1, 3, 13, 19, CHUNK % 20])
def test_a_chunk_may_begin_at_any_place_of_a_block(start: int):
    new, old = NEW[start : start + 600_000], OLD[start : start + 600_000]
    full = len(full_and_back(BLOCKS, new, 1))
    assert full < 0.97 * len(full_and_back(PLANES, new, 1))
    assert len(there_and_back(BLOCKS, new, old, 1)) < len(there_and_back(PLANES, new, old, 1))
    assert full == pytest.approx(len(full_and_back(BLOCKS, NEW[:600_000], 1)), rel=0.002)


@pytest.mark.parametrize("size", [200_000, 600_001])
def test_samples_have_whole_blocks(size: int):
    new, old = memoryview(NEW)[:size], memoryview(OLD)[:size]
    for base, form, rel in ((old, BLOCKS, 0.05), (None, BLOCKS.full(), 0.005)):
        stored = len(form.encode_chunk(new, base, 1)) / size
        assert BLOCKS.estimate(new, base, 1)[0] == pytest.approx(stored, rel=rel)


def test_only_planes_of_each_tensor_become_blocks():
    def in_blocks(text: str) -> str:
        return Pipeline.parse(text).in_blocks(18).text

    assert in_blocks("lossless") == "sub | zigzag | blocks:18 | zstd:huff"
    assert in_blocks("planes | lzma:1") == "blocks:18 | lzma:1"
    for text in ("xor | planes:all | zstd:1", "xor | sparse:none", "xor | raw", "raw"):
        assert in_blocks(text) == text


@pytest.mark.parametrize("text", ["blocks", "blocks:1", "blocks:1025", "blocks:x"])
def test_lengths_that_no_block_has(text: str):
    with pytest.raises(InvalidPipeline):
        Pipeline.parse(f"{text} | zstd:1")


@pytest.mark.parametrize(
    "stored", ["03", "03 00", "03 40 0100", "03 40 0100 00010203", "03 00 0100 00", "03 00 0400"]
)
def test_streams_that_do_not_cover_a_block_are_damage(stored: str):
    with pytest.raises(DamagedData):
        Pipeline.parse("blocks:3 | zstd:1").decode_chunk(
            memoryview(bytes.fromhex(stored)), memoryview(bytearray(9)), 1
        )
