"""``mvc live``: moments that are printed can be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcWarning
from mvc.repo.commit.request import CommitOptions
from tests.cli.program import Mvc


def test_a_moment_that_is_printed_is_one_of_its_version(mvc: Mvc) -> None:
    with Repository.open(mvc.folder) as repo:
        for i in range(2):
            at = f"2026-11-17T03:00:00.{i + 1}Z"
            repo.commit(
                {"w": np.full(3, i, np.float32)},
                message=f"n {i}",
                deploy="prod",
                options=CommitOptions(at=at),
            )
    live = mvc("live", "prod").out
    (since,) = (line.split()[1] for line in live.splitlines() if line.startswith("since"))
    assert mvc("live", "prod", "--at", since).out == live
    printed = mvc("deploy", "HEAD~1", "prod").out.split()[-1]
    assert "n 0" in mvc("live", "prod", "--at", printed).out
    listed = mvc("deploy", "--list").out.splitlines()[1].split()[0]
    assert "n 0" in mvc("live", "prod", "--at", listed).out


def test_a_late_record_shows_when_it_was_recorded(mvc: Mvc) -> None:
    mvc.commit(1.0)
    mvc("deploy", "HEAD", "prod")
    for command in (("live", "prod"), ("live",), ("deploy", "-l", "prod")):
        assert "recorded" not in mvc(*command).out
    with (
        Repository.open(mvc.folder) as repo,
        pytest.warns(MvcWarning, match="is dated 2026-01-02T00:00:00.*is newer"),
    ):
        repo.commit({"w": np.ones(3)}, deploy="prod", options=CommitOptions(at="2026-01-02T00:00Z"))
    (live,) = mvc("live", "--at", "2026-01-03", "--json").json["live"]
    assert live["since"] < "2026-01-03" < live["recorded"]
    lines = mvc("live", "prod", "--at", "2026-01-03").out.splitlines()
    (recorded,) = (line.split()[1] for line in lines if line.startswith("recorded "))
    assert recorded[:16] >= live["recorded"][:16]
    between = mvc("live", "prod", "--between", "2026-01-02", "2026-01-03").out
    assert recorded in between and recorded in mvc("deploy", "-l", "prod").out


def test_a_commit_with_an_earlier_deployment_warns(mvc: Mvc) -> None:
    mvc.write(1.0)
    printed = mvc("commit", "model.safetensors", "--deploy", "prod", "--at", "2026-01-02").err
    assert printed.count("the deployment is dated 2026-01-02T00:00:00") == 1
    assert "is newer" not in mvc("deploy", "HEAD", "prod").err
