"""Versions of a stranger cannot put files where another program takes them for its own settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc import control_folders
from mvc.errors import InvalidName

STATE = {"w": np.arange(4, dtype=np.float32)}


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        "sub/.GIT/hooks/post-merge",
        "git~1/config",
        ".hg/hgrc",
        ".sl/config",
        ".jj/repo/config.toml",
        ".bzr/branch/branch.conf",
        "_darcs/prefs/defaults",
        ".pijul/config",
        "sub/CVS/Root",
        "sub/cvs/entries",
    ],
)
def test_no_commit_into_another_programs_folder(tmp_path: Path, path: str) -> None:
    with mvc.Repository.init(tmp_path) as repo, pytest.raises(InvalidName, match="version control"):
        repo.commit(STATE, path=path)


def test_a_forged_version_writes_no_settings_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / ".git" / "config"
    config.parent.mkdir()
    config.write_text("own")
    with mvc.Repository.init(tmp_path) as repo:
        clean = repo.commit(STATE, path="w.safetensors").id
        with monkeypatch.context() as forging:
            forging.setattr(control_folders, "FOREIGN", frozenset())
            forged = repo.commit(STATE, path=".git/config").id
        for go in (
            lambda: repo.checkout(forged, force=True, to=repo.root),
            lambda: repo.checkout(forged, to=tmp_path / "elsewhere"),
            lambda: repo.checkout(forged, to=tmp_path / "served", atomic_dir=True),
        ):
            with pytest.raises(InvalidName, match="version control"):
                go()
            assert config.read_text() == "own"
        assert not (tmp_path / "elsewhere" / ".git").exists()
        assert np.array_equal(repo.checkout(forged, path=".git/config")["w"], STATE["w"])
        repo.checkout(clean, force=True, to=repo.root)
    assert config.read_text() == "own"


@pytest.mark.parametrize("folder", ["cvs", "CVS", "_darcs", "sub/cvs"])
def test_a_folder_that_only_has_the_name_of_one_is_kept(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "models"
    (root / folder).mkdir(parents=True)
    name = f"{folder}/w.npy"
    np.save(root / name, np.arange(3))
    with mvc.Repository.init(root) as repo:
        assert set(repo.status().untracked) == {name}
        repo.commit([root])
        assert set(repo.manifest().by_path) == {name}
        (root / name).unlink()
        repo.checkout("HEAD", to=root, force=True)
        repo.checkout("HEAD", to=tmp_path / "out", delete=True)
    assert (root / name).exists() and (tmp_path / "out" / name).exists()


@pytest.mark.parametrize("marker", ["CVS/Entries", "cvs/Entries", "_darcs/format"])
def test_a_folder_of_such_a_system_is_left_out(tmp_path: Path, marker: str) -> None:
    root, out = tmp_path / "models", tmp_path / "out"
    for place in (root, out):
        (place / marker).parent.mkdir(parents=True)
        (place / marker).write_text("own")
        (place / marker).with_name("Root").write_text("own")
    with mvc.Repository.init(root) as repo:
        np.save(root / "w.npy", np.arange(3))
        repo.commit([root])
        assert set(repo.manifest().by_path) == {"w.npy"}
        repo.checkout("HEAD", to=out, delete=True, force=True)
    assert (out / marker).exists() and (out / marker).with_name("Root").exists()
