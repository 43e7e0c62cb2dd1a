import itertools
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.codecs.streams import gathered
from mvc.errors import InvalidPipeline, WrongUsage
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from tests.codecs.samples import (
    PATTERNS,
    TENSOR_PIPELINES,
    TRAPS,
    WIDTHS,
    full_and_back,
    pair,
    pairs,
    there_and_back,
)

pytestmark = pytest.mark.usefixtures("arithmetic")


@settings(max_examples=300)
@given(st.sampled_from(TENSOR_PIPELINES), pairs())
def test_round_trip_both_ways(text, sample):
    new, base, width = sample
    assert len(there_and_back(Pipeline.parse(text), new, base, width)) <= len(new) + 4
    assert len(full_and_back(Pipeline.parse(text), new, width)) <= len(new) + 4


@pytest.mark.parametrize("text", TENSOR_PIPELINES)
@pytest.mark.parametrize("width", WIDTHS)
def test_bit_patterns_that_floats_lose(text, width):
    pipeline = Pipeline.parse(text)
    for patterns in (TRAPS, PATTERNS, np.tile(PATTERNS, 100)):
        new, base = patterns.tobytes(), patterns[::-1].tobytes()
        for data, old in ((new, base), (new, bytes(len(new))), (new[:-1], base[1:])):
            there_and_back(pipeline, data, old, width)
            full_and_back(pipeline, data, width)


