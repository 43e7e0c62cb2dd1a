"""When did the answer change? The right version, the right moment, each version once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import NoDeployment, UnknownRevision, UnknownTarget
from mvc.repo.commit.request import CommitOptions

PROJECT = Path(__file__).parents[3]
SECOND = 1_000_000_000


@pytest.fixture
def repo(tmp_path):
    """Ten versions, one a second from second 100; weight n is n. Even ones are on 'a'."""
    with mvc.Repository.init(tmp_path) as made:
        for n in range(10):
            moment = (100 + n) * SECOND
            target = "a" if n % 2 == 0 else "b"
            made.commit(
                {"w": np.float32([n])}, deploy=target, options=CommitOptions(time=moment, at=moment)
            )
        yield made


def above(limit):
    return lambda state, sample: bool(state["w"][0] + sample > limit)


def ids(repo):
    return [entry.id for entry in repo.log()][::-1]


def test_the_first_version_that_says_otherwise(repo):
    change = mvc.first_change(repo, above(6), 2)
    versions = ids(repo)
    assert change.commit == versions[5]
    assert change.previous == versions[4]
    assert change.time_ns == 105 * SECOND
    assert (change.before, change.after, change.evaluated) == (False, True, 6)


def test_on_one_target(repo):
    change = mvc.first_change(repo, above(4.5), 0, target="a")
    assert (change.commit, change.previous) == (ids(repo)[6], ids(repo)[4])
    assert change.time_ns == 106 * SECOND
    assert change.evaluated == 4


def test_the_version_that_was_live_when_the_time_begins_counts(repo):
    since = 105 * SECOND  # version 4 is live on 'a' until second 106
    change = mvc.first_change(repo, above(4.5), 0, target="a", since=since)
    assert (change.commit, change.evaluated) == (ids(repo)[6], 2)
    assert mvc.first_change(repo, above(4.5), 0, target="a", since=106 * SECOND) is None
    assert mvc.first_change(repo, above(4.5), 0, target="a", since=1) == mvc.first_change(
        repo, above(4.5), 0, target="a"
    )


def test_until(repo):
    assert mvc.first_change(repo, above(6), 2, until=104 * SECOND) is None
    assert mvc.first_change(repo, above(6), 2, until=105 * SECOND).time_ns == 105 * SECOND


def test_no_change_is_none(repo):
    assert mvc.first_change(repo, above(100), 0) is None


def test_there_and_back_is_the_first_of_both(repo):
    def odd_one_out(state, _):
        return int(state["w"][0]) == 3

    change = mvc.first_change(repo, odd_one_out, None)
    assert (change.commit, change.after) == (ids(repo)[3], True)


@pytest.mark.parametrize(
    "kind", [np.int64, torch.tensor, lambda n: np.array([n])], ids=["scalar", "tensor", "array"]
)
def test_labels_may_be_arrays_of_one_element(repo, kind):
    change = mvc.first_change(repo, lambda state, _: kind(int(state["w"][0] > 7)), None)
    assert change.commit == ids(repo)[8]
    assert (change.before, change.after) == (0, 1)
    assert type(change.after) is int


def test_no_version_in_that_time(repo):
    with pytest.raises(UnknownRevision, match="no version is in this period"):
        mvc.first_change(repo, above(1), 0, until=5)
    with pytest.raises(NoDeployment, match="no version is in this period"):
        mvc.first_change(repo, above(1), 0, target="a", until=5)
    with pytest.raises(UnknownTarget):
        mvc.first_change(repo, above(1), 0, target="c")


def test_what_predict_raises_passes(repo):
    def fail(state, sample):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mvc.first_change(repo, fail, None)


def test_the_example(tmp_path):
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, "examples/first_change.py", str(tmp_path / "models")],
        cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "since version" in done.stdout
