"""Versions of a stranger cannot put files where another program takes them for its own settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import InvalidName
from mvc.model import names

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
            forging.setattr(names, "_FOREIGN", frozenset())
            forged = repo.commit(STATE, path=".git/config").id
        for go in (
            lambda: repo.checkout(forged, force=True, to=repo.root),
            lambda: repo.checkout(forged, to=tmp_path / "elsewhere"),
            lambda: repo.checkout(forged, to=tmp_path / "served", atomic_dir=True),
            lambda: repo.remove([".git/config"], force=True),
        ):
            with pytest.raises(InvalidName, match="version control"):
                go()
            assert config.read_text() == "own"
        assert not (tmp_path / "elsewhere" / ".git").exists()
        assert np.array_equal(repo.checkout(forged, path=".git/config")["w"], STATE["w"])
        repo.checkout(clean, force=True, to=repo.root)
    assert config.read_text() == "own"
