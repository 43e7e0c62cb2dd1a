"""General compressors: any level, and nothing but the recorded bytes comes out."""

import builtins
import contextlib
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import DamagedData, NotInstalled
from mvc.pipelines.pipeline import Pipeline

LEVELS = {"zlib": range(1, 10), "bz2": range(1, 10), "lzma": range(10), "brotli": range(12)}
TEXT = b"the quick brown fox jumps over the lazy dog " * 200


def compress(data, line):
    return Pipeline.parse(line).method.compress(data)


def decompress(frame, size, line):
    out = np.zeros(size, np.uint8)
    Pipeline.parse(line).method.decompress_into(memoryview(frame), out)
    return out.tobytes()


@pytest.mark.parametrize(
    "method", [f"{n}:{level}" for n, found in LEVELS.items() for level in found]
)
def test_every_level(method):
    frame = compress(np.frombuffer(TEXT, np.uint8), method)
    assert len(frame) < len(TEXT) / 20
    assert decompress(frame, len(TEXT), method) == TEXT
    data = np.random.default_rng(0).bytes(5000)
    assert decompress(compress(data, method), 5000, method) == data


@given(st.binary(min_size=1, max_size=4000), st.sampled_from(sorted(LEVELS)))
def test_round_trip(data, name):
    assert decompress(compress(data, f"{name}:1"), len(data), f"{name}:1") == data


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_nothing_but_one_frame_of_the_recorded_size(name):
    method = f"{name}:1"
    frame = compress(TEXT, method)
    assert decompress(frame, len(TEXT), method) == TEXT
    wrong = [
        (frame, len(TEXT) - 1),
        (frame, len(TEXT) + 1),
        (frame, 1),
        (frame, 0),
        (frame + b"x", len(TEXT)),
        (frame + frame, len(TEXT)),
        (frame + frame, 2 * len(TEXT)),
        (frame[:-1], len(TEXT)),
        (frame[: len(frame) // 2], len(TEXT)),
        (b"", len(TEXT)),
        (b"\xff" * 50, len(TEXT)),
    ]
    for data, size in wrong:
        with pytest.raises(DamagedData):
            decompress(data, size, method)


@given(st.sampled_from(sorted(LEVELS)), st.binary(max_size=300), st.integers(0, 300), st.data())
def test_mutated(name, data, size, draw):
    frame = bytearray(compress(TEXT, f"{name}:1") if draw.draw(st.booleans()) else data)
    for _ in range(draw.draw(st.integers(0, 3))):
        if frame:
            frame[draw.draw(st.integers(0, len(frame) - 1))] ^= draw.draw(st.integers(1, 255))
    size = len(TEXT) if draw.draw(st.booleans()) else size
    with contextlib.suppress(DamagedData):
        assert len(decompress(frame, size, f"{name}:1")) == size


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_a_bomb_gives_no_more_than_was_recorded(name):
    bomb = compress(bytes(32 << 20), f"{name}:1")
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData):
            decompress(bomb, 4096, f"{name}:1")
        assert tracemalloc.get_traced_memory()[1] < len(bomb) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_without_the_extra(monkeypatch):
    """Found out when it is needed, not when a pipeline is built."""
    real = builtins.__import__

    def importing(name, *args, **options):
        if name == "brotli":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "brotli", raising=False)
    frame = compress(TEXT, "brotli:1")
    monkeypatch.delitem(sys.modules, "brotli", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    pipeline = Pipeline.parse("xor | brotli:1")
    data = memoryview(TEXT)
    with pytest.raises(NotInstalled) as caught:
        pipeline.encode_chunk(data, memoryview(bytes(len(data))), 4)
    assert "mvc-weights[brotli]" in str(caught.value.hint)
    with pytest.raises(NotInstalled):
        decompress(frame, len(TEXT), "brotli:1")
