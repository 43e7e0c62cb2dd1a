"""Production weights on a grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.lossy.grid import wanted_exponent
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.produced import produce

GRID = Pipeline.parse("grid:1 | steps | gaps | zstd:huff")


def normal(seed, count=20_000, spread=1.0, dtype="f4"):
    return (np.random.default_rng(seed).normal(size=count) * spread).astype(dtype)


def step_of(values):
    """The largest power of two of which all are multiples."""
    exponents = range(20, -60, -1)
    return next(
        2.0**e for e in exponents if (np.ldexp(values, -e) == np.rint(np.ldexp(values, -e))).all()
    )


def first(training, pipeline=GRID, **options):
    return produce(pipeline, None, training, **options)


def test_wanted_exponents():
    values = np.array([-1, 1], "f4")
    assert wanted_exponent(values, 1, 2, 0.5) == 0
    assert wanted_exponent(values * 0.02, 0.5, 2, 0.5) == -7
    assert wanted_exponent(values, 1, 32, 0.25) == -1
    assert wanted_exponent(values, 1, 32, 0.5) == -2
    assert wanted_exponent(values, 1, 32, 0) == 0
    assert wanted_exponent(values, 1, 2 << 16, 0.25) == -4
    assert wanted_exponent(values + 1000, 1, 2, 0.5) == 0
    assert wanted_exponent(np.ones(3, "f4"), 1, 3, 0.5) is None
    assert wanted_exponent(np.zeros(0, "f4"), 1, 3, 0.5) is None
    assert wanted_exponent(np.array([1e-45, 0], "f4"), 1, 2, 0.5) == -126


def test_hand_made():
    """A step of 1: entries move when they are more than 0.52 from where they are."""
    before = {"w": np.array([3, 3, 3, 3, -3, -3, 0, 0], "f4")}
    training = {"w": np.array([3.51, 3.53, 2.49, 2.47, -3.9, -5.6, 0.51, -0.0], "f4")}
    assert wanted_exponent(training["w"], 0.3, 8, 0.5) == 0
    made = produce(Pipeline.parse("grid:0.3 | steps | gaps"), before, training)["w"]
    assert made.tolist() == [3, 4, 3, 2, -4, -6, 0, 0]
    assert not np.signbit(made[-1])


def test_the_first_version_is_rounded():
    training = {"w": normal(1, spread=0.1)}
    made = first(training)["w"]
    assert step_of(made) == 0.125
    # 'hold' sees the zeros before the first version: those from 0.5 to 0.52 steps stay there.
    assert np.abs(made - training["w"]).max() <= 0.52 * 0.125
    assert not np.signbit(made[made == 0]).any()


def test_small_tensors_have_finer_steps():
    made = first({"w": normal(1, 65536), "bias": normal(2, 256), "scale": normal(3, 16)})
    assert [step_of(made[n]) for n in ("w", "bias", "scale")] == [1, 0.0625, 0.015625]


def test_the_grid_stays_while_the_spread_drifts():
    """Within a factor of two of what is wanted the step is kept; the error never adds up."""
    production = first({"w": normal(1)})
    for spread, step in ((1.3, 1), (1.9, 1), (2.7, 1), (3, 4), (5, 4), (2.1, 4), (1.3, 2)):
        training = {"w": normal(1, spread=spread)}
        production = produce(GRID, production, training)
        assert step_of(production["w"]) == step
        assert np.abs(production["w"] - training["w"]).max() <= 0.52 * step


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("coarse", ["0.3", "1", "4"])
def test_numbers_near_the_largest_stay_finite(dtype, coarse):
    """The next multiple may lie beyond the largest number; then the last one below is taken."""
    rng = np.random.default_rng(9)
    signs = rng.choice([-1.0, 1.0], 1000)
    values = (np.finfo(dtype).max * signs * rng.uniform(0.5, 1, 1000)).astype(dtype)
    values[:2] = np.finfo(dtype).max, np.finfo(dtype).min
    grid = Pipeline.parse(f"grid:{coarse} | steps | gaps")
    made = first({"w": values}, grid)["w"]
    assert np.isfinite(made).all()
    if dtype != "f8":  # the spread of these is beyond float64, so they are taken over exactly
        assert len(np.unique(made)) < 32
    again = produce(grid, {"w": made}, {"w": values})["w"]
    assert np.array_equal(again, made)


def test_bfloat16_near_the_largest_stays_finite():
    words = np.random.default_rng(9).integers(0x7E80, 0x7F80, 1000).astype("<u2")
    made = first({"w": words}, dtypes={"w": "bfloat16"})["w"]
    assert (made & 0x7F80 != 0x7F80).all()
    assert len(np.unique(made)) < 32


def test_trembling_moves_nothing():
    rng = np.random.default_rng(5)
    training = normal(1)
    production = first({"w": training})
    moves = 0
    for _ in range(20):
        trembling = {"w": training + rng.normal(size=len(training)).astype("f4") * 0.005}
        after = produce(GRID, production, trembling)
        moves += np.count_nonzero(after["w"] != production["w"])
        production = after
    plain = sum(
        np.count_nonzero(np.rint(a) != np.rint(a + rng.normal(size=len(a)).astype("f4") * 0.005))
        for a in [training] * 20
    )
    assert moves < plain / 4


def test_the_mean_follows_slow_drift():
    """Few entries move at a time, but as far on the average as the training weights did."""
    training = normal(1, 100_000)
    production = first({"w": training})
    start = production["w"].mean()
    for i in range(1, 41):
        production = produce(GRID, production, {"w": training + np.float32(0.01 * i)})
    assert production["w"].mean() - start == pytest.approx(0.4, abs=0.06)


def test_constant_tensors_are_exact_until_they_spread():
    ones = {"scale": np.full(100, 1.1, "f4"), "w": normal(1)}
    production = first(ones)
    assert production["scale"].tobytes() == ones["scale"].tobytes()
    spread = {"scale": ones["scale"] + normal(2, 100, 0.01), "w": normal(1)}
    production = produce(GRID, production, spread)
    assert step_of(production["scale"]) < 0.01


def test_what_is_no_number_is_taken_over():
    values = normal(1)
    values.view("u4")[:3] = 0x7FC00001, 0x7F800000, 0xFF800000
    production = first({"w": values})
    assert production["w"].view("u4")[:3].tolist() == [0x7FC00001, 0x7F800000, 0xFF800000]
    assert step_of(production["w"][3:]) == 1
    later = values.copy()
    later[:3] = 0.3
    later.view("u4")[5] = 0x7FC00001
    again = produce(GRID, production, {"w": later})["w"]
    assert again[:3].tobytes() == later[:3].tobytes()  # no number before, so taken over
    assert again.view("u4")[5] == 0x7FC00001


def test_exact_names_and_other_dtypes():
    training = {"w": normal(1), "mean": normal(2, 10), "n": np.arange(5)}
    for before in (None, first({**training, "w": normal(3)}, exact={"mean"})):
        made = produce(GRID, before, training, exact={"mean"})
        assert list(made) == list(training)
        assert all(made[n].tobytes() == training[n].tobytes() for n in ("mean", "n"))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_every_format(dtype, spread):
    production = None
    for seed in range(4):
        training = {"w": normal(seed, 2000, spread, dtype)}
        production = produce(GRID, production, training)
        made = production["w"]
        assert made.dtype == dtype
        step = step_of(made.astype("f8"))
        assert np.abs(made - training["w"]).max() <= 0.53 * step
        assert spread / 2 <= step <= 2 * spread


def test_bfloat16():
    words = (normal(1).view("u4") >> 16).astype("u2")
    made = produce(GRID, None, {"w": words}, dtypes={"w": "bfloat16"})["w"]
    assert step_of((made.astype("u4") << 16).view("f4")) == 1


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32), min_size=2, max_size=40),
    st.lists(st.floats(width=32), min_size=2, max_size=40),
    st.sampled_from(["f4", "f8", "f2"]),
)
def test_any_numbers_come_back_from_storage(one, two, dtype):
    """Whatever the weights: what is produced is stored and undone bit for bit."""
    count = min(len(one), len(two))
    with np.errstate(over="ignore"):
        before = first({"w": np.array(one[:count]).astype(dtype)})
        after = produce(GRID, before, {"w": np.array(two[:count]).astype(dtype)})
    new, base = after["w"].tobytes(), before["w"].tobytes()
    width = np.dtype(dtype).itemsize
    coding = GRID.coding()
    stored = coding.encode_chunk(memoryview(new), memoryview(base), width)
    state = bytearray(base)
    coding.apply_chunk(memoryview(stored), memoryview(state), width, reverse=False)
    assert state == new
    coding.apply_chunk(memoryview(stored), memoryview(state), width, reverse=True)
    assert state == base
