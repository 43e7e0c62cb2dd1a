"""Which files checkout may replace: those of versions that a name leads to, and no others."""

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidName, IoFailed, RefConflict, WouldOverwrite
from tests.repo.working import write_model


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = Repository.init(tmp_path / "models")
    for value in (1, 2, 3):
        repo.commit({"w": np.full(3, value)})
    return repo


def test_files_of_an_older_version_are_no_lost_work(repo: Repository) -> None:
    repo.checkout("HEAD~1", to=repo.root)
    repo.commit({"w": np.full(3, 4)})  # HEAD moves on, the file stays
    moved = repo.switch("main")
    assert moved is not None and moved.written == ("model.safetensors",)
    assert repo.status().clean


def test_a_file_of_an_older_version_is_deleted(repo: Repository) -> None:
    write_model(repo.root / "m.safetensors", seed=1)
    repo.commit(repo.root / "m.safetensors")
    write_model(repo.root / "m.safetensors", seed=2)
    repo.commit(repo.root / "m.safetensors")
    repo.checkout("HEAD~1", path=["m.safetensors"], to=repo.root)
    moved = repo.checkout("HEAD~2", to=repo.root)
    assert moved.deleted == ("m.safetensors",)


def test_bytes_that_no_version_has_are_kept(repo: Repository) -> None:
    write_model(repo.root / "model.safetensors")
    before = (repo.root / "model.safetensors").read_bytes()
    with pytest.raises(WouldOverwrite, match="has uncommitted work"):
        repo.checkout("HEAD~1", to=repo.root)
    assert (repo.root / "model.safetensors").read_bytes() == before


def test_the_same_tensors_in_other_bytes_are_kept(repo: Repository) -> None:
    path = repo.root / "m.npz"
    np.savez(path, w=np.arange(3))
    repo.commit(path)
    np.savez_compressed(path, w=np.arange(3))
    with pytest.raises(WouldOverwrite):
        repo.checkout("HEAD~1", to=repo.root)


def test_a_file_of_another_path_is_kept(repo: Repository) -> None:
    write_model(repo.root / "a.safetensors", seed=1)
    write_model(repo.root / "b.safetensors", seed=2)
    repo.commit(repo.root)
    write_model(repo.root / "a.safetensors", seed=2)
    with pytest.raises(WouldOverwrite, match=r"a\.safetensors"):
        repo.checkout("HEAD~1", to=repo.root)


def test_what_only_an_undone_commit_has_is_kept(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    for seed in (1, 2):
        write_model(path, seed=seed)
        repo.commit(path)
    repo.undo()
    with pytest.raises(WouldOverwrite, match="uncommitted work"):
        repo.checkout("HEAD~1", to=repo.root)


def test_a_refused_switch_to_a_new_branch_makes_no_branch(repo: Repository) -> None:
    write_model(repo.root / "model.safetensors")
    before = repo.handle.store.snapshot.position.sequence
    with pytest.raises(WouldOverwrite, match="has uncommitted work"):
        repo.switch("side", create=True, start="HEAD~1")
    assert [branch.name for branch in repo.refs()] == ["main"]
    assert repo.handle.store.snapshot.position.sequence == before
    moved = repo.switch("side", create=True, start="HEAD~1", force=True)
    assert moved is not None and moved.branch == "side"


def test_a_failed_switch_to_a_new_branch_makes_no_branch(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IoFailed("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(repo.handle.store.fs, "write_beside", fail)
        with pytest.raises(IoFailed):
            repo.switch("side", create=True, start="HEAD~1")
    assert [branch.name for branch in repo.refs()] == ["main"]


@pytest.mark.parametrize("name", ["main", "kept", "v1", "a..b", "HEAD"])
def test_a_new_branch_without_a_valid_name_writes_no_file(repo: Repository, name: str) -> None:
    repo.branch("kept")
    repo.tag("v1")
    with pytest.raises((RefConflict, InvalidName)):
        repo.switch(name, create=True, start="HEAD~1")
    assert not (repo.root / "model.safetensors").exists()


def test_switching_to_a_new_branch_is_one_operation(repo: Repository) -> None:
    before = repo.handle.store.snapshot.position.sequence
    repo.switch("side", create=True, start="HEAD~1")
    assert repo.handle.store.snapshot.position.sequence == before + 1
    repo.undo()
    assert [branch.name for branch in repo.refs()] == ["main"]
    assert repo.log()[0].refs == ("HEAD", "main")
