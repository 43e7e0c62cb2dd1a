"""A rewrite replaces the journal only once all that others published is in the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mvc
from mvc.maintenance.graph import read_records
from mvc.maintenance.rewrite_plan import RewritePlan, encoding_policy, rewrite
from mvc.store.journal.entries import Entry
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.publishing.rewrite import Rewrite
from tests.histories import weights


def commit_meanwhile(repo: mvc.Repository) -> None:
    with mvc.Repository.open(repo.root) as other:
        other.commit(weights(9), message="meanwhile")


def in_packs(repo: mvc.Repository) -> list[Path]:
    return sorted((repo.root / ".mvc/packs").iterdir())


@pytest.mark.parametrize("looks", [0, 1])
def test_what_others_published_cannot_be_passed_over(repo: mvc.Repository, looks: int) -> None:
    repo.commit(weights(0))
    packs, store = in_packs(repo), repo.handle.store
    with Rewrite(store.snapshot, store.pack_writer(fresh=True)) as work:
        for recorded in store.snapshot.entries():
            work.keep(recorded, recorded.entry)
        commit_meanwhile(repo)
        published = work.meanwhile()
        for _ in range(looks):
            work.keep(recorded := next(published), recorded.entry)
        with pytest.raises(RuntimeError, match="only after keeping every entry"):
            work.publish(Entry("repack", store.clock.now_ns(), "moved"))
    assert set(packs) <= set(in_packs(repo))
    assert repo.version().message == "meanwhile"
    assert repo.storage.fsck(full=True).sound
    repo.commit(weights(1))  # no lock is held any more


@pytest.mark.parametrize("allowed", [True, False])
def test_what_others_published_is_taken_over(repo: mvc.Repository, allowed: bool) -> None:
    repo.commit(weights(0))
    packs, store = in_packs(repo), repo.handle.store
    found, policy = read_records(store.snapshot), encoding_policy(repo.handle.config)
    commit_meanwhile(repo)

    def moved() -> None:
        rewrite(
            store, policy, RewritePlan(found, packs=set(found.packs)),
            operation=lambda: Entry("repack", store.clock.now_ns(), "moved"),
            allows=lambda *_: allowed,
        )  # fmt: skip

    if allowed:
        moved()
        assert not set(packs) & set(in_packs(repo))
    else:
        with pytest.raises(ConcurrentRewrite):
            moved()
        assert set(packs) <= set(in_packs(repo))
    assert repo.version().message == "meanwhile"
    assert repo.storage.fsck(full=True).sound
