"""Files that are not committed, when HEAD goes to another branch."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import WouldOverwrite


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = Repository.init(tmp_path / "r")
    for text in ("one", "two"):
        (repo.root / "notes.txt").write_text(text)
        repo.commit([repo.root / "notes.txt"], message=text)
    return repo


def test_a_new_branch_at_head_keeps_what_is_not_committed(repo: Repository) -> None:
    (repo.root / "notes.txt").write_text("three")
    done = repo.switch("trial", create=True)
    assert done is not None
    assert (done.branch, done.written, done.moved_head) == ("trial", (), True)
    assert (repo.root / "notes.txt").read_text() == "three"
    assert repo.head().branch == "trial"
    repo.commit([repo.root / "notes.txt"], message="three")
    assert repo.find("trial~1") == repo.find("main")


def test_so_does_the_way_back_to_the_same_version(repo: Repository) -> None:
    repo.switch("trial", create=True)
    (repo.root / "notes.txt").write_text("three")
    repo.switch("main")
    assert (repo.root / "notes.txt").read_text() == "three"


def test_with_force_it_is_lost_and_elsewhere_nothing_is(repo: Repository) -> None:
    (repo.root / "notes.txt").write_text("three")
    with pytest.raises(WouldOverwrite):
        repo.switch("old", create=True, start="HEAD~1")
    assert [ref.name for ref in repo.refs()] == ["main"]
    repo.switch("trial", create=True, force=True)
    assert (repo.root / "notes.txt").read_text() == "two"