@pytest.mark.parametrize("text", TENSOR_PIPELINES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_whole_chunk_that_lies_at_an_odd_address(text, width):
    new, base = pair((1 << 20) + 3, width, 0.5, 1)
    stored = Pipeline.parse(text).encode_chunk(memoryview(new)[1:], memoryview(base)[1:], width)
    state = bytearray(base)
    Pipeline.parse(text).apply_chunk(
        memoryview(stored), memoryview(state)[1:], width, reverse=False
    )
    assert state[1:] == new[1:]
    assert state[0] == base[0]


@pytest.mark.parametrize("high", [16, 256])
def test_what_does_not_compress_is_encoded_without_a_copy(high):
    """Half of a chunk, or all of it: a page that is touched first costs more than its encoding."""
    words = np.random.default_rng(0).integers(high << 8, size=1 << 19).astype("<u2")
    words[0] = 0
    room, pipeline = memoryview(bytearray(words.nbytes + 1)), Pipeline.parse("lossless").full()
    chunk = words.data.cast("B")
    plain = pipeline.encode_chunk(chunk, None, 2)
    tracemalloc.start()
    try:
        encoded = gathered(pipeline.encode_parts(chunk, None, 2), lambda size: room[:size])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert encoded.obj is room.obj
    assert encoded == plain
    assert peak < 0.6 * words.nbytes  # zstd asks for half


@pytest.mark.parametrize("text", ["lossless", "xor | planes | zstd:1"])
def test_deltas_combine_in_any_order(text):
    pipeline = Pipeline.parse(text)
    versions = [pair(4001, 4, 0.3, seed)[0] for seed in range(4)]
    deltas = [
        pipeline.encode_chunk(memoryview(b), memoryview(a), 4)
        for a, b in itertools.pairwise(versions)
    ]
    for order in itertools.permutations(deltas):
        for start, end, reverse in ((0, -1, False), (-1, 0, True)):
            state = bytearray(versions[start])
            for delta in order:
                pipeline.apply_chunk(memoryview(delta), memoryview(state), 4, reverse=reverse)
            assert state == versions[end]


def test_equal_tensors_and_constant_changes_cost_a_few_bytes():
    base = pair(1 << 20, 4, 0.0, 0)[1]
    pipeline = Pipeline.parse("lossless")
    assert len(there_and_back(pipeline, base, base, 4)) == 1
    raised = (np.frombuffer(base, np.uint32) + np.uint32(77)).tobytes()
    assert len(there_and_back(pipeline, raised, base, 4)) == 5
    assert len(full_and_back(pipeline, bytes(1 << 20), 4)) == 1


def test_few_changes_cost_little():
    base = pair(1 << 20, 4, 0.0, 0)[1]
    new = bytearray(base)
    for i in (10, 400_000, 1_000_001):
        new[i] ^= 1
    assert len(there_and_back(Pipeline.parse("lossless"), bytes(new), base, 4)) < 100


def test_presets_and_canonical_text():
    assert Pipeline.parse("lossless").text == "sub | zigzag | elide | planes | zstd:huff"
    assert Pipeline.parse("lossless").full().text == "planes | zstd:huff"
    assert Pipeline.parse("none").full() is not None
    assert Pipeline.parse("none").operator == "none"
    assert Pipeline.parse(" sub|zigzag |planes| zstd:01 ").text == "sub | zigzag | planes | zstd:1"
    assert Pipeline.parse("xor").full().text == "raw"
    vsol = Pipeline.parse("vsol")
    assert (vsol.scope, vsol.operator, vsol.full().text) == ("group", "xor", "planes:all | zstd:1")
    for text in [*PRESETS, *TENSOR_PIPELINES]:
        pipeline = Pipeline.parse(text)
        assert Pipeline.parse(pipeline.text) == pipeline
        assert hash(Pipeline.parse(pipeline.text)) == hash(pipeline)
        assert pipeline.full().full() == pipeline.full()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "neither a stage"),
        ("sub |", "neither a stage"),
        ("gzip", "neither a stage"),
        ("SUB", "neither a stage"),
        ("planes | sub", "stage sub"),
        ("zstd:1 | planes", "stage planes"),
        ("zstd:1 | zstd:1", "stage zstd:1"),
        ("xor | zigzag", "stage zigzag"),
        ("zigzag", "stage zigzag"),
        ("elide | planes", "stage elide"),
        ("sub | elide | elide", "stage elide"),
        ("sub | elide | zigzag", "stage zigzag"),
        ("sub | zigzag | raw", "stage raw"),
        ("sub | xor", "stage xor"),
        ("planes | planes", "stage planes"),
        ("xor | elide | planes:all | zstd:1", "elide"),
        ("xor | elide | sparse", "sparse"),
        ("xor | sparse | planes", "planes"),
        ("sparse | zstd:1", "sparse"),
        ("xor | sparse:some", "some"),
        ("xor | sparse:none,diff", "none"),
        ("xor | sparse:diff,diff", "diff"),
        ("xor | planes | sparse", "sparse"),
        ("xor | lsb:20 | lsb:18", "lsb:18"),
        ("sub | lsb:20", "lsb:20"),
        ("lsb:20 | xor", "lsb:20"),
        ("xor | planes | lsb:20", "lsb:20"),
        ("xor | lsb:0", "N must be a whole number from 1 to 23"),
        ("xor | lsb:24", "N must be a whole number from 1 to 23"),
        ("xor | lsb:20,msb=0", "msb must be a whole number from 1 to 23"),
        ("xor | lsb:20,msb", "msb"),
        ("xor | lsb:20,msb=3,msb=3", "msb twice"),
        ("xor | lsb", "N must be a whole number"),
        ("xor | topk:0.1", "topk:0.1"),
        ("topk:0.1", "ends with"),
        ("topk:0.1 | planes", "planes"),
        ("topk:0.1 | topk:0.2 | xor", "topk:0.2"),
        ("topk:0.1 | topk-all:0.2 | xor", "topk-all:0.2"),
        ("topk:1.1 | xor", "P must be a number from 0 to 1"),
        ("topk:-0.1 | xor", "P must be a number from 0 to 1"),
        ("topk:nan | xor", "P must be a number from 0 to 1"),
        ("topk:1e-3 | xor", "P must be a number from 0 to 1"),
        ("topk | xor", "P must be a number"),
        ("topk:0.1,min=2 | xor", "min must be a number from 0 to 1"),
        ("topk:0.1,loss=high | xor", "loss must be a number from -1000 to 1000"),
        ("topk:0.1,loss=1001 | xor", "loss must be a number from -1000 to 1000"),
        ("topk:0.1,loss=linear,carry | xor", "has no option 'carry'"),
        ("topk:0.1,loub=1 | xor", "loub is for losses"),
        ("topk:0.1,loss=2,loub=0 | xor", "loub must be a number from 0.0001"),
        ("topk:0.1,loss=2,loub=nan | xor", "loub must be a number from 0.0001"),
        ("topk:0.1,most=3 | xor", "most"),
        ("topk-all:0.1,loss=linear | xor", "loss"),
        ("every:1 | raw", "SAVE/SKIP"),
        ("every:0/1 | raw", "SAVE must be a whole number from 1"),
        ("every:1/x | raw", "SKIP must be a whole number from 0"),
        ("every:1/2", "only decides"),
        ("every:1/2 | every:1/2 | raw", "more than once"),
        ("topk:0.1 | every:1/2 | xor", "every:1/2"),
        ("xor | every:1/2", "every:1/2"),
        ("drift:ddm | raw", "ddm"),
        ("dsed:0 | xor", "dsed:0"),
        ("xor | planes | dsed:0", "dsed:0"),
        ("xor | dsed:2", "E must be a number from 0 to 1"),
        ("xor | dsed:0,first", "first"),
        ("xor | dsed:0 | lsb:20 | dsed:0", "more than once"),
        ("xor | elide | planes:concat", "elide"),
        ("bz2", "level must be a whole number from 1 to 9"),
        ("bz2:10", "level must be a whole number from 1 to 9"),
        ("zlib:0", "level must be a whole number from 1 to 9"),
        ("lzma:10", "level must be a whole number from 0 to 9"),
        ("brotli:12", "level must be a whole number from 0 to 11"),
        ("zstd:1 | lzma", "lzma"),
        ("planes:some", "planes:some"),
        ("sub:3", "no parameter"),
        ("zstd", "zstd:"),
        ("zstd:", "neither"),
        ("zstd:0", "zstd:0"),
        ("zstd:23", "zstd:23"),
        ("zstd:-1", "zstd:-1"),
        ("zstd:²", "zstd:²"),
        ("x" * 1000, "characters"),
    ],
)
def test_what_cannot_be_built(text, word):
    with pytest.raises(InvalidPipeline, match=word.replace("|", r"\|")):
        Pipeline.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical", "decisions", "lossy", "coding", "full"),
    [
        (
            "every:01/2|topk:.0750, min=0.001,loss=0|xor|lsb:20 | dsed: 0.010,last |sparse|zstd:1",
            "every:1/2 | topk:0.075,min=0.001,loss=linear | xor | lsb:20 | dsed:0.01,last | sparse "
            "| zstd:1",
            ["every:1/2", "dsed:0.01,last"],
            ["topk:0.075,min=0.001,loss=linear", "lsb:20"],
            "xor | sparse | zstd:1",
            "planes:all | zstd:1",
        ),
        ("xor|lsb:4,msb=7", "xor | lsb:4,msb=7", [], ["lsb:4,msb=7"], "xor", "raw"),
        (
            "drift:adwin | every:3/0 | sub | sparse:diff,values | lzma",
            "drift:adwin | every:3/0 | sub | sparse:values,diff | lzma:6",
            ["drift:adwin", "every:3/0"],
            [],
            "sub | sparse:values,diff | lzma:6",
            "planes | lzma:6",
        ),
        (
            "topk-all:1,min=0 | sub | sparse:none | zstd:1",
            "topk-all:1 | sub | sparse:none | zstd:1",
            [],
            ["topk-all:1"],
            "sub | sparse:none | zstd:1",
            "zstd:1",
        ),
        (
            "topk:0.5,loss=2,loub=2.50 | xor",
            "topk:0.5,loss=2,loub=2.5 | xor",
            [],
            ["topk:0.5,loss=2,loub=2.5"],
            "xor",
            "raw",
        ),
        (
            "topk:0.5,loub=0.50,loss=2 | xor",
            "topk:0.5,loss=2 | xor",
            [],
            ["topk:0.5,loss=2"],
            "xor",
            "raw",
        ),
        ("every:1/2 | planes", "every:1/2 | planes", ["every:1/2"], [], "planes", "planes"),
        (
            "xor | sparse:diff,indices,layers,values | brotli:0",
            "xor | sparse | brotli:0",
            [],
            [],
            "xor | sparse | brotli:0",
            "planes:all | brotli:0",
        ),
    ],
    ids=range(8),
)
def test_parts_of_a_line(text, canonical, decisions, lossy, coding, full):
    pipeline = Pipeline.parse(text)
    assert pipeline.text == canonical
    assert Pipeline.parse(canonical) == pipeline
    assert [stage.text for stage in pipeline.decisions] == decisions
    assert [stage.text for stage in pipeline.lossy] == lossy
    assert pipeline.coding().text == coding
    assert pipeline.coding() == Pipeline.parse(coding)
    assert pipeline.coding().coding() == pipeline.coding()
    assert pipeline.full().text == full
    assert pipeline.full().full() == pipeline.full()


