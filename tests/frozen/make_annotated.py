"""A frozen repository of who did what and why: runs, annotations, receipts, rollbacks."""

from __future__ import annotations

import os
from pathlib import Path

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from mvc.repo.worktree.git_code import GitCode
from tests.frozen.made import AUTHOR, Ticking, model, moved


def annotated(root: Path) -> None:
    """Two people, several runs, annotations that are undone, and what gc leaves of all that."""
    with Repository.init(root, clock=Ticking()) as repo:
        state = model()
        for i in range(6):
            os.environ["MVC_AUTHOR"] = AUTHOR if i % 2 else "gräce"
            state = moved(state, i)
            patch = b"--- a\n+++ b\n" if i == 4 else b""
            repo.commit(
                state,
                message=f"version {i}",
                metrics={"acc": i / 8} if i % 2 else {},
                deploy="prod" if i < 4 else None,
                options=CommitOptions(
                    author="somebody" if i == 2 else None,
                    run=("", "lr 0.1", "é")[i % 3],
                    code=GitCode("1f" * 20, dirty=i > 2, patch=patch),
                ),
            )
        repo.rollback("prod", reason="the error rate\ndoubled")
        repo.rollback("prod", to="HEAD~5")
        repo.deploy("HEAD", "edge", at=Ticking.now, reason="\udcff")
        repo.retract(None, "edge", reason="a typo")
        repo.annotate("HEAD", metrics={"auc": 0.5, "nan": float("nan")}, note="nightly")
        repo.annotate("HEAD~1", params={"approved": "yes", "é": "ü"}, note="two\nlines")
        repo.annotate("HEAD", metrics={"auc": 0.75})
        undone = repo.undo(reason="it was the wrong set")
        repo.undo(undone.number)
        repo.annotate("HEAD~2", note="undone for good")
        repo.undo()
        repo.storage.forget("HEAD~3", reason="asked for by a person")
        repo.storage.repack(interval=2, reason="faster")
        repo.storage.gc(grace="0", reason="disk is full")
        repo.annotate("HEAD~3", note="forgotten, and still evidence")
        repo.undo(reason="and kept, within the grace")
