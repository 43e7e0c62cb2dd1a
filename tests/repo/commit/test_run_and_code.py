"""The run that made a version, and what its code differed by from the git commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import mvc
from mvc.errors import InvalidName, IoFailed, NotInstalled, UnknownPath, WrongUsage
from mvc.repo.commit.inputs import PatchMissing
from mvc.repo.worktree import git_code
from tests.histories import weights

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path):
    """Below a git work tree with one file, ``train.py``."""
    (tmp_path / "train.py").write_text("lr = 0.1\n")
    if shutil.which("git"):
        git(tmp_path, "init")
        git(tmp_path, "add", "train.py")
        git(tmp_path, "commit", "-m", "first")
    with mvc.Repository.init(tmp_path) as opened:
        yield opened


def test_a_run_is_kept_with_its_versions(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        plain = repo.commit(weights(1))
        assert plain.commit.run == ""
        options = mvc.CommitOptions(run="lr=0.1 #3")
        named = [repo.commit(weights(i), options=options).id for i in range(2, 6)]
        with pytest.raises(InvalidName, match="the run's name contains a control character"):
            repo.commit(weights(9), options=mvc.CommitOptions(run="a\nb"))
    with mvc.Repository.open(tmp_path) as repo:
        assert [entry.commit.run for entry in repo.log()] == ["lr=0.1 #3"] * 4 + [""]
        assert [entry.id for entry in repo.log()] == [*named[::-1], plain.id]
        repo.storage.gc(grace="0")
        assert repo.find("HEAD") == named[-1]
        assert repo.storage.fsck(full=True).sound


@needs_git
def test_code_that_differs_from_its_commit_is_marked(repo: mvc.Repository) -> None:
    clean = repo.commit(weights(1)).commit
    (repo.root / "untracked.py").write_text("x = 1\n")
    same = repo.commit(weights(2)).commit
    assert (clean.dirty, same.dirty, clean.code) == (False, False, same.code)
    (repo.root / "train.py").write_text("lr = 0.2\n")
    dirty = repo.commit(weights(3)).commit
    assert (dirty.dirty, dirty.code, dirty.attached) == (True, clean.code, ())
    git(repo.root, "add", "train.py")
    assert repo.commit(weights(4)).commit.dirty
    git(repo.root, "commit", "-m", "second")
    later = repo.commit(weights(5)).commit
    assert not later.dirty and later.code != clean.code
    with pytest.raises(UnknownPath, match=r"has no attachment code.patch"):
        repo.attachment("HEAD", "code.patch")


@needs_git
def test_a_patch_gives_the_code_back(repo: mvc.Repository, tmp_path: Path) -> None:
    text = "lr = 0.2\nname = 'é'\n"
    (repo.root / "train.py").write_text(text)
    done = repo.commit(weights(1), options=mvc.CommitOptions(patch=True))
    assert done.commit.attached == ("code.patch",)
    git(repo.root, "checkout", "train.py")
    (tmp_path / "p").write_bytes(repo.attachment("HEAD", "code.patch"))
    git(repo.root, "apply", str(tmp_path / "p"))
    assert (repo.root / "train.py").read_text() == text
    git(repo.root, "commit", "-am", "second")
    assert repo.commit(weights(2), options=mvc.CommitOptions(patch=True)).commit.attached == ()
    assert repo.attachment("HEAD~1", "code.patch")
    assert repo.storage.fsck(full=True).sound


@needs_git
def test_a_patch_that_is_too_long_is_refused(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_code, "MAX_ATTACHED_BYTES", 50)
    (repo.root / "train.py").write_text("lr = 0.2\n" * 30)
    with pytest.raises(WrongUsage, match="the patch of the code has more than 50 bytes"):
        repo.commit(weights(1), options=mvc.CommitOptions(patch=True))
    assert repo.commit(weights(1)).commit.dirty


@needs_git
def test_without_git_nothing_is_marked(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.root / "train.py").write_text("lr = 0.2\n")
    monkeypatch.setenv("PATH", "")
    made = repo.commit(weights(1)).commit
    assert (made.dirty, made.attached, len(made.code)) == (False, (), 40)
    with pytest.raises(NotInstalled, match="git is not installed"):
        repo.commit(weights(2), options=mvc.CommitOptions(patch=True))


@needs_git
def test_a_recorder_asks_git_once(repo: mvc.Repository) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mvc.Recorder(repo, model, optimizer) as recorder:
        recorder.step()
        recorder.flush()
        (repo.root / "train.py").write_text("lr = 0.2\n")  # not the code that runs
        recorder.step()
    assert [entry.commit.dirty for entry in repo.log()] == [False, False]


def test_the_setting_keeps_the_patch_and_fails_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Recorder's versions, too. What a commit asks for by itself counts more."""
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("lr = 0.1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "code")
    (tmp_path / "train.py").write_text("lr = 0.2\n")
    mvc.Repository.init(tmp_path / "models").close()
    (tmp_path / "models" / ".mvc" / "config.yaml").write_text("commit:\n  patch: true\n")
    with mvc.Repository.open(tmp_path / "models") as repo:
        assert b"+lr = 0.2" in repo.attachment(repo.commit(weights(1)).id, "code.patch")
        without = repo.commit(weights(2), options=mvc.CommitOptions(patch=False))
        assert without.commit.dirty and not without.commit.attached
        monkeypatch.setattr("mvc.repo.worktree.git_code.MAX_ATTACHED_BYTES", 3)
        with pytest.warns(PatchMissing, match=r"without its patch \(commit.patch\): .* 3 bytes"):
            large = repo.commit(weights(3)).commit
        assert large.dirty and not large.attached
        with pytest.raises(WrongUsage, match="patch of the code"):
            repo.commit(weights(4), options=mvc.CommitOptions(patch=True))


def test_a_slow_git_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "code")
    asked = tmp_path / "asked"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho >> {asked}\nsleep 0.5\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with mvc.Repository.init(tmp_path / "models") as repo:
        for number in range(5):
            assert repo.commit(weights(number)).commit.dirty
    assert len(asked.read_text()) == 1


