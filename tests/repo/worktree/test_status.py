import numpy as np
import pytest

from mvc.adapters.state_file import StateFile
from mvc.api.repository import Repository
from mvc.errors import SourceChanged
from mvc.repo.worktree.status import FileChange, Status
from tests.repo.working import write_model


def kinds(status: Status) -> dict[str, str]:
    return {c.path: c.kind for c in status.changes}


def test_before_the_first_commit(repo: Repository) -> None:
    write_model(repo.root / "m.safetensors")
    status = repo.status()
    assert (status.branch, status.head, status.changes) == ("main", None, ())
    assert status.untracked == ("m.safetensors",)


def test_what_became_of_tracked_files(repo: Repository) -> None:
    for i, name in enumerate(["a", "b", "c", "d", "sub/e"]):
        write_model(repo.root / f"{name}.safetensors", seed=i)
    (repo.root / "notes.txt").write_text("one")
    committed = repo.commit(repo.root, message="all")
    assert repo.status().clean
    changed = np.ones((20, 30), np.float32)
    write_model(repo.root / "b.safetensors", seed=1, **{"layer1.weight": changed})
    write_model(repo.root / "c.safetensors", seed=2, layers=5)
    (repo.root / "d.safetensors").unlink()
    (repo.root / "notes.txt").write_text("two")
    status = repo.status()
    assert status.head == committed.id
    by_path = {c.path: c for c in status.changes}
    assert kinds(status) == {
        "a.safetensors": "unchanged",
        "b.safetensors": "modified",
        "c.safetensors": "modified",
        "d.safetensors": "missing",
        "notes.txt": "modified",
        "sub/e.safetensors": "unchanged",
    }
    assert by_path["b.safetensors"].detail == "1 of 3 tensors changed"
    assert "bytes" in by_path["c.safetensors"].detail
    assert not status.clean
    assert list(by_path) == sorted(by_path)


def test_same_size_but_other_time_is_unchanged(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    write_model(path)
    repo.commit(path)
    write_model(path)
    assert repo.status().clean


def test_a_moved_file_is_told_from_a_missing_one(repo: Repository) -> None:
    write_model(repo.root / "old.safetensors", seed=1)
    write_model(repo.root / "lost.safetensors", seed=2)
    repo.commit(repo.root)
    (repo.root / "old.safetensors").rename(repo.root / "new.safetensors")
    (repo.root / "lost.safetensors").unlink()
    write_model(repo.root / "other.safetensors", seed=3)
    status = repo.status()
    assert status.changes == (
        FileChange("lost.safetensors", "missing"),
        FileChange("new.safetensors", "renamed", "was old.safetensors", "old.safetensors"),
    )
    assert status.untracked == ("other.safetensors",)


def test_a_folder_in_a_files_place(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    write_model(path)
    repo.commit(path)
    path.unlink()
    path.mkdir()
    (change,) = repo.status().changes
    assert (change.kind, change.detail) == ("missing", "its path is not a file")


def test_ignored_files_are_not_listed(repo: Repository) -> None:
    (repo.root / ".mvcignore").write_text("*.tmp\n.mvcignore\n")
    (repo.root / "x.tmp").write_text("x")
    (repo.root / "bad\x01name").write_text("x")
    assert repo.status().untracked == ("bad\x01name",)


def python_states(repo: Repository, *values: float) -> None:
    for value in values:
        repo.commit({"w": np.full(3, value)})


def test_a_python_state_without_a_file_is_not_dirty(repo: Repository) -> None:
    python_states(repo, 1, 2)
    status = repo.status()
    assert status.changes == (FileChange("model.safetensors", "missing", not_written=True),)
    assert status.clean
    repo.checkout("HEAD", path=["model.safetensors"], to=repo.root)
    assert kinds(repo.status()) == {"model.safetensors": "unchanged"}


def test_a_file_of_an_older_version_is_told(repo: Repository) -> None:
    python_states(repo, 1, 2)
    second = repo.find("HEAD")
    repo.checkout("main", to=repo.root)
    python_states(repo, 3, 4)
    (change,) = repo.status().changes
    assert (change.kind, change.same_as) == ("modified", second)
    write_model(repo.root / "model.safetensors")
    (change,) = repo.status().changes
    assert (change.kind, change.same_as) == ("modified", None)


def test_a_file_of_another_size_is_told_as_well(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    write_model(path)
    first = repo.commit(path).id
    write_model(path, layers=4)
    repo.commit(path)
    repo.checkout(first, path=["m.safetensors"], to=repo.root)
    (change,) = repo.status().changes
    assert change.same_as == first and "bytes" in change.detail


def test_the_newest_version_with_a_state_is_named(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    ids = []
    for seed in (1, 2, 1, 3):
        write_model(path, seed=seed)
        ids.append(repo.commit(path).id)
    write_model(path, seed=1)
    (change,) = repo.status().changes
    assert change.same_as == ids[2]


def test_the_folder_of_a_follower_is_not_untracked(repo: Repository) -> None:
    for folder in (".served.safetensors.mvc", "notes.mvc"):
        (repo.root / folder).mkdir()
        (repo.root / folder / "note").write_text("{}")
    assert repo.status().untracked == ("notes.mvc/note",)


def test_an_undone_version_is_not_older_than_head(repo: Repository) -> None:
    path = repo.root / "m.safetensors"
    for seed in (1, 2):
        write_model(path, seed=seed)
        repo.commit(path)
    repo.undo()
    (change,) = repo.status().changes
    assert (change.kind, change.same_as) == ("modified", None)
    assert "tensors changed" in change.detail


def test_a_file_that_is_written_to_is_modified(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repo.root / "m.safetensors"
    write_model(path)
    repo.commit(path)

    def changing(*_: object) -> None:
        raise SourceChanged("m.safetensors changed while it was being read")

    monkeypatch.setattr("mvc.repo.worktree.status.entry_of", changing)
    (change,) = repo.status().changes
    assert (change.kind, change.detail) == ("modified", "it is being written")


def test_a_file_that_was_read_in_another_way_is_unchanged(repo: Repository) -> None:
    """As a file whose format mvc reads only since it was committed."""
    np.save(repo.root / "a.npy", np.arange(6, dtype=np.float32))
    data = (repo.root / "a.npy").read_bytes()
    repo.commit({"a.npy": StateFile.of_bytes(data)})
    assert [change.kind for change in repo.status().changes] == ["unchanged"]
    (repo.root / "a.npy").write_bytes(data[:-1] + b"x")
    assert [change.kind for change in repo.status().changes] == ["modified"]
    (repo.root / "a.npy").write_bytes(data)
    assert repo.commit(repo.root / "a.npy").entries["a.npy"].format == "npy"
    repo.checkout("HEAD~1")
    assert [change.kind for change in repo.status().changes] == ["unchanged"]
