"""A training records on the branch it began on, wherever HEAD goes meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import Busy, InvalidName, RefConflict, UnknownRevision, WrongUsage
from mvc.repo.refs import Head

PROJECT = Path(__file__).parents[2]


def model() -> nn.Module:
    return nn.Linear(4, 2)


def messages(repo: mvc.Repository, rev: str) -> list[str]:
    return [entry.commit.message for entry in repo.log(rev)]


def test_looking_around_does_not_redirect_a_training(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo, mvc.Repository.open(tmp_path) as terminal:
        with mvc.Recorder(repo, model()) as recorder:
            for _ in range(3):
                recorder.step(wait=True)
            old = terminal.find("HEAD~2")
            terminal.checkout("HEAD~2", to=terminal.root)
            files = sorted(path.name for path in tmp_path.iterdir())
            recorder.step(wait=True)
            terminal.switch("aside", create=True)
            recorder.step(wait=True)
            assert recorder.branch == "main"
        assert repo.head() == Head("aside", old)
        assert messages(repo, "main") == [f"step {i}" for i in (5, 4, 3, 2, 1)]
        assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_a_branch_may_be_named(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({"w": torch.ones(2)}, message="first")
        repo.branch("training")
        with mvc.Recorder(repo, model(), branch="training") as recorder:
            recorder.step()
        assert messages(repo, "training") == ["step 1", "first"]
        assert messages(repo, "HEAD") == ["first"] and repo.head().branch == "main"
        network, optimizer = model(), None
        resumed = mvc.resume(repo, network, optimizer, rev="training")
        assert resumed.commit == repo.find("training")


def test_a_wrong_branch_is_refused_at_once(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(UnknownRevision, match="no branch trianing"):
            mvc.Recorder(repo, model(), branch="trianing")
        with pytest.raises(InvalidName):
            mvc.Recorder(repo, model(), branch="a..b")
        with pytest.raises(WrongUsage, match="branch"):
            mvc.Recorder(repo, model(), branch=3)  # type: ignore[arg-type]
        assert not repo.recorder("main")


def test_a_branch_without_versions_is_begun_though_head_has_left_it(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo, mvc.Repository.open(tmp_path) as terminal:
        with mvc.Recorder(repo, model()) as recorder:
            terminal.switch("aside", create=True)
            recorder.step()
        assert messages(repo, "main") == ["step 1"]
        assert repo.head() == Head("aside", None)


def test_from_a_detached_head_it_follows_head(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo, mvc.Repository.open(tmp_path) as terminal:
        repo.commit({"w": torch.ones(2)}, message="first")
        repo.checkout(repo.find("HEAD"), to=repo.root)
        with mvc.Recorder(repo, model()) as recorder:
            recorder.step(wait=True)
            assert recorder.branch is None and repo.head().branch is None
            assert repo.recorder(None) and not repo.recorder("main")
            terminal.switch("aside", create=True)
            recorder.step()
        assert messages(repo, "aside") == ["step 2", "step 1", "first"]
        assert messages(repo, "main") == ["first"]


def test_production_weights_go_by_the_branch_and_not_by_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = model()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, network, pipeline="vsol-0-fast") as recorder:
            recorder.step()
        repo.branch("other")
        repo.switch("other")
        with torch.no_grad():
            network.weight.mul_(1.0001)
        before = repo.checkout("main", path="model.safetensors")
        repo.commit({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, message="elsewhere")
        with mvc.Recorder(repo, network, pipeline="vsol-0-fast", branch="main") as recorder:
            recorder.step()
        after = repo.checkout("main", path="model.safetensors")
        assert torch.equal(after["weight"], before["weight"])  # the change lies below lsb:20
        assert repo.head().commit == repo.find("other")


def test_a_branch_with_a_training_on_it_stays(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit({"w": torch.ones(2)}, message="first")
        repo.commit({"w": torch.zeros(2)}, message="second")
        repo.branch("training")
        recorder = mvc.Recorder(repo, model(), branch="training")
        for change in (
            lambda: repo.delete_ref("branch", "training", force=True),
            lambda: repo.rename_branch("training", "other"),
            lambda: repo.branch("training", "HEAD~1", force=True),
            lambda: repo.undo(),
        ):
            with pytest.raises(RefConflict, match="a training is recording on training"):
                change()
        recorder.close()
        repo.undo()
        assert [ref.name for ref in repo.refs()] == ["main"]


_CHILD = """
import sys, torch, mvc
recorder = mvc.Recorder(sys.argv[1], torch.nn.Linear(4, 2))
recorder.step(wait=True)
print("recording", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_the_notice_ends_with_the_process(tmp_path: Path, end: int | None) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        child: Any = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path)],
            cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "recording\n"
        assert repo.recorder("main") and not repo.recorder("other")
        if end is not None:
            os.kill(child.pid, end)
        child.communicate(timeout=120)
        assert not repo.recorder("main")


def test_one_training_records_on_a_branch(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        child: Any = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path)],
            cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "recording\n"
        with pytest.raises(Busy, match=f"records on main already: process {child.pid} ") as error:
            mvc.Recorder(repo, model())
        assert "branch='NAME'" in str(error.value.hint)
        repo.branch("second")
        with mvc.Recorder(repo, model(), branch="second") as recorder:
            recorder.step()
            with pytest.raises(Busy, match="records on second already: this process"):
                mvc.Recorder(repo, model(), branch="second")
        child.communicate(timeout=120)
        with mvc.Recorder(repo, model()) as recorder:
            recorder.step()
        assert messages(repo, "main") == ["step 1", "step 1"]
        assert messages(repo, "second") == ["step 1", "step 1"]


def test_a_commit_onto_another_branch(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit({"w": torch.ones(2)})
        repo.branch("side")
        made = repo.commit({"w": torch.zeros(2)}, options=mvc.CommitOptions(branch="side"))
        assert made.branch == "side" and made.commit.parents == (first.id,)
        assert repo.head() == Head("main", first.id) and repo.find("side") == made.id
        with pytest.raises(UnknownRevision, match="no branch new"):
            repo.commit({"w": torch.zeros(2)}, options=mvc.CommitOptions(branch="new"))
        with pytest.raises(WrongUsage, match="current branch"):
            repo.commit(files=mvc.FileOptions(all=True), options=mvc.CommitOptions(branch="side"))
        options = mvc.CommitOptions(branch="new", new_branch=True)
        assert repo.commit({"w": torch.zeros(2)}, options=options).commit.parents == ()
