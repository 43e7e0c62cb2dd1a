"""Stored bytes that were damaged or forged: only DamagedData, and nothing else is touched."""

import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.codecs.patch import decode_patch, encode_patch
from mvc.codecs.payload import Payload
from mvc.codecs.varint import varint
from mvc.errors import DamagedData
from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline
from tests.codecs.samples import GROUP_PIPELINES, TENSOR_PIPELINES, pairs, widths

pytestmark = pytest.mark.usefixtures("arithmetic")

GUARD = b"\xa5" * 64


@st.composite
def mutated(draw, data: bytes) -> bytes:
    """``data`` with bytes changed, cut out, doubled or put in."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "double"]))
        if kind == "set" and at < len(out):
            out[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del out[at : at + draw(st.integers(1, 20))]
        elif kind == "insert":
            out[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "double":
            out[at:at] = out[at : at + 30]
    return bytes(out)


def decode_guarded(pipeline, data, size, width, base=None):
    """Decode inside a larger buffer whose margins must stay as they are."""
    buffer = bytearray(GUARD + (base or bytes(size)) + GUARD)
    inner = memoryview(buffer)[len(GUARD) : len(GUARD) + size]
    try:
        if base is None:
            pipeline.decode_chunk(memoryview(data), inner, width)
        else:
            pipeline.apply_chunk(memoryview(data), inner, width, reverse=False)
    except DamagedData:
        assert base is None or inner == base
    assert buffer[: len(GUARD)] == GUARD
    assert buffer[-len(GUARD) :] == GUARD


@settings(max_examples=400)
@given(st.sampled_from(TENSOR_PIPELINES), pairs(), st.data())
def test_mutated_chunks(text, sample, data):
    new, base, width = sample
    pipeline = Pipeline.parse(text)
    stored = pipeline.encode_chunk(memoryview(new), memoryview(base), width)
    decode_guarded(pipeline, data.draw(mutated(stored)), len(new), width, base)
    full = pipeline.full()
    stored = full.encode_chunk(memoryview(new), None, width)
    decode_guarded(full, data.draw(mutated(stored)), len(new), width)


@settings(max_examples=400)
@given(
    st.sampled_from(TENSOR_PIPELINES),
    st.integers(0, 4),
    st.lists(st.integers(0, 3), max_size=6),
    st.binary(max_size=60),
    st.integers(0, 300),
    widths,
)
def test_random_chunks(text, shape, forms, rest, size, width):
    pipeline = Pipeline.parse(text)
    data = bytes((shape, *forms)) + rest
    decode_guarded(pipeline, data, size, width, bytes(size))
    decode_guarded(pipeline.full(), data, size, width)


@given(st.binary(max_size=60), st.integers(0, 1 << 62))
def test_random_payloads(data, nbytes):
    try:
        payload = Payload(data, nbytes)
    except DamagedData:
        return
    assert sum(len(payload.chunk(i)) for i in range(payload.count)) <= len(data)


@given(st.sampled_from(GROUP_PIPELINES), st.lists(pairs(), min_size=1, max_size=3), st.data())
def test_mutated_groups(text, samples, data):
    pipeline = Pipeline.parse(text)
    members = [(memoryview(new), memoryview(base), width) for new, base, width in samples]
    stored = data.draw(mutated(b"".join(encode_group(pipeline, members))))
    sizes = [len(new) for new, _, _ in samples]
    try:
        out = decode_group(pipeline, memoryview(stored), sizes)
    except DamagedData:
        return
    assert [len(member) for member, _ in out] == sizes


@given(st.binary(max_size=500), st.binary(max_size=500), st.data())
def test_mutated_patches(new, base, data):
    stored = data.draw(mutated(encode_patch(memoryview(new), memoryview(base))))
    try:
        out = decode_patch(memoryview(stored), memoryview(base), b"", len(new))
    except DamagedData:
        return
    assert len(out) == len(new)


def test_memory_is_bounded_by_the_raw_chunk():
    """Each of these claims to hold far more than the chunk."""
    bomb = b"\x02" + b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x00\x01\x00\x00"
    pipeline = Pipeline.parse("lossless")
    tracemalloc.start()
    for head in (b"\x03\x02", b"\x04\x02", b"\x04\x03\x02", b"\x03" + b"\x03" * 5):
        for length in (b"\x10", b"\xff\xff\xff\xff\x7f"):
            decode_guarded(pipeline, head + length + bomb, 1 << 16, 4, bytes(1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_memory_of_positions_is_bounded_by_the_words():
    """At most a position of 8 bytes a word, however many are claimed."""
    words = 1 << 16
    rng = np.random.default_rng(0)
    for text in ("xor | sparse:none", "xor | sparse:values,indices,diff | zstd:1", "xor | sparse"):
        pipeline = Pipeline.parse(text)
        for claimed in (words, words - 1, words + 1, 1 << 40):
            data = memoryview(bytes((4 << 2 | 2,)) + varint(claimed) + rng.bytes(12 * words))
            tracemalloc.start()
            try:
                with contextlib.suppress(DamagedData):
                    if pipeline.scope == "group":
                        decode_group(pipeline, data, [4 * words])
                    else:
                        pipeline.apply_chunk(
                            memoryview(b"\3" + data[1:]),
                            memoryview(bytearray(4 * words)),
                            4,
                            reverse=False,
                        )
                assert tracemalloc.get_traced_memory()[1] < 40 * words + (1 << 20)
            finally:
                tracemalloc.stop()
