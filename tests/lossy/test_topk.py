from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mvc.lossy.topk import counts, largest
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.produced import produce

CONV = [800, 32, 25600, 32, 18432, 64, 36864, 64, 802816, 256, 2560, 10]


def made(text, previous, training, **options):
    """The production weights of one tensor."""
    pipeline = Pipeline.parse(f"{text} | xor | raw")
    out = produce(pipeline, {"w": previous}, {"w": training}, **options)["w"]
    assert out.dtype == training.dtype
    assert out.shape == training.shape
    return out


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("size", "least", "expected"),
    [(1000, "0.001", 500), (1000, "0", 10), (100, "0.001", 100), (500_000, "0.001", 5000)],
)
def test_the_larger_of_share_and_minimum(size, least, expected):
    assert counts([size, 500_000], Decimal("0.01"), Decimal(least))[0] == expected


def test_counts_of_the_convolutional_net():
    found = counts(CONV, Decimal("0.075"), Decimal("0.001"))
    assert found == [800, 32, 1920, 32, 1383, 64, 2765, 64, 60212, 256, 802, 10]
    assert sum(CONV) == 887_530
    assert sum(found) == 68_340


def test_shares_are_decimal_numbers():
    assert counts([10, 1000], Decimal("0.1"), Decimal(0)) == [1, 100]
    assert counts([1000], Decimal("0.07"), Decimal(0)) == [70]  # 0.07 * 1000 > 70 in binary
    assert counts([], Decimal("0.1"), Decimal("0.1")) == []
    assert counts([0, 5], Fraction(0), Fraction(0)) == [0, 0]


def test_by_hand():
    before, after = f32(1, 2, 3, 4, 5), f32(1.5, 2, -3, 4.25, 5.5)
    assert made("topk:0.2", before, after).tolist() == [1, 2, -3, 4, 5]
    assert made("topk:0.4", before, after).tolist() == [1.5, 2, -3, 4, 5]  # a tie: the lower index
    assert made("topk:0.6", before, after).tolist() == [1.5, 2, -3, 4, 5.5]
    assert made("topk:1", before, after).tolist() == after.tolist()
    assert made("topk:0", before, after).tolist() == before.tolist()


def test_distance_is_of_numbers_not_of_patterns():
    """0.999 to 1.001 differs in nearly all bits, 4 to 5 in one."""
    assert made("topk:0.5", f32(0.999, 4), f32(1.001, 5)).tolist() == f32(0.999, 5).tolist()


@given(
    arrays.arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, 1.0, 2.0, 5.0])),
    st.integers(0, 70),
)
def test_ties_go_to_the_lower_index(distance, k):
    order = sorted(range(len(distance)), key=lambda i: (-distance[i], i))
    assert sorted(np.flatnonzero(largest(distance, k))) == sorted(order[:k])


@pytest.mark.parametrize("shape", ["normal", "equal", "rising", "rare", "periodic", "exact"])
@pytest.mark.parametrize("k", [1, 77, 7_500, 99_000])
def test_the_largest_of_many(shape, k):
    """The bound is looked for in a sample first; whatever that looks like, k are found."""
    rng, size = np.random.default_rng(0), 100_003
    distance = {
        "normal": np.abs(rng.normal(size=size)),
        "equal": np.ones(size),
        "rising": np.arange(size),
        "rare": np.where(np.arange(size) % 1000 == 7, rng.random(size), 0),
        "periodic": np.where(np.arange(size) % 12 == 0, 1.0, rng.random(size) / 2),
        "exact": np.where(rng.random(size) < 0.5, -1, rng.random(size)),
    }[shape].astype("f4")
    order = np.lexsort((np.arange(size), -distance))
    assert np.array_equal(np.flatnonzero(largest(distance, k)), np.sort(order[:k]))


def test_minimum_of_small_tensors():
    rng = np.random.default_rng(0)
    previous = {"large": rng.normal(size=1000).astype("f4"), "small": np.zeros(20, "f4")}
    training = {name: w + rng.normal(size=w.shape).astype("f4") for name, w in previous.items()}
    pipeline = Pipeline.parse("topk:0.05,min=0.01 | xor | raw")
    out = produce(pipeline, previous, training)
    assert [int((out[n] != previous[n]).sum()) for n in out] == [50, 10]


def test_all_tensors_together():
    rng = np.random.default_rng(0)
    previous = {n: np.zeros(size, "f4") for n, size in (("a", 1000), ("b", 500), ("c", 8))}
    scale = {"a": 1.0, "b": 100.0, "c": 0.001}
    training = {n: (scale[n] * (1 + rng.random(w.shape))).astype("f4") for n, w in previous.items()}
    out = produce(Pipeline.parse("topk-all:0.1 | xor | raw"), previous, training)
    assert [int((out[n] != 0).sum()) for n in out] == [0, 151, 0]
    out = produce(Pipeline.parse("topk-all:0.1,min=0.01 | xor | raw"), previous, training)
    assert [int((out[n] != 0).sum()) for n in out] == [10, 151, 8]
    for name, array in out.items():
        kept = np.sort(training[name])[::-1][: np.count_nonzero(array)]
        assert np.sort(array[array != 0])[::-1].tolist() == kept.tolist()


def test_all_tensors_ties_and_extremes():
    zero, one = {"a": np.zeros(4, "f4"), "b": np.zeros(4, "f4")}, np.ones(4, "f4")
    training = {"a": one, "b": one.copy()}
    out = produce(Pipeline.parse("topk-all:0.75 | xor | raw"), zero, training)
    assert [out[n].tolist() for n in "ab"] == [[1, 1, 1, 1], [1, 1, 0, 0]]
    out = produce(Pipeline.parse("topk-all:0 | xor | raw"), zero, training)
    assert not any(out[n].any() for n in "ab")
    assert produce(Pipeline.parse("topk-all:0.5 | xor | raw"), {}, {}) == {}


def test_what_is_infinite_or_no_number_is_taken_over_and_not_counted():
    before = f32(1, np.nan, 3, np.inf, 5, 6)
    after = f32(np.inf, 2, 3.5, 4, 5, 9)
    assert made("topk:0.3", before, after).tolist() == [np.inf, 2, 3.5, 4, 5, 9]
    assert made("topk:0.1", before, after).tolist() == [np.inf, 2, 3, 4, 5, 9]
    payload = np.array([0x7FC00001, 0xFFC12345], np.uint32).view(np.float32)
    out = made("topk:0", f32(1, 2), payload)
    assert out.view(np.uint32).tolist() == [0x7FC00001, 0xFFC12345]
    assert made("topk-all:0", f32(1, 2), payload).view(np.uint32).tolist() == [
        0x7FC00001,
        0xFFC12345,
    ]


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.25, 0.5, 3.0])
@pytest.mark.parametrize("bend", ["linear", "-0.5", "2"])
def test_the_share_follows_the_loss(loss, bend):
    rng = np.random.default_rng(0)
    before = rng.normal(size=10_000).astype("f4")
    after = before + rng.normal(size=10_000).astype("f4")
    out = made(f"topk:0.075,min=0.001,loss={bend}", before, after, loss=loss)
    low = min(loss, 0.5) / 0.5
    share = {"linear": low, "-0.5": 2 * low / (1 + low), "2": None}[bend]
    changed = int((out != before).sum())
    if share is not None:
        assert changed == pytest.approx(10_000 * (0.001 + 0.074 * share), abs=1)
    assert 10 <= changed <= 750