def test_the_presets_of_the_thesis():
    top = "topk:0.075,min=0.001,loss="
    expected = {
        "vsol": "xor | planes:all | zstd:1",
        "vsol-0-fast": "xor | lsb:20 | planes:all | zstd:1",
        "vsol-0-slow": "xor | lsb:20 | dsed:0 | planes:all | zstd:1",
        "vsol-0.1-fast": f"{top}linear | xor | lsb:18 | sparse | zstd:1",
        "vsol-0.1-slow": "xor | lsb:20 | dsed:0.01 | planes:all | zstd:1",
        "vsol-1-fast": f"{top}-0.5 | xor | lsb:20 | sparse | zstd:1",
        "vsol-1-slow": f"{top}-0.5 | xor | lsb:20 | dsed:0.01 | sparse | zstd:1",
    }
    assert {name: Pipeline.parse(name).text for name in PRESETS if name in expected} == expected
    assert all(Pipeline.parse(name).scope == "group" for name in expected)


def test_only_a_coding_codes():
    for text in ("vsol-0-fast", "every:1/2 | sub | planes"):
        pipeline, data = Pipeline.parse(text), memoryview(bytes(8))
        with pytest.raises(WrongUsage, match="coding"):
            pipeline.encode_chunk(data, data, 4)
        assert pipeline.coding().encode_chunk(data, data, 4)


