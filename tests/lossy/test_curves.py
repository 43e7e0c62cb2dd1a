"""The loss curves' known answers, which the printed Eq. 3.3 does not give."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.lossy.topk import counts, curve, offset, share_at

SHARE, LEAST = Decimal("0.075"), Decimal("0.001")


@pytest.mark.parametrize(
    ("bend", "x", "expected"),
    [
        (-0.5, 0.1, 0.181818),
        (-0.5, 0.25, 0.4),
        (-0.5, 0.5, 2 / 3),
        (-0.5, 0.75, 0.857143),
        (2, 0.5, 0.211325),
        (0.1, 0.5, 0.421913),
        (0, 0.3, 0.3),
    ],
)
def test_known_points(bend, x, expected):
    assert curve(x, bend) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("bend", "expected"), [(-0.5, 1), (2, 0.366025), (0.1, 2.701562)])
def test_known_offsets(bend, expected):
    assert offset(bend) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("bend", "expected"), [("0", 0.038), ("-0.5", 0.050333), ("2", 0.016638)])
def test_known_shares(bend, expected):
    assert float(share_at(0.25, SHARE, LEAST, Decimal(bend))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loss", [0.1, float(np.float32(0.1))])
@pytest.mark.parametrize(("bend", "expected"), [("0", 10), ("2", 4)])
def test_a_loss_that_no_binary_number_is(loss, bend, expected):
    """A fifth of the way to half of 100 entries is 10 of them, not 11."""
    share = share_at(loss, Decimal("0.5"), Decimal(0), Decimal(bend))
    assert counts([100], share, Decimal(0)) == [expected]


bends = st.decimals(-1000, 1000, places=6)


@given(bends, st.integers(0, 700), st.sampled_from(["0.0625", "1", "8"]))
def test_another_bound_is_another_scale(bend, thousandths, loub):
    loss = thousandths / 1000  # and the scaled one has few places, too: losses are rounded
    scaled = loss * 2 * float(loub)
    assert share_at(scaled, SHARE, LEAST, bend, loub=Decimal(loub)) == pytest.approx(
        share_at(loss, SHARE, LEAST, bend), rel=1e-5
    )


@given(bends, st.floats(0, 1), st.floats(0, 1))
def test_rises_from_0_to_1(bend, a, b):
    bend = float(bend)
    low, high = sorted((a, b))
    assert curve(0, bend) == 0
    assert curve(1, bend) == 1
    assert 0 <= curve(low, bend) <= curve(high, bend) <= 1
    if bend < 0:
        assert curve(a, bend) >= a - 1e-12
    else:
        assert curve(a, bend) <= a + 1e-12


@given(st.floats(0.01, 0.99), st.sampled_from([1e-6, 1e-9, 1e-12]), st.sampled_from([1, -1]))
def test_a_bend_of_almost_0_is_almost_linear(x, size, sign):
    assert curve(x, sign * size) == pytest.approx(x, abs=1e-3)


@given(bends, st.floats())
def test_losses_beyond_the_bounds(bend, loss):
    share = share_at(loss, SHARE, LEAST, bend)
    assert Fraction(LEAST) <= share <= Fraction(SHARE)
    if loss <= 0:
        assert share == Fraction(LEAST)
    if loss >= 0.5 or math.isnan(loss):
        assert share == Fraction(SHARE)
