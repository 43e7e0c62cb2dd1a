"""The split: the thesis's own counts, every bound by name, and that no sample is used twice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import WrongUsage
from reproduce.drift.split import divide, largest_batch, share_of
from reproduce.drift.split import plan_split as plan

MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
NEWS = (30_000,) * 4


def test_mnist():
    made = plan(MNIST, batch_size=86)
    assert made.max_batches == 252
    assert (made.drifting_online, made.others_online) == (3225, 9675)
    assert (made.drifting_offline, made.others_offline) == (6, 43_583)
    assert made.offline == made.max_offline == Fraction(43_589, 60_000)
    assert f"{float(made.offline):.6f}" == "0.726483"
    assert made.per_batch[:12] == (0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3)
    assert made.per_batch[-6:] == (41, 42, 42, 42, 43, 43)
    assert sum(made.per_batch) == 3225


def test_news():
    made = plan(NEWS, batch_size=256, seen="0.001")
    assert made.max_batches == 468
    assert (made.drifting_online, made.others_online) == (9600, 28_800)
    assert (made.drifting_offline, made.others_offline) == (120, 61_200)
    assert made.offline == Fraction(511, 1000)


def test_four_batches_of_four():
    assert plan((20, 20), batch_size=4, batches=4, seen=0).per_batch == (0, 1, 1, 2)


def test_equation_41_with_the_batches_and_not_their_number_twice():
    """150 batches of 80 at a peak of 60 %: 3,600 of the label, as the text has it."""
    assert plan((20_000,) * 3, batch_size=80, peak="0.6").drifting_online == 3600


def test_floats_are_the_decimals_that_they_print():
    assert share_of("peak", 0.1) == Fraction(1, 10)
    assert plan(MNIST, batch_size=86, peak=0.5) == plan(MNIST, batch_size=86, peak="0.5")


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"batches": 253}, "batches is 253: it must be from 1 to 252"),
        ({"batches": 0}, "batches is 0: it must be from 1 to 252"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"peak": 0}, "peak is 0: it must be above 0 and at most 1"),
        ({"peak": "1.2"}, "peak is 1.2: it must be from 0 to 1"),
        ({"peak": "half"}, "peak is half: it must be a number from 0 to 1"),
        ({"peak": float("nan")}, "peak is nan: it must be a number from 0 to 1"),
        ({"seen": float("inf")}, "seen is inf: it must be a number from 0 to 1"),
        ({"seen": "0.04"}, "seen is 0.040000: it must be from 0 to 0.036600"),
        ({"seen": "-0.1"}, "seen is -0.1: it must be from 0 to 1"),
        ({"offline": "0.73"}, "offline is 0.730000: it must be from 0.000116 to 0.726483"),
        ({"offline": "0"}, "offline is 0.000000: it must be from 0.000116 to 0.726483"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_out_of_range_names_parameter_and_range(given_, said):
    with pytest.raises(WrongUsage) as raised:
        plan(MNIST, **{"batch_size": 86, **given_})
    assert said in raised.value.message


def test_no_data_left_to_train_with():
    with pytest.raises(WrongUsage, match="no data is left to train with before"):
        plan((10, 10), batch_size=4, batches=10, seen=0)


def test_a_last_batch_that_would_not_hold_its_samples():
    """ceil(3 * 0.35) = 2 samples: by the rule 0, 0 and 2, in batches of one."""
    with pytest.raises(WrongUsage, match=r"peak is 0\.7: a batch of 1 would have to hold 2"):
        plan((20, 20), batch_size=1, batches=3, peak="0.7", seen=0)


def test_labels():
    with pytest.raises(WrongUsage, match="at least two labels"):
        plan((10,), batch_size=1)
    with pytest.raises(WrongUsage, match="no sample has label 7"):
        divide(np.array([0, 1] * 40), 7, plan((40, 40), batch_size=2, batches=5, seen=0), seed=1)


def test_largest_batch_is_the_largest():
    size = largest_batch(MNIST)
    plan(MNIST, batch_size=size)
    with pytest.raises(WrongUsage):
        plan(MNIST, batch_size=size + 1)
    assert largest_batch((1473, 4521, 4223), seen="0.001") == 38
    with pytest.raises(WrongUsage, match="batches is 900"):
        largest_batch((100, 100), batches=900)


counts = st.lists(st.integers(20, 200), min_size=2, max_size=5)


@given(counts, st.integers(1, 6), st.integers(1, 12), st.integers(1, 10), st.integers(0, 3))
def test_no_sample_twice_and_every_count_as_planned(counts, size, batches, peak, seed):
    try:
        made = plan(counts, batch_size=size, batches=batches, peak=Fraction(peak, 10), seen="0.01")
    except WrongUsage:
        return
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    label = seed % len(counts)
    drift = divide(labels, label, made, seed)
    rows = np.concatenate([drift.offline, *drift.online])
    assert len(np.unique(rows)) == len(rows)
    assert len(drift.online) == batches
    assert int((labels[drift.offline] == label).sum()) == made.drifting_offline
    assert len(drift.offline) == made.drifting_offline + made.others_offline
    for batch, count in zip(drift.online, made.per_batch, strict=True):
        assert len(batch) == size
        assert (labels[batch[:count]] == label).all()
        assert (labels[batch[count:]] != label).all()
    assert sum(made.per_batch) == made.drifting_online
    again = divide(labels, label, made, seed)
    assert all(map(np.array_equal, again.online, drift.online))
