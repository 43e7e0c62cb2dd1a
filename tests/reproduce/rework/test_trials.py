"""Trials: one failure each, the same for every scheme, also if the program was killed."""

from __future__ import annotations

import signal

import pytest

from mvc.errors import BadModelFile
from tests.reproduce import child
from tests.reproduce.rework.small import SCHEMES, TRIALS, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pytest.importorskip("sklearn")
    return run(tmp_path_factory.mktemp("trials"))


def test_every_scheme_fails_at_the_same_iterations(made):
    failures = [[each["failure"] for each in trials] for trials in made.values()]
    assert failures == failures[:1] * len(SCHEMES)
    assert len(set(failures[0])) > 1
    assert all(5 <= each <= 12 for each in failures[0])


def test_full_checkpoints_are_as_far_back_as_they_are(made):
    for trial in made["full:5"]:
        assert 0 < trial["rework"] <= trial["failure"] % 5 or trial["failure"] % 5 == 0
        assert trial["back"]
        assert trial["largest"] == 7850 * 4
        assert trial["mean"] == 7850 * 4 * (trial["failure"] // 5) / trial["failure"]


def test_figures(made):
    for trials in made.values():
        for trial in trials:
            assert trial["rework"] - 1 <= trial["fractional"] <= trial["rework"]
            assert (trial["excess"] > 0) == (trial["rework"] > 0)


def test_killed_and_continued(made, tmp_path):
    done = child.run("-m", "tests.reproduce.rework.small", tmp_path, 2)
    assert done.returncode == -signal.SIGKILL
    (folder,) = (tmp_path / "results").iterdir()
    assert len(list(folder.glob("*.json"))) == 2
    steps = []
    assert run(tmp_path, progress=lambda *step: steps.append(step)) == made
    assert len(list(folder.glob("*.json"))) == TRIALS
    assert steps[-1] == ("MLR, sgd", 2, 3)


def test_schemes_that_are_added_later_have_the_same_figures(made, tmp_path):
    run(tmp_path, SCHEMES[:1])
    assert run(tmp_path) == made


def test_a_spoilt_result(tmp_path):
    run(tmp_path, SCHEMES[:1], 1)
    (file,) = tmp_path.rglob("*.json")
    file.write_text('{"schemes": {"lc:x=2": 3}}')
    with pytest.raises(BadModelFile, match="is no result"):
        run(tmp_path, SCHEMES[:1], 1)
