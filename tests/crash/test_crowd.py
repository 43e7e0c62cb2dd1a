"""Crowds: commits, verifying readers, maintenance beside one another, in real processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import StateForgotten
from mvc.testing import fresh_process
from tests.children import run
from tests.counters import count
from tests.crash.crowd import acknowledged, given_up, state_for
from tests.crash.images import folder_in_memory
from tests.crash.state import check_arrays


def crowd(folder: Path, committers: int, commits: int, readers: int, seconds: float) -> None:
    root = folder / "repo"
    numbers = [committers, commits, readers, seconds]
    counted = run("crash.crowd", root, *numbers)
    for what in ("failed_committers", "failed_readers", "failed_maintenance"):
        assert counted[what] == 0
    told = acknowledged(folder)
    missing = _missing(root, committers, commits)
    count(
        f"{committers} processes x {commits} commits, {readers} readers, gc, repack, forget, index",
        acknowledged=len(told),
        missing=missing,
        **counted,
    )
    assert missing == 0
    assert len(told) == committers * commits
    for what in ("reads", "collected", "repacked", "forgotten", "index_treated"):
        assert counted[what] > 0


def _missing(root: Path, committers: int, commits: int) -> int:
    """How many acknowledged commits do not come back; the rest of what must hold is asserted."""
    told = acknowledged(root.parent)
    fresh_process()
    with Repository.open(root) as repo:
        history = [entry.commit for entry in repo.log()]
        for child, parent in pairwise(history):
            assert child.parents == (parent.id,)
        assert len(history) == committers * commits
        missing = len(set(told) - {commit.id for commit in history})
        going = given_up(root.parent)
        for id_, (name, step) in told.items():
            try:
                found = repo.checkout(id_, path=f"{name}.safetensors")
            except StateForgotten:
                assert id_ in going
                continue
            check_arrays(found, state_for(name, step))
        for name in {name for name, _ in told.values()}:
            assert len(repo.deployments(name)) == commits
        assert repo.storage.fsck().problems == ()
    return missing


def test_a_crowd(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path) as folder:
        crowd(folder, 6, 8, 2, 0.02)


@pytest.mark.long
def test_a_large_crowd(tmp_path: Path) -> None:
    crowd(tmp_path, 32, 50, 8, 2.0)
