"""Deltas in whole steps, and full records on a grid, through the pipeline."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import DamagedData, InvalidPipeline
from mvc.pipelines.pipeline import GRID, Pipeline
from tests.codecs.samples import PATTERNS, full_and_back, pairs, there_and_back
from tests.codecs.test_hostile import decode_guarded, mutated

TEXTS = ("steps | gaps | zstd:huff", "steps | gaps", "steps | gaps | zstd:1")
CODING = Pipeline.parse(TEXTS[0])


def on_grid(seed, count, dtype="<f4", step=2.0**-6, share=0.02, far=1):
    """New values and their base, both multiples of ``step``."""
    rng = np.random.default_rng(seed)
    base = rng.integers(-100, 100, count)
    moved = rng.random(count) < share
    move = rng.integers(1, far + 1, count) * rng.choice((-1, 1), count)
    new = np.where(moved, base + move, base)
    return (new * step).astype(dtype), (base * step).astype(dtype)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_steps_cost_the_gaps_and_a_sign(text, dtype):
    new, base = on_grid(1, 100_000, dtype)
    pipeline = Pipeline.parse(text)
    stored = there_and_back(pipeline, new.tobytes(), base.tobytes(), new.itemsize)
    moved = np.count_nonzero(new != base)
    entropy = -100_000 * (0.02 * np.log2(0.02) + 0.98 * np.log2(0.98)) + moved
    assert stored[0] == GRID
    assert 8 * len(stored) < 1.05 * entropy


def test_bfloat16():
    new, base = (values.view("<u4") >> 16 for values in on_grid(2, 5000))
    stored = there_and_back(CODING, new.astype("<u2").tobytes(), base.astype("<u2").tobytes(), 2)
    assert stored[0] == GRID
    assert len(stored) < 300


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("far", [1, 2, 7, 3000])
def test_moves_of_several_steps(text, far):
    new, base = on_grid(3, 3000, share=0.3, far=far)
    assert there_and_back(Pipeline.parse(text), new.tobytes(), base.tobytes(), 4)[0] == GRID


def test_unchanged_entries_may_be_anything():
    new, base = on_grid(4, 5000)
    still = np.flatnonzero(new == base)[: len(PATTERNS)]
    for values in (new, base):
        values.view("<u4")[still] = PATTERNS
    assert there_and_back(CODING, new.tobytes(), base.tobytes(), 4)[0] == GRID


@pytest.mark.parametrize("pattern", [0x80000000, 0x7F800000, 0x7FC00001])
def test_a_change_that_is_no_step(pattern):
    new, base = on_grid(5, 5000)
    new.view("<u4")[17] = pattern
    assert there_and_back(CODING, new.tobytes(), base.tobytes(), 4)[0] != GRID


def test_weights_on_no_grid():
    rng = np.random.default_rng(6)
    base = rng.normal(size=5000).astype("<f4")
    new = base + rng.normal(size=5000).astype("<f4") / 100
    stored = there_and_back(CODING, new.tobytes(), base.tobytes(), 4)
    assert stored[0] != GRID
    assert len(stored) < new.nbytes
    assert full_and_back(CODING, new.tobytes(), 4)[0] != GRID


def test_deltas_may_be_undone_in_any_place():
    """From the newest version back to the oldest, and on from there."""
    states = [on_grid(7, 2000)[1]]
    rng = np.random.default_rng(8)
    for _ in range(6):
        moved = (rng.random(2000) < 0.1) * rng.integers(-3, 4, 2000)
        states.append(states[-1] + (moved * 2.0**-6).astype("<f4"))
    raw = [state.tobytes() for state in states]
    deltas = [
        memoryview(CODING.encode_chunk(memoryview(new), memoryview(old), 4))
        for old, new in pairwise(raw)
    ]
    state = bytearray(raw[-1])
    for delta in reversed(deltas):
        CODING.apply_chunk(delta, memoryview(state), 4, reverse=True)
    assert state == raw[0]
    for delta in deltas:
        CODING.apply_chunk(delta, memoryview(state), 4, reverse=False)
    assert state == raw[-1]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("dtype", "wide"), [("<f2", 1), ("<f4", 1), ("<f4", 20), ("<f8", 20)])
def test_full_records(text, dtype, wide):
    values = on_grid(9, 4000, dtype)[0] * np.dtype(dtype).type(wide)
    stored = full_and_back(Pipeline.parse(text), values.tobytes(), values.itemsize)
    assert stored[0] == GRID
    assert len(stored) < 2.2 * len(values)


def test_full_records_of_coarse_weights_cost_little_more_than_their_entropy():
    rng = np.random.default_rng(10)
    numbers = np.rint(rng.normal(size=50_000)) + 0.0
    stored = full_and_back(CODING, (numbers * 2.0**-5).astype("<f4").tobytes(), 4)
    share = np.unique(numbers, return_counts=True)[1] / 50_000
    assert 8 * len(stored) < 1.1 * 50_000 * -(share * np.log2(share)).sum()


@settings(max_examples=200)
@given(st.sampled_from(TEXTS), pairs())
def test_any_bytes(text, sample):
    new, base, width = sample
    there_and_back(Pipeline.parse(text), new, base, width)
    full_and_back(Pipeline.parse(text), new, width)


@settings(max_examples=300)
@given(
    st.sampled_from(TEXTS),
    st.integers(0, 9),
    st.sampled_from([0.001, 0.1, 0.9]),
    st.sampled_from([1, 5]),
    st.sampled_from(["<f2", "<f4", "<f8"]),
    st.data(),
)
def test_mutated(text, seed, share, far, dtype, data):
    new, base = on_grid(seed, 400, dtype, share=share, far=far)
    pipeline = Pipeline.parse(text)
    stored = pipeline.encode_chunk(memoryview(new).cast("B"), memoryview(base).cast("B"), 4)
    decode_guarded(pipeline, data.draw(mutated(stored)), new.nbytes, new.itemsize, base.tobytes())
    full = pipeline.full()
    stored = full.encode_chunk(memoryview(new).cast("B"), None, new.itemsize)
    decode_guarded(full, data.draw(mutated(stored)), new.nbytes, new.itemsize)


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.binary(max_size=80), st.integers(0, 300), st.sampled_from([2, 4]))
def test_random(text, rest, size, width):
    pipeline = Pipeline.parse(text)
    data = bytes((GRID,)) + rest
    decode_guarded(pipeline, data, size, width, bytes(size))
    decode_guarded(pipeline.full(), data, size, width)


def test_a_delta_for_another_base_is_refused():
    new, base = on_grid(11, 300, share=0.5)
    stored = CODING.encode_chunk(memoryview(new).cast("B"), memoryview(base).cast("B"), 4)
    for foreign in (base + np.float32(2.0**-20), np.full_like(base, np.nan)):
        state = bytearray(foreign.tobytes())
        with pytest.raises(DamagedData, match="does not fit"):
            CODING.apply_chunk(memoryview(stored), memoryview(state), 4, reverse=False)
        assert state == foreign.tobytes()


@pytest.mark.parametrize(
    "text",
    ["gaps | zstd:1", "steps", "steps | zstd:1", "xor | gaps", "steps | planes", "steps | lattice",
     "gaps:2", "steps | gaps:1", "lattice:1", "steps | lsb:3 | gaps", "xor | grid:1 | gaps",
     "grid:1", "grid:0 | steps | gaps", "grid:17 | steps | gaps", "grid | steps | gaps",
     "grid:1,hold=0.4 | steps | gaps", "grid:1,hold=1.1 | steps | gaps",
     "grid:1,fold=1 | steps | gaps",
     "grid:1,fine=2 | steps | gaps"],
)  # fmt: skip
def test_what_cannot_be_built(text):
    with pytest.raises(InvalidPipeline):
        Pipeline.parse(text)


def test_what_it_is_stored_as():
    pipeline = Pipeline.parse("grid:1 | steps | dsed:0.01 | gaps | zstd:huff")
    assert pipeline.coding() == CODING
    assert CODING.full().text == "lattice | zstd:huff"
    assert Pipeline.parse(CODING.full().text) == CODING.full()


@pytest.mark.parametrize("exponent", [-1074, -1023, 971, 972, 1000, 1023])
def test_the_ends_of_the_range(exponent):
    """A step that readers refuse is not written: such words are coded as patterns."""
    base = np.ldexp(np.arange(64) % 2, exponent)
    new = np.ldexp((np.arange(64) + 1) % 2, exponent)
    there_and_back(CODING, new.tobytes(), base.tobytes(), 8)
    full_and_back(CODING, new.tobytes(), 8)
