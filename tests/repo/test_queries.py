"""Which versions were asked for: what counts, what survives, what forget and repack make of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.api import Gone
from mvc.errors import StorageFull, UnknownPath, WrongUsage
from mvc.io.files import FileSystem
from mvc.repo import queries as queries_module
from mvc.testing import FixedClock

PROJECT = Path(__file__).parents[2]


def state(number: int) -> dict[str, np.ndarray]:
    weights = np.random.default_rng(0).standard_normal((80, 80)).astype(np.float32)
    weights[number] += 1
    return {"w": weights}


def versions(repo: mvc.Repository, count: int) -> list:
    return [repo.commit(state(n)).id for n in range(count)]


def counts(repo: mvc.Repository) -> dict:
    return {id_: each.count for id_, each in repo.storage.queries().asked.items()}


def test_each_way_of_asking_counts(repo: mvc.Repository, tmp_path):
    save_file(state(0), repo.root / "m.safetensors")
    ids = [repo.commit(repo.root / "m.safetensors").id]
    repo.branch("other")
    for n in (1, 2):
        save_file(state(n), repo.root / "m.safetensors")
        ids.append(repo.commit(repo.root / "m.safetensors", deploy="prod").id)
    assert counts(repo) == {}
    repo.checkout("HEAD~2")
    repo.checkout(target="prod")
    assert counts(repo) == {ids[0]: 1, ids[2]: 1}
    repo.checkout("HEAD~1", to=tmp_path / "out")
    repo.checkout("HEAD~1", path=["m.safetensors"], force=True, to=repo.root)
    repo.checkout("main", force=True, to=repo.root)
    repo.switch("other", force=True)
    assert counts(repo) == {ids[0]: 2, ids[1]: 2, ids[2]: 2}
    assert len(list(repo.iter_versions(rev="main"))) == 3
    assert len(list(repo.iter_versions(target="prod", keys=["w"]))) == 2
    assert counts(repo) == {ids[0]: 3, ids[1]: 4, ids[2]: 4}
    for version, _ in repo.iter_versions(rev="main"):  # one that is not read to its end
        assert version.id == ids[0]
        break
    assert counts(repo) == {ids[0]: 4, ids[1]: 4, ids[2]: 4}
    repo.open_file("main", "m.safetensors", counted=False)
    assert counts(repo) == {ids[0]: 4, ids[1]: 4, ids[2]: 4}
    with pytest.raises(UnknownPath):
        repo.checkout(ids[0], path="absent")
    list(repo.log())
    repo.diff(ids[0], ids[1])
    repo.storage.fsck(full=True)
    repo.storage.stats()
    assert counts(repo) == {ids[0]: 4, ids[1]: 4, ids[2]: 4}


def test_counts_last_and_sum_over_processes(tmp_path):
    clock = FixedClock()
    with mvc.Repository.init(tmp_path, clock=clock) as repo:
        first, second = versions(repo, 2)
        began = repo.storage.queries().since_ns
        assert began == clock.time_ns
        repo.checkout(first)
        clock.advance(5_000)
        repo.checkout(first)
        asked = repo.storage.queries().asked[first]
        assert (asked.count, asked.last_us) == (2, began // 1000 + 5)
        code = f"import mvc; mvc.Repository.open({str(tmp_path)!r}).checkout({str(second)!r})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)
        assert counts(repo) == {first: 2, second: 1}
        assert repo.storage.queries().since_ns == began


def test_the_file_is_folded_and_does_not_grow(repo: mvc.Repository, monkeypatch):
    monkeypatch.setattr(queries_module, "FOLD_AT", 48 * 20)
    first, second = versions(repo, 2)
    since = repo.storage.queries().since_ns
    for _ in range(50):
        repo.checkout(first)
    repo.checkout(second)
    assert (repo.root / ".mvc/queries").stat().st_size <= 48 * 20
    assert counts(repo) == {first: 50, second: 1}
    assert repo.storage.queries().since_ns == since


def test_a_damaged_row_is_passed_over_and_a_torn_one_written_over(repo: mvc.Repository):
    first, second = versions(repo, 2)
    repo.checkout(first)
    repo.checkout(second)
    file = repo.root / ".mvc/queries"
    data = bytearray(file.read_bytes())
    assert len(data) == 3 * 48
    data[48 + 20] ^= 1  # in the row of the first
    file.write_bytes(data + data[:30])
    assert counts(repo) == {second: 1}
    repo.checkout(second)
    assert counts(repo) == {second: 2}
    assert file.stat().st_size == 4 * 48


class Full(FileSystem):
    """No room for anything that is called queries."""

    def open_write(self, path, **options):
        if path.name.startswith("queries"):
            raise StorageFull(f"no space left for {path}")
        return super().open_write(path, **options)


def test_what_cannot_be_noted_is_left_out(tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        (only,) = versions(repo, 1)
    with mvc.Repository.open(tmp_path, fs=Full()) as repo:
        assert repo.checkout(only)["w"].tobytes() == state(0)["w"].tobytes()
        assert counts(repo) == {}
    with mvc.Repository.open(tmp_path) as repo:
        with FileSystem().lock(tmp_path / ".mvc/queries.lock"):
            repo.checkout(only)
        assert counts(repo) == {}
        (tmp_path / ".mvc/queries").unlink()
        (tmp_path / ".mvc/queries").mkdir()
        repo.checkout(only)


def test_a_repository_that_cannot_be_written_to_is_left_alone(tmp_path):
    with mvc.Repository.init(tmp_path) as repo:
        (only,) = versions(repo, 1)
    before = (tmp_path / ".mvc/queries").read_bytes()
    (tmp_path / ".mvc").chmod(0o555)
    try:
        with mvc.Repository.open(tmp_path) as repo:
            if repo.handle.store.writable:
                pytest.skip("nothing is forbidden to this user")
            repo.checkout(only)
    finally:
        (tmp_path / ".mvc").chmod(0o755)
    assert (tmp_path / ".mvc/queries").read_bytes() == before


def test_forget_what_was_never_asked_for(repo: mvc.Repository):
    ids = versions(repo, 6)
    repo.tag("v1", ids[0])
    repo.deploy(ids[1], "prod")
    repo.deploy(ids[5], "prod")
    repo.checkout(ids[3])
    gone = repo.storage.forget(unqueried=True, dry_run=True)
    assert [c.id for c in gone.commits] == [ids[4], ids[2], ids[1]]
    assert gone.rules.text == "--unqueried"
    assert gone.queries_since_ns == repo.storage.queries().since_ns
    both = repo.storage.forget(unqueried=True, unused="prod", keep_last=2, dry_run=True)
    assert [c.id for c in both.commits] == [ids[2]]
    chosen = repo.storage.forget(unqueried=True, dry_run=True)
    repo.checkout(ids[2])  # asked for after it was chosen
    from mvc.maintenance import forget

    forget.forget(repo.handle.store, repo.handle.config, chosen)
    assert [isinstance(repo.availability(id_), Gone) for id_ in ids] == [
        *(False, True, False, False, True, False)
    ]


def test_what_may_have_been_asked_for_before_stays(repo: mvc.Repository):
    versions(repo, 3)
    (repo.root / ".mvc/queries").unlink()  # as in a repository of an earlier mvc
    with pytest.raises(WrongUsage, match="no queries are recorded here"):
        repo.storage.forget(unqueried=True)
    repo.checkout()
    later = versions(repo, 3)
    assert [c.id for c in repo.storage.forget(unqueried=True).commits] == later[1::-1]
    data = bytearray((repo.root / ".mvc/queries").read_bytes())
    data[3] ^= 1  # when recording began is not known any more
    (repo.root / ".mvc/queries").write_bytes(data)
    with pytest.raises(WrongUsage, match="no queries are recorded here"):
        repo.storage.forget(unqueried=True)


def test_forget_and_gc_drop_the_rows(repo: mvc.Repository):
    ids = versions(repo, 3)
    repo.branch("side", ids[1])
    for id_ in ids:
        repo.checkout(id_)
    repo.storage.forget(ids[0])
    assert counts(repo).keys() == {*ids[1:]}
    assert ids[0] not in (repo.root / ".mvc/queries").read_bytes()
    extra = repo.commit(state(9)).id
    repo.checkout(extra)
    repo.undo()
    repo.storage.gc(grace="0", dry_run=True)
    assert extra in counts(repo)
    repo.storage.gc(grace="0")
    assert counts(repo).keys() == {*ids[1:]}
    assert extra not in (repo.root / ".mvc/queries").read_bytes()
    assert repo.storage.queries().since_ns is not None


def test_repack_stores_in_full_what_is_asked_for_most(repo: mvc.Repository):
    ids = versions(repo, 8)
    with pytest.raises(WrongUsage, match="no version was requested yet"):
        repo.storage.repack(add_queried=1)
    for id_ in [ids[3]] * 3 + [ids[5]] * 2 + [ids[6]]:
        repo.checkout(id_)
    plan = repo.storage.repack(add_queried=2, dry_run=True).plan
    assert plan.goal.add == (ids[3], ids[5])
    repo.storage.repack(add_queried=2)
    full = {
        entry.id
        for entry in repo.log("HEAD", mvc.LogOptions(reset_points=True))
        if entry.reset_point
    }
    assert full == {ids[0], ids[3], ids[5]}
    assert not repo.storage.repack(add_queried=2).plan  # they are reset points already
    with pytest.raises(WrongUsage, match="exclude each other"):
        repo.storage.repack(add_queried=2, interval=3)
    with pytest.raises(WrongUsage, match="1 or more"):
        repo.storage.repack(add_queried=0)
    for n, id_ in enumerate(ids):
        assert repo.checkout(id_)["w"].tobytes() == state(n)["w"].tobytes()
