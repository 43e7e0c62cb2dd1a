"""Files of which some contents are computed, and versions with several parents."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import mvc
from mvc.errors import UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.limits import MAX_PARENTS, PIECE
from mvc.model.manifest import Manifest
from mvc.repo.checkout.export import WriteOptions, export
from mvc.repo.commit.request import CommitOptions
from mvc.repo.derived import DerivedFile
from mvc.state import StateFile
from mvc.store.recovery.recover import Recovery

RANDOM = np.random.default_rng(7)
LARGE = PIECE // 4 + 5  # float32 elements of more than one piece


@pytest.fixture
def repo(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as opened:
        yield opened


def doubled(repo: mvc.Repository, rev: str, path: str, *keys: str) -> DerivedFile:
    """The file of a version with these tensors, of float32, twice as large."""
    entry, store = repo.manifest(rev).by_path[path], repo.handle.store

    def compute(content: int, start: int, out: memoryview) -> None:
        store.recovery.piece(entry.contents[content].id, start, out)
        np.frombuffer(out, np.float32)[:] *= 2

    computed = {t.content for t in entry.tensors if t.key in keys}
    return DerivedFile(store, entry, computed, compute)


def forked(repo: mvc.Repository) -> list[CommitId]:
    """Two branches of one version, and a version that continues both; that comes first."""
    base = repo.commit({"w": np.zeros(10)}).id
    repo.branch("side")
    side = repo.commit({"w": np.ones(10)}, options=CommitOptions(branch="side")).id
    main = repo.commit({"w": np.full(10, 2.0)}).id
    options = CommitOptions(parents=(side, main, side))
    return [repo.commit({"w": np.full(10, 3.0)}, options=options).id, main, side, base]


@pytest.mark.parametrize("size", [1000, LARGE])
def test_computed_tensors_are_stored_and_all_others_stay(repo, size):
    state = {"a": RANDOM.standard_normal(size).astype("f4"), "b": np.arange(size)}
    repo.commit(state, path="m.state")
    file = doubled(repo, "HEAD", "m.state", "a")
    repo.commit({"m.state": StateFile(file)})
    found = repo.checkout()
    assert found["a"].tobytes() == (2 * state["a"]).tobytes()
    assert found["b"].tobytes() == state["b"].tobytes()
    assert StateFile(file).root == repo.version("HEAD").root


def test_unchanged_contents_are_not_read(repo, monkeypatch):
    repo.commit({"a": np.ones(1000, "f4"), "b": np.zeros(70_000)}, path="m.state")
    file = doubled(repo, "HEAD", "m.state", "a")
    kept = set(file.stored.values())
    real = Recovery.piece

    def piece(self, id_, *args, **kwargs):
        assert id_ not in kept
        return real(self, id_, *args, **kwargs)

    monkeypatch.setattr(Recovery, "piece", piece)
    repo.commit({"m.state": StateFile(file)})


def test_a_content_of_another_version_is_named_by_its_id(repo):
    repo.commit({"a": np.ones(1000), "b": np.zeros(1000)}, path="m.state")
    repo.commit({"a": np.full(1000, 5.0), "b": np.full(1000, 6.0)}, path="m.state")
    old, new = (repo.manifest(rev).by_path["m.state"] for rev in ("HEAD~1", "HEAD"))
    mixed = replace(new, contents=(old.contents[0], new.contents[1]))
    tensors = [replace(t, id=mixed.contents[t.content].id) for t in new.tensors]
    mixed = replace(mixed, tensors=tuple(tensors))
    file = DerivedFile(repo.handle.store, mixed, (), lambda *_: None)
    repo.commit({"m.state": StateFile(file)})
    assert {k: v[0] for k, v in repo.checkout().items()} == {"a": 1.0, "b": 6.0}


def test_a_zip_is_written_with_its_checksums(repo, tmp_path):
    weights = {"w": torch.arange(5000, dtype=torch.float32), "n": torch.arange(3)}
    torch.save(weights, tmp_path / "m.pt")
    repo.commit(tmp_path / "m.pt")
    file = doubled(repo, "HEAD", "m.pt", "w")
    made, head = Manifest([file.entry]), repo.find("HEAD")
    out, store = tmp_path / "out.pt", repo.handle.store
    export(store, head, (), out, WriteOptions(), derived=made, parts=file.parts)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(found["w"], 2 * weights["w"]) and torch.equal(found["n"], weights["n"])
    repo.commit({"m.pt": StateFile(file)})
    repo.checkout(to=tmp_path / "stored.pt")
    assert (tmp_path / "stored.pt").read_bytes() == (tmp_path / "out.pt").read_bytes()


def test_any_part_of_a_content_can_be_read(repo):
    repo.commit({"a": RANDOM.standard_normal(LARGE).astype("f4")}, path="m.state")
    file = doubled(repo, "HEAD", "m.state", "a")
    whole = bytes(file.copied(0))
    for start, length in [(4, 8), (PIECE - 4, 12), (PIECE, 20), (0, len(whole)), (8, 0)]:
        out = bytearray(length)
        file.read(0, start, memoryview(out))
        assert out == whole[start : start + length]


def test_the_tip_is_the_first_parent_and_each_counts_once(repo):
    merged, main, side, _ = forked(repo)
    assert repo.version(merged).parents == (main, side)
    assert repo.find("HEAD^2") == side and repo.find("HEAD^") == main


def test_parents_must_exist_and_are_bounded(repo):
    repo.commit({"w": np.zeros(3)})
    with pytest.raises(UnknownRevision):
        repo.commit({"w": np.ones(3)}, options=CommitOptions(parents=(CommitId(bytes(32)),)))
    many = tuple(CommitId(i.to_bytes(32)) for i in range(MAX_PARENTS))
    with pytest.raises(WrongUsage, match="at most 500 parents"):
        repo.commit({"w": np.ones(3)}, options=CommitOptions(parents=many))
    assert len(list(repo.log())) == 1


def test_a_version_with_two_parents_goes_everywhere(repo, tmp_path):
    versions = forked(repo)
    repo.delete_ref("branch", "side")
    repo.storage.gc(grace=timedelta(0))
    repo.storage.repack()
    assert [entry.id for entry in repo.log()] == versions
    assert repo.find("HEAD^2") == versions[2]
    with mvc.Repository.init(tmp_path / "remote", bare=True):
        repo.remotes.add("origin", str(tmp_path / "remote"))
        repo.push("origin", ["main"])
    with mvc.clone(str(tmp_path / "remote"), tmp_path / "copy") as copy:
        assert [entry.id for entry in copy.log()] == versions
        assert copy.checkout("HEAD^2")["w"][0] == 1.0
        assert copy.storage.fsck().sound
    repo.storage.forget([versions[2]])
    assert repo.checkout("HEAD")["w"][0] == 3.0 and repo.checkout("HEAD^")["w"][0] == 2.0
    assert repo.storage.fsck().sound
