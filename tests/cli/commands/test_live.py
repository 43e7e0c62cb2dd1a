"""``mvc live``: moments that are printed can be asked for."""

from __future__ import annotations

import numpy as np

from mvc.api.repository import Repository
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
