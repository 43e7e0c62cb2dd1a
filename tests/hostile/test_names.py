"""Names that clash, where the file system tells them apart and where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidName, WouldOverwrite, WrongUsage
from mvc.io.files import FileIdentity, FileSystem
from mvc.repo.commit import proposal
from mvc.repo.commit.request import FileOptions


class FoldingFS(FileSystem):
    """Finds a file under its name in any case, as macOS and Windows do."""

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        for name in (path.name, path.name.lower(), path.name.upper()):
            if found := super().stat(path.with_name(name) if name else path, follow=follow):
                return found
        return None


@pytest.fixture
def two_cases(tmp_path: Path) -> tuple[Path, str]:
    root = tmp_path / "repo"
    with Repository.init(root) as repo:
        for name in ("model.pt", "MODEL.PT"):
            (root / name).write_bytes(name.encode())
        return root, str(repo.commit([root], files=FileOptions(opaque=True)).id)


def test_two_cases_are_two_files_where_they_are(
    two_cases: tuple[Path, str], tmp_path: Path
) -> None:
    root, id_ = two_cases
    with Repository.open(root) as repo:
        repo.checkout(id_, to=tmp_path / "out")
    assert (tmp_path / "out/model.pt").read_bytes() == b"model.pt"
    assert (tmp_path / "out/MODEL.PT").read_bytes() == b"MODEL.PT"


def test_neither_is_lost_where_they_are_one(two_cases: tuple[Path, str], tmp_path: Path) -> None:
    root, id_ = two_cases
    with Repository.open(root, fs=FoldingFS()) as repo:
        with pytest.raises(WouldOverwrite, match="this file system ignores case"):
            repo.checkout(id_, to=tmp_path / "out")
        repo.checkout(id_, path=["MODEL.PT"], to=tmp_path / "single.bin")
    assert (tmp_path / "single.bin").read_bytes() == b"MODEL.PT"


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "CON", "x.", ".mvc/x", "a\nb", "y" * 256])
def test_python_states_have_the_same_names(tmp_path: Path, name: str) -> None:
    with Repository.init(tmp_path) as repo, pytest.raises(InvalidName):
        repo.commit({"w": np.ones(3)}, path=name)


FILE, INSIDE = "d/y.npy", "d/y.npy/q.npy"


def write(path: Path, value: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.full(3, value))
    return path


def test_a_file_that_becomes_a_folder_leaves_the_version(repo: Repository, tmp_path: Path) -> None:
    repo.commit(write(repo.root / FILE, 1))
    (repo.root / FILE).unlink()
    done = repo.commit(write(repo.root / INSIDE, 2))
    assert [(p.path, p.kind) for p in done.paths] == [(INSIDE, "added"), (FILE, "removed")]
    repo.checkout(done.id, to=tmp_path / "out", atomic_dir=True)
    assert np.load(tmp_path / "out" / INSIDE)[0] == 2


def test_a_folder_that_becomes_a_file_leaves_the_version(repo: Repository) -> None:
    more = write(repo.root / FILE / "r/s.npy", 3)
    repo.commit([write(repo.root / INSIDE, 1), more])
    for path in (repo.root / INSIDE, more, more.parent, repo.root / FILE):
        path.rmdir() if path.is_dir() else path.unlink()
    done = repo.commit(write(repo.root / FILE, 2))
    assert list(done.entries) == [FILE]
    assert {p.path for p in done.paths if p.kind == "removed"} == {INSIDE, "d/y.npy/r/s.npy"}


@pytest.mark.parametrize(("first", "second"), [("m", "m/n/o"), ("m/n/o", "m")])
def test_no_state_is_below_another(repo: Repository, first: str, second: str) -> None:
    state = {"w": np.ones(3)}
    with pytest.raises(WrongUsage, match="m cannot be a file and the folder of m/n/o"):
        repo.commit(states={first: state, second: state})
    repo.commit(state, path=first)
    said = "m cannot be a file: the version has" if second == "m" else "m cannot be a file and the"
    with pytest.raises(WrongUsage, match=f"{said}.* m/n/o") as caught:
        repo.commit(state, path=second)
    assert ("path='m/'" in str(caught.value.hint)) == (second == "m")
    repo.commit(states={first: None, second: state})
    assert repo.status().changes[0].path == second and len(repo.status().changes) == 1


def test_old_versions_that_have_both_are_read_by_path(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit({"w": np.ones(3)}, path="m")
    with monkeypatch.context() as earlier:
        earlier.setattr(proposal, "displaced", lambda *_: ())
        repo.commit({"w": np.zeros(3)}, path="m/n")
    assert repo.checkout(path="m")["w"][0] == 1
    assert repo.checkout(path="m/n")["w"][0] == 0
    for name in ("m", "m/n"):
        repo.checkout(path=[name], to=tmp_path / f"{name[-1]}.bin")
        assert (tmp_path / f"{name[-1]}.bin").is_file()
    repo.commit(states={"m": None, "other": {"w": np.zeros(4)}})
    assert {change.path for change in repo.status().changes} == {"m/n", "other"}


@pytest.mark.parametrize("folder", ["", "d/"])
def test_no_file_has_the_name_of_a_temporary_one(repo: Repository, folder: str) -> None:
    name = f"{folder}.mvc-tmp-0123456789abcdef"
    with pytest.raises(InvalidName, match="the name of a temporary file of mvc"):
        repo.commit({"w": np.ones(3)}, path=name)
    with pytest.raises(InvalidName, match="the name of a temporary file of mvc"):
        repo.commit({"w": np.ones(3)}, path=f"{name}/w")
