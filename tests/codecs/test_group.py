import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.codecs.compressors import FAST
from mvc.codecs.streams import encode_stream
from mvc.codecs.words import combine
from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline
from tests.codecs.samples import GROUP_PIPELINES, pairs

pytestmark = pytest.mark.usefixtures("arithmetic")


@given(st.sampled_from(GROUP_PIPELINES), st.lists(pairs(), max_size=6))
def test_round_trip_both_ways(text, samples):
    pipeline = Pipeline.parse(text)
    sizes = [len(new) for new, _, _ in samples]
    members = [(memoryview(new), memoryview(base), width) for new, base, width in samples]
    data = b"".join(encode_group(pipeline, members))
    deltas = decode_group(pipeline, memoryview(data), sizes)
    for (new, base, width), (delta, found) in zip(samples, deltas, strict=True):
        assert found == width
        state = bytearray(base)
        combine(pipeline.operator, memoryview(state), delta, width)
        assert state == new
        combine(pipeline.operator, memoryview(state), delta, width, reverse=True)
        assert state == base
    full = pipeline.full()
    if full.scope != "group":
        return
    data = b"".join(encode_group(full, [(new, None, width) for new, _, width in members]))
    back = decode_group(full, memoryview(data), sizes)
    assert [bytes(member) for member, _ in back] == [new for new, _, _ in samples]


def test_planes_of_all_tensors_equal_the_split_of_their_concatenation():
    """VSOL's forms 2 and 3 are the same bytes."""
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=n).astype(np.float32).tobytes() for n in (10, 1, 500, 33)]
    form_2 = encode_group(
        Pipeline.parse("vsol").full(), [(memoryview(t), None, 4) for t in tensors]
    )
    whole = np.frombuffer(b"".join(tensors), np.uint8).reshape(-1, 4)
    form_3 = [p for i in range(4) for p in encode_stream(np.ascontiguousarray(whole[:, i]), FAST)]
    assert b"".join(form_2) == bytes((4 << 2 | 2,)) + b"".join(map(bytes, form_3))


@given(st.lists(pairs(), max_size=6), st.sampled_from(["zstd:1", "zstd:huff", "lzma"]))
def test_forms_2_and_3_are_the_same_bytes(samples, compressor):
    members = [(memoryview(new), memoryview(base), width) for new, base, width in samples]
    forms = [
        b"".join(encode_group(Pipeline.parse(f"xor | {planes} | {compressor}"), members))
        for planes in ("planes:all", "planes:concat")
    ]
    assert forms[0] == forms[1]


def test_sparse_joins_the_tensors_of_a_record():
    """One list of positions over all of them: 3 of 30,000 changed words, 2 planes of steps."""
    base = [bytes(40_000), bytes(40_000), bytes(40_000)]
    new = [bytearray(b) for b in base]
    for member, word in ((0, 5), (1, 5), (2, 9)):
        new[member][4 * word] = 7
    members = [(memoryview(n), memoryview(b), 4) for n, b in zip(new, base, strict=True)]
    stored = b"".join(encode_group(Pipeline.parse("xor | sparse"), members))
    steps = np.array([5, 10_000, 10_004], "<u8").view("u1").reshape(3, 8).T.tobytes()
    assert stored == bytes((3 << 2 | 2, 3)) + steps + b"\7\7\7" + bytes(9)
    back = decode_group(Pipeline.parse("xor | sparse"), memoryview(stored), [40_000] * 3)
    assert [bytes(member) for member, _ in back] == list(map(bytes, new))


def test_planes_longer_than_a_segment():
    tensor = np.random.default_rng(1).normal(size=5 << 20).astype(np.float32).tobytes()
    pipeline = Pipeline.parse("vsol").full()
    data = b"".join(encode_group(pipeline, [(memoryview(tensor), None, 4)]))
    assert decode_group(pipeline, memoryview(data), [len(tensor)]) == [(tensor, 4)]