def test_a_base_where_none_belongs_and_the_other_way():
    data = memoryview(bytes(8))
    delta, full = Pipeline.parse("lossless"), Pipeline.parse("lossless").full()
    with pytest.raises(WrongUsage):
        delta.encode_chunk(data, None, 4)
    with pytest.raises(WrongUsage):
        delta.encode_chunk(data, data[:4], 4)
    with pytest.raises(WrongUsage):
        full.encode_chunk(data, data, 4)
    with pytest.raises(WrongUsage):
        delta.decode_chunk(data, memoryview(bytearray(8)), 4)
    with pytest.raises(WrongUsage):
        full.apply_chunk(data, memoryview(bytearray(8)), 4, reverse=False)
    with pytest.raises(WrongUsage):
        full.encode_chunk(data, None, 3)


def test_threads_do_not_share_buffers():
    pipeline = Pipeline.parse("lossless")
    wrong = []

    def work(seed):
        for i in range(20):
            new, base = pair(100_000, 4, 0.5, seed * 100 + i)
            stored = pipeline.encode_chunk(memoryview(new), memoryview(base), 4)
            state = bytearray(base)
            pipeline.apply_chunk(memoryview(stored), memoryview(state), 4, reverse=False)
            wrong.extend([seed] * (state != new))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