def slow_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The git that is found is ``script``, and the real one elsewhere."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_code, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(git_code, "QUICK_SECONDS", 0.0)


@needs_git
@pytest.mark.parametrize("when", ["config", "--quiet"])
def test_a_git_that_does_not_answer_counts_as_a_difference(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A process that holds the pipe open is not waited for, either."""
    slow_git(tmp_path, monkeypatch, f'case "$*" in *{when}*) sleep 20 & sleep 20;; esac')
    began = time.monotonic()
    assert repo.commit(weights(1)).commit.dirty
    for _ in range(2):
        with pytest.raises(IoFailed, match=r"code's difference: it took longer than 0.5 s"):
            repo.commit(weights(2), options=mvc.CommitOptions(patch=True))
    assert time.monotonic() - began < 15


@needs_git
def test_a_patch_that_git_does_not_give_is_no_silence(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("lr = 0.2\n")
    (tmp_path / ".mvc" / "config.yaml").write_text("commit:\n  patch: true\n")
    slow_git(
        tmp_path, monkeypatch, f'case "$*" in *--binary*) [ -e {tmp_path}/ok ] || exit 3;; esac'
    )
    with mvc.Repository.open(tmp_path) as opened:
        with pytest.warns(PatchMissing, match=r"git did not return .*: it ended with status 3"):
            made = opened.commit(weights(1)).commit
        assert made.dirty and not made.attached
        asked = mvc.CommitOptions(patch=True)
        with pytest.raises(IoFailed, match="it ended with status 3"):
            opened.commit(weights(2), options=asked)
        (tmp_path / "ok").touch()  # asked again, whatever was remembered
        assert opened.commit(weights(2), options=asked).commit.attached == ("code.patch",)


@needs_git
def test_git_is_ended_at_the_limit(
    repo: mvc.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("lr = 0.2\n")
    slow_git(tmp_path, monkeypatch, 'case "$*" in *--binary*) exec yes;; esac')
    monkeypatch.setattr(git_code, "MAX_ATTACHED_BYTES", 1000)
    with pytest.raises(WrongUsage, match="the patch of the code has more than 1,000 bytes"):
        repo.commit(weights(1), options=mvc.CommitOptions(patch=True))
