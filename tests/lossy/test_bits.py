import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mvc.codecs.floats import FORMATS
from mvc.lossy.bits import high_mask, low_mask
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.produced import produce


def made(text, previous, training, **options):
    pipeline = Pipeline.parse(f"xor | {text} | raw")
    return produce(pipeline, {"w": previous}, {"w": training}, **options)["w"]


def bits(*words):
    return np.array(words, np.uint32).view(np.float32)


def test_by_hand():
    out = made("lsb:20", bits(0x3F800000), bits(0x3FA66666))
    assert out.view(np.uint32).tolist() == [0x3FA00000]
    assert out.tolist() == [1.25]


def test_masks_of_every_format():
    single = FORMATS["float32"]
    assert low_mask(single, 20) == 0x000FFFFF
    assert low_mask(single, 23) == 0x007FFFFF
    assert high_mask(single, 11) == 0x7FF000
    assert high_mask(single, 23) == 0x7FFFFF
    # Formats keep 23 - N bits of their fraction, at most all they have.
    kept = {"float64": (3, 5), "float32": (3, 5), "float16": (3, 5), "bfloat16": (3, 5)}
    for name, counts in kept.items():
        for low, count in zip((20, 18), counts, strict=True):
            mask = low_mask(FORMATS[name], low)
            assert mask == (1 << FORMATS[name].fraction - count) - 1
    assert low_mask(FORMATS["bfloat16"], 10) == 0
    assert low_mask(FORMATS["float16"], 13) == 0
    assert low_mask(FORMATS["float16"], 14) == 1


words = arrays.arrays(np.uint32, 40, elements=st.integers(0, 2**32 - 1))


@given(words, words, st.integers(1, 23))
def test_low_bits_stay_those_of_the_weights_before(old, new, low):
    before, after = old.view(np.float32), new.view(np.float32)
    out = made(f"lsb:{low}", before, after).view(np.uint32)
    mask = np.uint32(0xFFFFFFFF << low & 0xFFFFFFFF)
    wild = ~np.isfinite(before) | ~np.isfinite(after)
    assert np.array_equal(out, np.where(wild, new, (new & mask) | (old & ~mask)))


@given(st.lists(words, min_size=2, max_size=6), st.integers(1, 23))
def test_low_bits_stay_those_of_the_first_weights_for_ever(versions, low):
    finite = [w & np.uint32(0xBFFFFFFF) for w in versions]  # no exponent is all ones
    production = finite[0].view(np.float32)
    mask = np.uint32(0xFFFFFFFF << low & 0xFFFFFFFF)
    for training in finite[1:]:
        production = made(f"lsb:{low}", production, training.view(np.float32))
        assert np.array_equal(production.view(np.uint32), (training & mask) | (finite[0] & ~mask))


@given(words, words, st.integers(1, 23), st.integers(1, 23))
def test_only_where_a_high_bit_changed(old, new, low, high):
    old, new = old & np.uint32(0xBFFFFFFF), new & np.uint32(0xBFFFFFFF)
    out = made(f"lsb:{low},msb={high}", old.view(np.float32), new.view(np.float32))
    condition = sum(1 << bit for bit in range(23 - high, 23))
    masked = ((old ^ new) & np.uint32(condition)) != 0
    mask = np.uint32(0xFFFFFFFF << low & 0xFFFFFFFF)
    expected = np.where(masked, (new & mask) | (old & ~mask), new)
    assert np.array_equal(out.view(np.uint32), expected)


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_other_formats_lose_no_more_than_a_float32(name):
    rng = np.random.default_rng(0)
    before = rng.normal(size=5000).astype(name)
    after = (before * (1 + 0.3 * rng.normal(size=5000))).astype(name)
    out = made("lsb:18", before, after)
    assert out.dtype == after.dtype
    assert np.abs(out / after - 1).max() < 2.0**-5
    assert np.abs(out / after - 1).max() > 2.0**-7


def test_bfloat16_words():
    old, new = np.array([0x3F80, 0x7F80, 0], "u2"), np.array([0x3FA6, 0x3FA6, 0x8000], "u2")
    out = made("lsb:20", old, new, dtypes={"w": "bfloat16"})
    assert out.tolist() == [0x3FA0, 0x3FA6, 0x8000]
    assert made("lsb:20", old, new).tolist() == new.tolist()  # integers are never changed
