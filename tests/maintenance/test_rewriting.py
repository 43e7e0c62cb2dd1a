"""A rewrite replaces the journal only once all that others published is in the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mvc
from mvc.maintenance.inventory import inventory
from mvc.maintenance.rewrite_plan import RewritePlan, encoding_policy, executing
from mvc.store.journal.entries import Entry
from mvc.testing.history import weights


def rewrite(repo: mvc.Repository, looks: int) -> None:
    """Moves every pack while another opening commits; asks so many times what that did."""
    store, found = repo.context.store, inventory(repo.context.store.snapshot)
    plan = RewritePlan(packs=set(found.packs))
    with executing(store, encoding_policy(repo.context.config), found, plan) as work:
        with mvc.Repository.open(repo.root) as other:
            other.commit(weights(9), message="meanwhile")
        published = work.meanwhile()
        for _ in range(looks):
            next(published, None)
        work.publish(Entry("repack", store.clock.now_ns(), "moved"))


def in_packs(repo: mvc.Repository) -> list[Path]:
    return sorted((repo.root / ".mvc/packs").iterdir())


@pytest.mark.parametrize("looks", [0, 1])
def test_what_others_published_cannot_be_passed_over(repo: mvc.Repository, looks: int) -> None:
    repo.commit(weights(0))
    packs = in_packs(repo)
    with pytest.raises(RuntimeError, match="once all of the old one is kept"):
        rewrite(repo, looks)
    assert set(packs) <= set(in_packs(repo))
    assert repo.version().message == "meanwhile"
    assert repo.storage.fsck(full=True).sound
    repo.commit(weights(1))  # no lock is held any more


def test_what_others_published_is_taken_over(repo: mvc.Repository) -> None:
    repo.commit(weights(0))
    packs = in_packs(repo)
    rewrite(repo, looks=2)
    assert not set(packs) & set(in_packs(repo))
    assert repo.version().message == "meanwhile"
    assert repo.storage.fsck(full=True).sound
