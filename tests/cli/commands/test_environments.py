from __future__ import annotations

import pytest
import torch
from torch import nn

import mvc as library
from tests.models.whole import commit_model

LINE = {"in_features": 2, "out_features": 2}


@pytest.fixture
def recorded(mvc, monkeypatch: pytest.MonkeyPatch):
    """Two versions, made with two numbers of threads, under two host names."""
    with library.Repository.open(mvc.folder) as repo:
        made = library.Architecture(nn.Linear(2, 2), LINE)
        commit_model(repo, made)
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        monkeypatch.setenv("OMP_NUM_THREADS", "61")
        commit_model(repo, made)
    return mvc


def test_two_versions(recorded) -> None:
    said = recorded("diff", "--environment", "HEAD", "HEAD~1")
    first, heading, *rows = said.out.splitlines()
    assert first == "HEAD and HEAD~1: different: results may differ"
    assert heading.split() == ["grade", "field", "recorded", "HEAD~1"]
    assert [row.split() for row in rows] == [
        ["exact", "variables.MKL_CBWR", "COMPATIBLE", "-"],
        ["compatible", "variables.OMP_NUM_THREADS", "61", "-"],
    ]
    assert "1 ignored difference not shown (-v lists them)" in said.err
    every = recorded("diff", "--environment", "HEAD", "HEAD~1", "-v").out
    assert "variables.CUDA_VISIBLE_DEVICES" in every
    assert recorded("diff", "--environment", "HEAD", "HEAD~1", "--exit-code", code=1)


def test_rows_fit_the_width(recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mvc.cli.output.Output.width", 60)
    monkeypatch.setenv("MKL_CBWR", "x" * 100)
    lines = recorded("diff", "--environment", "HEAD").out.splitlines()[1:]
    assert any("xxx…" in line for line in lines)
    assert max(map(len, lines)) <= 60


def test_this_machine(recorded) -> None:
    same = recorded("diff", "--environment", "--exit-code")
    assert same.out == "HEAD and this machine: equal in every relevant field\n"
    found = recorded("diff", "--environment", "HEAD~1", "--json").json
    assert found["schema"] == "mvc.diff.environment/1" and found["verdict"] == "different"
    assert found["differences"][0] == {
        "field": "variables.MKL_CBWR", "grade": "exact", "recorded": None, "other": "COMPATIBLE",
    }  # fmt: skip
    assert found["environment"]["torch"] == found["other"]["torch"]
    assert found["used"] == ["torch"]


def test_a_version_without_environment(mvc) -> None:
    mvc.commit(1)
    for command in ("show", "diff"):
        said = mvc(command, "--environment", code=3).err
        assert "has no recorded environment" in said


def test_what_a_retraining_sets_is_no_obstacle(recorded) -> None:
    words = "a replay restores the recorded settings and threads"
    assert words not in recorded("diff", "--environment").err
    torch.use_deterministic_algorithms(True)
    try:
        assert words in recorded("diff", "--environment").err
    finally:
        torch.use_deterministic_algorithms(False)
    assert words not in recorded("diff", "--environment", "HEAD", "HEAD~1").err
