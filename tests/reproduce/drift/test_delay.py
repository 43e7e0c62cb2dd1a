"""``drift delay``: samples that late weights misclassify."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reproduce.drift.delay import LAGS, Timed, lags
from tests.reproduce.drift.test_commands import TINY


def test_the_example_of_the_thesis():
    """Section 3.3: ten seconds; weights that are live after four of them are wrong for 40 %."""
    slow = Timed(learn=[1.0], process=[1.0], save=[2.0])
    assert list(slow.live(10, early=False)) == [14]
    shares = lags(list(slow.live(10, early=False)), 10)
    assert shares is not None
    assert shares[0, :2] == pytest.approx([0.6, 0.4])
    early = lags(list(slow.live(10, early=True)), 10)
    assert early is not None
    assert early[0, :2] == pytest.approx([0.8, 0.2])


def test_a_save_that_takes_longer_holds_up_the_batches_behind_it():
    timed = Timed(learn=[1] * 6, process=[0] * 6, save=[0, 14, 0, 0, 0, 0])
    live = list(timed.live(10, early=False))
    assert live == [11, 35, 36, 41, 51, 61]
    shares = lags(live, 10)
    assert shares is not None
    assert shares.sum(1) == pytest.approx(np.ones(6))
    assert shares[1, :2] == pytest.approx([0, 1])  # the second is live in the third's time
    assert shares[2, :3] == pytest.approx([0.4, 0.1, 0.5])


def test_weights_that_fall_behind():
    timed = Timed(learn=[3] * 20, process=[0] * 20, save=[0] * 20)
    assert lags(list(timed.live(2, early=False)), 2) is None
    assert lags(list(timed.live(3, early=False)), 3) is not None
    assert LAGS == 4


def test_the_command(call, tmp_path):
    arguments = ("delay", "lossless", "frontier-0", "--paces", "0.001,1000000", "--labels", "0")
    code, printed, _ = call("drift", *arguments, "--out", tmp_path, *TINY)
    assert code == 0
    (file,) = (tmp_path / "tables").glob("delay.json")
    exact, rounded = json.loads(file.read_text())["late"]
    assert (exact["pipeline"], rounded["pipeline"]) == ("lossless", "frontier-0")
    hurried, patient = exact["paces"]
    halted = exact["delays"][0]
    assert hurried["saved"] == {"all": None, "label": None}
    assert patient["saved"] == pytest.approx({n: halted[n] for n in ("all", "label")}, abs=1e-3)
    assert "behind" in printed
    assert call("table", file)[1] == printed
    # time halted is prequential accuracy
    call("drift", "train", "--labels", "0", "--out", tmp_path, *TINY)
    (trained,) = json.loads((tmp_path / "tables" / "trainings.json").read_text())["trainings"]
    assert 1 - halted["all"] == pytest.approx(trained["next batch"])


def test_a_pace_is_above_0(call, tmp_path):
    code, _, error = call("drift", "delay", "--paces", "0", "--out", tmp_path, *TINY)
    assert code == 2
    assert "a pace is a multiple of the time to learn: it must be above 0" in error
