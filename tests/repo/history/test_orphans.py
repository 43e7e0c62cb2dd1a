"""What leaving a detached HEAD says of the versions that stay behind."""

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.repo.history.log import Orphans, orphans


def record(repo: Repository, value: float, deploy: str | None = None) -> CommitId:
    return repo.commit({"w": np.full(3, value)}, deploy=deploy).id


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A branch of two versions, then a detached HEAD at the first and three more on it."""
    repo = Repository.init(tmp_path / "models")
    first = record(repo, 1)
    record(repo, 2)
    repo.checkout(first, to=repo.root)
    for value in (3, 4, 5):
        record(repo, value)
    return repo


def test_a_detached_head_that_is_left(repo: Repository) -> None:
    tip = repo.find("HEAD")
    left = repo.switch("main")
    assert left is not None and left.orphans == Orphans(tip, 3)
    again = repo.switch("main")
    assert again is not None and again.orphans is None


@pytest.mark.parametrize("rev", ["HEAD", "HEAD~1"])
def test_what_a_tag_or_branch_reaches_is_not_counted(repo: Repository, rev: str) -> None:
    tip = repo.find("HEAD")
    repo.tag("kept", rev)
    assert orphans(repo.handle.store.fresh(), tip) == (None if rev == "HEAD" else Orphans(tip, 1))


def test_where_head_goes_counts(repo: Repository) -> None:
    tip = repo.find("HEAD")
    moved = repo.checkout("HEAD~1", to=repo.root)
    assert moved.orphans == Orphans(tip, 1)


def test_a_branch_made_on_the_way_out_keeps_all(repo: Repository) -> None:
    made = repo.switch("try", create=True)
    assert made is not None and made.orphans is None
    assert repo.find("try") == repo.find("HEAD")


def test_deployed_versions_and_what_led_to_them_stay(repo: Repository) -> None:
    tip = repo.find("HEAD")
    repo.deploy("HEAD~1", "prod")
    left = repo.switch("main")
    assert left is not None and left.orphans == Orphans(tip, 3)
    report = repo.storage.gc(grace="0")
    assert len(report.commits) == 1
    repo.find("HEAD")
