"""Buffers that the codec tests share: patterns that trap floats, and data like that of training."""

import numpy as np
from hypothesis import strategies as st

from mvc.pipelines.pipeline import Pipeline

TRAPS = np.array([0, 0x80000000, 0x3F800000, 0x7FC00001, 1], np.uint32)
PATTERNS = np.array(
    [0, 1, 0x80000000, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF],
    np.uint32,
)
WIDTHS = (1, 2, 4, 8)
TENSOR_PIPELINES = (
    "lossless",
    "sub | zigzag | planes | zstd:huff",
    "sub | elide | planes | zstd:3",
    "sub | planes",
    "sub | raw",
    "sub | zigzag | elide | zstd:huff",
    "xor | planes | zstd:1",
    "xor | elide | planes | zstd:huff",
    "xor | elide",
    "xor | zstd:1",
    "xor",
    "xor | sparse:none | zstd:1",
    "xor | sparse:values,indices,diff",
    "sub | zigzag | sparse:values,diff | zstd:huff",
    "sub | sparse:indices | zlib:6",
    "xor | planes | zlib:1",
    "xor | planes | bz2:9",
    "sub | zigzag | elide | planes | lzma:0",
    "xor | planes | brotli:4",
    "sub | zigzag | blocks:18 | zstd:huff",
    "xor | blocks:3 | zlib:1",
    "sub | blocks:1024",
)
GROUP_PIPELINES = (
    "vsol",
    "sub | zigzag | planes:all | zstd:huff",
    "xor | planes:all",
    "xor | planes:concat | zstd:1",
    "xor | sparse | zstd:1",
    "xor | sparse:layers",
    "sub | zigzag | sparse:layers,values | bz2:1",
    "sub | sparse:layers,indices,diff | lzma:1",
)

widths = st.sampled_from(WIDTHS)


def quantised(weights: np.ndarray) -> np.ndarray:
    """The last dimension as blocks of Q4_1: scale and minimum in float16, then 32 quants of 4 bits.

    Two quants are one byte.
    """
    blocks = weights.reshape(*weights.shape[:-1], -1, 32)
    least, most = (each(blocks, axis=-1, keepdims=True) for each in (np.min, np.max))
    scale = np.maximum((most - least) / 15, 1e-6)
    quants = np.rint((blocks - least) / scale).astype(np.uint8)
    halves = [part.astype("<f2").view(np.uint8) for part in (scale, least)]
    bytes_ = [*halves, quants[..., :16] | quants[..., 16:] << 4]
    return np.concatenate(bytes_, axis=-1).reshape(*weights.shape[:-1], -1)


def pair(nbytes: int, width: int, share: float, seed: int) -> tuple[bytes, bytes]:
    """Two byte strings of which ``share`` of the elements differ, most of them by little."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, nbytes, dtype=np.uint8)
    words = base[: nbytes // width * width].view(f"<u{width}").copy()
    step = rng.normal(0, 2 ** (4 * width - 1), len(words)).astype(np.int64).astype(f"<u{width}")
    moved = rng.random(len(words)) < share
    words[moved] += step[moved]
    tail = base[len(words) * width :] ^ (share > 0)
    return words.tobytes() + tail.tobytes(), base.tobytes()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """New bytes, base of equal length, width."""
    width = draw(widths)
    size = draw(st.one_of(st.integers(0, 600), st.integers(0, 20_000)))
    share = draw(st.sampled_from([0.0, 0.001, 0.05, 0.4, 0.95, 1.0]))
    if size <= 64 and draw(st.booleans()):
        return draw(st.binary(min_size=size, max_size=size)), bytes(size), width
    return *pair(size, width, share, draw(st.integers(0, 1000))), width


def there_and_back(pipeline: Pipeline, new: bytes, base: bytes, width: int) -> bytes:
    """The chunk of a delta, which leads to ``new`` and back to ``base``."""
    stored = pipeline.encode_chunk(memoryview(new), memoryview(base), width)
    state = bytearray(base)
    pipeline.apply_chunk(memoryview(stored), memoryview(state), width, reverse=False)
    assert state == new
    pipeline.apply_chunk(memoryview(stored), memoryview(state), width, reverse=True)
    assert state == base
    return stored


def full_and_back(pipeline: Pipeline, data: bytes, width: int) -> bytes:
    """The chunk of a full record, which gives ``data`` back."""
    stored = pipeline.full().encode_chunk(memoryview(data), None, width)
    out = bytearray(b"\xaa" * len(data))
    pipeline.full().decode_chunk(memoryview(stored), memoryview(out), width)
    assert out == data
    return stored
