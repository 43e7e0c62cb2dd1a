"""Receipts of forgotten states."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import RefConflict, WrongUsage
from mvc.repo.history.log import LogOptions
from mvc.testing import FixedClock

START, SECOND = 1_750_000_000_000_000_000, 10**9


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(START)


@pytest.fixture
def repo(tmp_path: Path, clock: FixedClock) -> Repository:
    repo = Repository.init(tmp_path / "repo", clock=clock)
    for i in range(5):
        clock.advance(SECOND)
        repo.commit({"w": np.full(3000, i, np.float32)}, message=f"v{i}", deploy="prod")
    return repo


def test_who_why_what_and_since_when_it_is_gone(repo: Repository, clock: FixedClock) -> None:
    assert repo.storage.receipts() == []
    versions = [repo.version("HEAD~3"), repo.version("HEAD~2")]
    clock.advance(SECOND)
    repo.storage.forget([each.id for each in versions], reason="row 17 was withdrawn")
    (receipt,) = repo.storage.receipts()
    assert (receipt.time_ns, receipt.reason, receipt.rules) == (
        clock.time_ns, "row 17 was withdrawn", "",
    )  # fmt: skip
    assert receipt.author and receipt.author == repo.deployments()[0].author
    assert {(s.commit, s.root, s.gone_ns) for s in receipt.states} == {
        (each.id, each.root, None) for each in versions
    }
    clock.advance(SECOND)
    repo.storage.gc()
    (receipt,) = repo.storage.receipts()
    assert {state.gone_ns for state in receipt.states} == {clock.time_ns}
    then, operations = clock.time_ns, len(list(repo.operations()))
    clock.advance(SECOND)
    repo.storage.gc(grace=timedelta(0))
    repo.storage.repack(interval=1)
    repo.storage.gc(grace=timedelta(0))
    repo = Repository.open(repo.root)
    assert [s.gone_ns for r in repo.storage.receipts() for s in r.states] == [then, then]
    assert len(list(repo.operations())) < operations + 4
    assert repo.storage.fsck(full=True).sound


def test_a_receipt_outlives_the_commit(repo: Repository, clock: FixedClock) -> None:
    repo.branch("side")
    repo.switch("side")
    made = repo.commit({"w": np.full(3000, 9, np.float32)})
    repo.switch("main")
    repo.storage.forget(made.id)
    repo.delete_ref("branch", "side", force=True)
    clock.advance(SECOND)
    repo.storage.gc(grace=timedelta(0))
    assert made.id not in {entry.id for entry in repo.log("HEAD", LogOptions(every=True))}
    (receipt,) = repo.storage.receipts()
    (state,) = receipt.states
    assert (state.commit, state.root, state.gone_ns) == (made.id, made.commit.root, clock.time_ns)
    clock.advance(SECOND)
    repo.storage.gc(grace=timedelta(0))
    assert repo.storage.receipts() == [receipt] and repo.storage.fsck(full=True).sound


def test_it_is_not_said_while_bytes_may_be_left(repo: Repository, clock: FixedClock) -> None:
    """A process that writes to a pack keeps gc from deleting it."""
    repo.storage.forget("HEAD~2")
    (pack,) = (repo.root / ".mvc" / "packs").glob("*.pack")
    lock = repo.handle.store.fs.lock(pack)
    assert lock is not None
    with lock:
        repo.storage.gc()
        assert pack.exists()
        assert [s.gone_ns for r in repo.storage.receipts() for s in r.states] == [None]
    clock.advance(SECOND)
    repo.storage.gc()
    assert not pack.exists()
    assert [s.gone_ns for r in repo.storage.receipts() for s in r.states] == [clock.time_ns]


def test_forgotten_by_rule_and_then_by_name(repo: Repository, clock: FixedClock) -> None:
    repo.deploy("HEAD", "prod")
    repo.storage.forget(keep_last=2)
    (receipt,) = repo.storage.receipts()
    assert receipt.rules == "--keep-last 2" and len(receipt.states) == 3
    repo.storage.forget("HEAD~3")
    assert [len(receipt.states) for receipt in repo.storage.receipts()] == [3, 1]
    repo.storage.gc()
    assert repo.storage.receipts()[1].states[0].gone_ns == clock.time_ns


def test_a_range_and_what_was_live(repo: Repository) -> None:
    ids = [entry.id for entry in repo.log()]
    with pytest.raises(RefConflict):
        repo.storage.forget("HEAD~2..HEAD", dry_run=True)
    chosen = repo.storage.forget("HEAD~3..HEAD~1", dry_run=True)
    assert [commit.id for commit in chosen.commits] == ids[1:3]
    assert repo.storage.forget("HEAD..HEAD").commits == () and repo.storage.receipts() == []
    with pytest.raises(WrongUsage):
        repo.storage.forget([])
    live = repo.live_between(START + 2 * SECOND, START + 3 * SECOND, "prod")
    chosen = repo.storage.forget(live)
    assert [commit.id for commit in chosen.commits] == ids[2:4]
