"""git, asked about a stranger's work tree, runs none of the commands that this names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import mvc
from mvc.errors import IoFailed
from mvc.io.files import FileSystem
from mvc.model.commit import Commit
from mvc.repo.worktree.git_code import git_code
from tests.histories import weights

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    names = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    command = ["git", *names, *arguments]
    return subprocess.run(
        command, cwd=folder, check=check, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git work tree with one file that differs, ``train.py``."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("lr = 0.1\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "code")
    (tree / "train.py").write_text("lr = 0.2\n")
    return tree


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that a stranger's command makes: not by mvc, but by git as it is."""
    return tmp_path / "PWNED"


def ask(tree: Path) -> Commit:
    with mvc.Repository.init(tree / "models") as repo:
        return repo.commit(weights(1), options=mvc.CommitOptions(patch=True)).commit


def is_dangerous(tree: Path, marker: Path) -> None:
    git(tree, "diff", "HEAD", check=False)
    assert marker.exists(), "git runs nothing here, so the test shows nothing"
    marker.unlink()
    (tree / "train.py").write_text("lr = 0.3\n")


@pytest.mark.parametrize("key", ["clean", "process"])
@pytest.mark.parametrize("where", ["local", "include", "worktree", "odd name"])
def test_filters_of_the_repository(tree: Path, marker: Path, key: str, where: str) -> None:
    name = "Ev.il=1" if where == "odd name" else "evil"
    setting = f"filter.{name}.{key}", f"touch {marker}; cat"
    if where == "include":
        git(tree, "config", "-f", str(tree / "more"), *setting)
        git(tree, "config", "include.path", "../more")
    elif where == "worktree":
        git(tree, "config", "extensions.worktreeConfig", "true")
        git(tree, "config", "--worktree", *setting)
    else:
        git(tree, "config", *setting)
    git(tree, "config", f"filter.{name}.required", "true")
    (tree / ".gitattributes").write_text(f"*.py filter={name}\n")
    is_dangerous(tree, marker)
    made = ask(tree)
    assert not marker.exists()
    assert made.dirty and made.attached == ("code.patch",)


def test_filters_of_the_user_run(tree: Path, marker: Path) -> None:
    git(tree, "config", "--global", "filter.mine.clean", f"touch {marker}; cat")
    (tree / ".gitattributes").write_text("*.py filter=mine\n")
    assert ask(tree).dirty and marker.exists()


def test_a_promised_blob_is_not_fetched(tree: Path, marker: Path) -> None:
    blob = git(tree, "rev-parse", "HEAD:train.py")
    (tree / ".git/objects" / blob[:2] / blob[2:]).unlink()
    for key, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialclone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "/tmp"),
        ("remote.origin.uploadpack", f"touch {marker}; false"),
    ):
        git(tree, "config", key, value)
    is_dangerous(tree, marker)
    with pytest.raises(IoFailed, match="git did not return the code's difference"):
        ask(tree)
    assert not marker.exists()
    with mvc.Repository.open(tree / "models") as repo:
        assert repo.commit(weights(1)).commit.dirty  # as far as is known
    assert not marker.exists()


def test_a_hook_of_the_index(tree: Path, marker: Path) -> None:
    hook = tree / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    for name in ("a", "b"):
        (tree / name).write_text(name)
    git(tree, "add", ".")
    git(tree, "commit", "-m", "more")
    marker.unlink(missing_ok=True)

    def touch(seconds: int) -> None:
        """The same contents, and another time than the index says."""
        for name in ("a", "b"):
            os.utime(tree / name, (seconds, seconds))

    touch(10**9)
    is_dangerous(tree, marker)
    touch(10**9 + 60)
    assert ask(tree).dirty and not marker.exists()


def test_settings_of_a_submodule(tree: Path, marker: Path) -> None:
    inner = tree / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "x.py").write_text("1\n")
    git(inner, "add", ".")
    git(inner, "commit", "-m", "inner")
    git(tree, "add", "inner")
    git(tree, "commit", "-m", "inner")
    git(inner, "config", "filter.evil.clean", f"touch {marker}; cat")
    (inner / ".gitattributes").write_text("*.py filter=evil\n")
    (inner / "x.py").write_text("2\n")
    is_dangerous(tree, marker)
    (inner / "x.py").write_text("3\n")
    assert ask(tree).dirty and not marker.exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({f"filter.f{i}.clean": "cat" for i in range(101)}, "too many filters"),
        ({"filter.f.clean": "x" * 70_000}, "too many filters"),
        ({"lfs.extension.e.clean": "cat"}, "commands for git-lfs"),
        ({"core.bare": "maybe"}, "it does not list its settings|it ended with status"),
    ],
)
def test_git_is_not_asked(tree: Path, settings: dict[str, str], problem: str) -> None:
    for key, value in settings.items():
        git(tree, "config", key, value)
    code = git_code(FileSystem(), tree, patch=True)
    assert code.dirty and not code.patch
    assert isinstance(code.problem, IoFailed) and re.search(problem, code.problem.message)


def test_a_git_that_takes_no_settings_from_variables_is_not_asked(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    real = shutil.which("git")
    program.write_text(f'#!/bin/sh\nunset GIT_CONFIG_COUNT\nexec {real} "$@"\n')
    program.chmod(0o755)
    git(tree, "config", "filter.f.clean", "cat")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    code = git_code(FileSystem(), tree, patch=True)
    assert code.dirty and "older than version 2.31" in str(code.problem)
