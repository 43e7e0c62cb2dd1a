"""gc shortens the operation log; what is left of it is undone exactly or not at all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from mvc.errors import RefConflict
from mvc.maintenance.fsck.fsck import fsck
from mvc.maintenance.gc import collect
from mvc.repo import refs
from mvc.repo.commit.commit import commit as make_commit
from mvc.repo.commit.request import CommitOptions, CommitRequest
from mvc.repo.handle import Handle
from mvc.repo.oplog import oplog
from mvc.repo.oplog.oplog import Operation
from mvc.repo.oplog.undo import undo
from mvc.store.journal.entries import Entry, RefChange
from tests.repo.publishing import advance, repository


@pytest.fixture
def context(tmp_path: Path) -> Handle:
    return repository(tmp_path / "r")


def empty_commit(context: Handle) -> None:
    request = CommitRequest(options=CommitOptions(allow_empty=True))
    make_commit(context.store, context.config, context.recent, request)


def padded(context: Handle) -> None:
    """Operations that nothing needs, so that shortening the journal is worth it."""
    for _ in range(30):
        refs.create_tag(context.store, "x")
        refs.delete_tag(context.store, "x")


def shorten(context: Handle, seconds: float = 0) -> dict[int, Operation]:
    collect(context.store, context.config, grace=timedelta(seconds=seconds))
    left = {o.number: o for o in oplog.oplog(context.store)}
    assert len(left) < max(left), "nothing was left out"
    assert fsck(context.store).sound
    return left


def test_an_old_undo_still_holds(context: Handle) -> None:
    empty_commit(context)
    first = refs.head(context.store.fresh())
    advance(context, 1)
    empty_commit(context)
    refs.create_tag(context.store, "kept")
    undo(context.store, context.config, 2)
    padded(context)
    advance(context, 60)
    left = shorten(context)
    assert (left[2].undone_by, left[4].entry.undoes) == (4, 2)
    assert refs.head(context.store.fresh()) == first
    assert [undo(context.store, context.config).operation.number for _ in range(3)] == [64, 3, 1]


def test_no_rename_is_undone_in_part(context: Handle) -> None:
    empty_commit(context)
    refs.rename_branch(context.store, "main", "trunk")
    advance(context, 1)
    empty_commit(context)
    padded(context)
    advance(context, 60)
    shorten(context)
    undo(context.store, context.config, 3)
    undo(context.store, context.config, 2)
    assert [b.name for b in refs.branches(context.store.fresh())] == ["main"]
    assert refs.head(context.store.fresh()).branch == "main"


def test_what_is_left_in_part_is_not_undone(context: Handle) -> None:
    """A rename whose version is gone since says no more than where HEAD is."""
    empty_commit(context)
    kept = refs.head(context.store.fresh()).commit
    assert kept is not None
    advance(context, 1)
    empty_commit(context)
    refs.rename_branch(context.store, "main", "trunk")
    refs.create_branch(context.store, "other", kept.hex())
    undo(context.store, context.config, 4)
    refs.create_branch(context.store, "trunk2", kept.hex())
    padded(context)
    context.store.publish(
        lambda: Entry(
            "branch", context.store.clock.now_ns(),
            refs=(RefChange("heads/trunk", context.store.snapshot.ref("heads/trunk"), kept),),
        )
    )  # fmt: skip
    advance(context, 60)
    left = shorten(context)
    assert left[3].entry.refs == (
        RefChange("heads/main", None, None),
        RefChange("HEAD", "trunk", "trunk"),
    )
    with pytest.raises(RefConflict, match="nothing to undo"):
        undo(context.store, context.config, 3)
    assert refs.head(context.store.fresh()).branch == "trunk"
