"""Who deployed, forgot, collected, took back; and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mvc
from mvc.errors import InvalidName, WrongUsage
from tests.histories import CheckedHistory, weights


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says who works from now on."""
    return lambda name: monkeypatch.setenv("MVC_AUTHOR", name)


def test_deployments_of_two_people_can_be_told_apart(
    tmp_path: Path, by: Callable[[str], None]
) -> None:
    by("ada")
    history = CheckedHistory(tmp_path, 2)
    first, second = history.ids
    with history.open() as repo:
        made = repo.deploy(first, "prod", reason="the old one was better")
        assert (made.author, made.reason, made.returns_to) == (
            "ada",
            "the old one was better",
            None,
        )
    by("grace")
    with history.open() as repo:
        back = repo.rollback("prod", reason="no, it was not")
        assert (back.author, back.reason, back.commit) == ("grace", "no, it was not", second)
        assert back.returns_to == repo.deployments(rev=second)[0].sequence
        gone = repo.retract(None, "prod", reason="typo")
        assert (gone.author, gone.retracted_by, gone.retracted_reason) == (
            "grace", "grace", "typo",
        )  # fmt: skip
    with history.open() as repo:
        assert [(d.author, d.reason) for d in repo.deployments("prod")] == [
            ("ada", ""),
            ("ada", ""),
            ("ada", "the old one was better"),
            ("grace", "no, it was not"),
        ]
        assert repo.storage.fsck(full=True).sound


def test_a_commit_is_deployed_by_who_runs_it(tmp_path: Path, by: Callable[[str], None]) -> None:
    by("ada")
    with mvc.Repository.init(tmp_path) as repo:
        own = repo.commit(weights(1), deploy="prod")
        options = mvc.CommitOptions(author="grace")
        other = repo.commit(weights(2), deploy="prod", options=options)
        assert [d.author for d in repo.deployments()] == ["ada", "ada"]
        assert (own.commit.author, other.commit.author) == ("ada", "grace")
        assert [o.author for o in repo.operations()] == ["ada", "ada", ""]


def test_maintenance_and_undo_say_who_and_why(tmp_path: Path, by: Callable[[str], None]) -> None:
    by("ada")
    history = CheckedHistory(tmp_path, 4)
    by("ops")
    with history.open() as repo:
        repo.branch("b")
        repo.undo(reason="not needed")
        repo.storage.repack(interval=1, reason="faster")
        repo.storage.forget(history.ids[0], reason="a person asked for it")
        repo.storage.gc(grace="0", reason="disk is full")
        why = {o.entry.operation: (o.author, o.reason) for o in repo.operations()}
        wanted = {
            "undo": ("ops", "not needed"),
            "repack": ("ops", "faster"),
            "forget": ("ops", "a person asked for it"),
            "gc": ("ops", "disk is full"),
        }
        assert why.items() >= wanted.items()
        repo.commit(weights(9))
        repo.storage.forget(history.ids[1])
        repo.storage.gc(grace="0")  # what somebody gave a reason for stays in the log
        why = {(o.entry.operation, o.reason) for o in repo.operations()}
        assert {(name, reason) for name, (_, reason) in wanted.items()} <= why
        assert repo.storage.fsck(full=True).sound


def test_a_plan_says_who_would_do_it(tmp_path: Path, by: Callable[[str], None]) -> None:
    by("ada")
    history = CheckedHistory(tmp_path, 2)
    with history.open() as repo:
        planned = repo.undo(dry_run=True, reason="just a try")
        assert (planned.entry.author, planned.entry.reason) == ("ada", "just a try")
        assert [o.reason for o in repo.operations()] == [""] * 3


def test_reasons_and_names_that_are_none(tmp_path: Path, by: Callable[[str], None]) -> None:
    history = CheckedHistory(tmp_path, 1)
    with history.open() as repo:
        with pytest.raises(WrongUsage, match="the reason is longer than 65,536 bytes"):
            repo.deploy("HEAD", "prod", reason="x" * 65_537)
        long = "é" * 32_768
        assert repo.deploy("HEAD", "prod", reason=long).reason == long
    by("two\nlines")
    with history.open() as repo, pytest.raises(InvalidName, match="the author's name contains a"):
        repo.deploy("HEAD", "prod")
