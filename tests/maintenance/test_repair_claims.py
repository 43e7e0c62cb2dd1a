"""What an index that was believed too much left behind: bytes claimed twice, wrong predecessors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData
from mvc.model.statement import Deployment
from mvc.repo.commit.request import CommitOptions
from mvc.repo.statements.live import list_deployments, live_at
from mvc.store.journal.entries import Entry
from mvc.store.publishing import publish as publishing
from mvc.store.publishing.publish import publish
from mvc.store.writing.pack_ends import PackEnds
from mvc.testing import fresh_process
from tests.oracle import reader


def weights(i: int) -> np.ndarray:
    return np.random.default_rng(i).standard_normal(3000).astype(np.float32)


def deployed(repo: Repository, target: str, previous: int | None) -> int:
    """Publishes a deployment with the given predecessor; its number."""
    store = repo.handle.store
    head = repo.find("HEAD")
    now = store.clock.now_ns()
    entry = Entry("deploy", now, target, statements=(
        Deployment(subject=head, target=target, time_ns=now),))  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publishing, "entry_before", lambda *_: previous)
        return publish(store.snapshot, lambda: entry).sequence


@pytest.fixture
def wrong(tmp_path: Path) -> tuple[Path, list[int]]:
    """Five deployments on prod; the third passes over one, the fourth names none."""
    with Repository.init(tmp_path / "models") as repo:
        repo.commit({"w": weights(0)}, deploy="test")
        first = deployed(repo, "prod", None)
        second = deployed(repo, "prod", first)
        third = deployed(repo, "prod", first)
        fourth = deployed(repo, "prod", None)
        fifth = deployed(repo, "prod", fourth)
    return tmp_path / "models", [first, second, third, fourth, fifth]


def test_fsck_names_wrong_predecessors(wrong: tuple[Path, list[int]]) -> None:
    root, (first, second, third, fourth, _) = wrong
    with Repository.open(root) as repo:
        with pytest.raises(DamagedData):
            repo.deployments("prod")
        problems = repo.storage.fsck().problems
    assert [(p.kind, p.object, p.where) for p in problems] == [
        ("reference", "prod", f"journal entry {third}"),
        ("reference", "prod", f"journal entry {fourth}"),
    ]
    assert f"names operation {first} as its predecessor" in problems[0].message
    assert f"it is operation {second}" in problems[0].message
    assert "names no operation" in problems[1].message


def test_repair_records_the_right_ones(wrong: tuple[Path, list[int]]) -> None:
    root, numbers = wrong
    with Repository.open(root) as repo:
        done = repo.storage.repair()
        assert done.after.sound
        assert [h.kind for h in done.healed] == ["statement"] * 2
        assert [d.sequence for d in repo.deployments("prod")] == numbers
        assert live_at(repo.handle.store, None, "prod").sequence == numbers[-1]
        assert repo.log()[0].deployments
        entries = {r.sequence: r.entry for r in repo.handle.store.snapshot.entries()}
        assert [entries[number].previous for number in numbers[2:4]] == [
            (numbers[1],), (numbers[2],),
        ]  # fmt: skip
        assert repo.storage.repair().healed == ()
        repo.deploy("HEAD", "prod")
    oracle = reader.Repository(root / ".mvc")
    assert [d.sequence for d in oracle.deployments if d.target == "prod"] == [*numbers, 8]
    assert all(d.linked for d in oracle.deployments)


def test_the_second_reader_sees_a_wrong_predecessor(wrong: tuple[Path, list[int]]) -> None:
    root, numbers = wrong
    oracle = reader.Repository(root / ".mvc")
    assert [d.sequence for d in oracle.deployments if not d.linked] == numbers[2:4]


@pytest.mark.parametrize("after", ["gc", "index", "reopened"])
def test_corrections_stay(wrong: tuple[Path, list[int]], after: str) -> None:
    root, numbers = wrong
    with Repository.open(root) as repo:
        repo.storage.repair()
        if after == "gc":
            for i in range(3):
                repo.commit({"w": weights(i)})
            repo.undo()
            repo.storage.gc(grace="0s")
            assert repo.storage.fsck().sound
        elif after == "index":
            repo.handle.store.snapshot.rebuild_index()
    if after == "reopened":
        shutil.rmtree(root / ".mvc" / "index.lmdb")
    with Repository.open(root) as repo:
        assert [d.sequence for d in repo.deployments("prod")] == numbers
        assert repo.storage.fsck().sound
    assert all(d.linked for d in reader.Repository(root / ".mvc").deployments)


def test_what_the_journal_does_not_prove_stays_damage(tmp_path: Path) -> None:
    """No entry of this number is there, as where one that was a deployment is missing."""
    with Repository.init(tmp_path / "models") as repo:
        repo.commit({"w": weights(0)})
        deployed(repo, "prod", None)
        deployed(repo, "prod", 40)
        done = repo.storage.repair()
        assert not done.after.sound and done.healed == ()
        with pytest.raises(DamagedData):
            list_deployments(repo.handle.store.fresh(), "prod")


@pytest.fixture
def overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The second version's records were cut off, and those of the third lie in their place."""
    root = tmp_path / "models"
    with Repository.init(root) as repo:
        pack = root / ".mvc" / "packs" / "00000001.pack"
        repo.commit({"w": weights(0)}, options=CommitOptions(reset_point=True))
        end = pack.stat().st_size
        repo.commit({"w": weights(1)[:2000]}, options=CommitOptions(reset_point=True))
        monkeypatch.setattr(PackEnds, "claimed", lambda ends, number: end)
        with pack.open("r+b") as file:
            file.truncate(end)
        repo.handle.store.close()
    with Repository.open(root) as repo:
        repo.commit({"w": weights(2)}, options=CommitOptions(reset_point=True))
    monkeypatch.undo()
    fresh_process()
    return root


def test_fsck_names_bytes_that_are_claimed_twice(overwritten: Path) -> None:
    with Repository.open(overwritten) as repo:
        ids = [entry.id for entry in repo.log()]
        report = repo.storage.fsck()
    (region,) = [p for p in report.problems if p.kind == "region"]
    assert region.object == "00000001.pack" and "operations 2 and 3" in region.message
    assert set(region.versions) == set(ids[:2])
    assert report.lost == (ids[1],)


def test_repair_gives_each_operation_its_own_bytes(overwritten: Path) -> None:
    with Repository.open(overwritten) as repo:
        ids = [str(entry.id) for entry in repo.log()]
        done = repo.storage.repair()
        assert "region" in {h.kind for h in done.healed}
        assert not [p for p in done.after.problems if p.kind == "region"]
        assert [str(v) for v in done.after.lost] == [ids[1]]
        for i in (0, 2):
            found = repo.checkout(ids[2 - i])["w"]
            assert found.tobytes() == weights(i).tobytes()
        assert repo.storage.repair().healed == ()
        assert not [p for p in repo.storage.fsck(full=True).problems if p.kind == "region"]


def test_versions_are_healed_from_a_backup(overwritten: Path, tmp_path: Path) -> None:
    with Repository.init(tmp_path / "other") as other:
        other.commit({"w": weights(1)[:2000]})
    with Repository.open(overwritten) as repo:
        ids = [str(entry.id) for entry in repo.log()]
        done = repo.storage.repair(other=tmp_path / "other")
        assert done.after.sound
        assert repo.checkout(ids[1])["w"].tobytes() == weights(1)[:2000].tobytes()
