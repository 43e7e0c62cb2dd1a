"""A Recorder that pushes: behind its commits, never in the way of a training."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from mvc.errors import RemoteUnreachable, UnknownRevision, WrongUsage
from mvc.repo.config import set_value
from mvc.training import pushing
from mvc.training.pushing import NotPushed, PushReport
from tests.remote.kit.serving import serving, token
from tests.waiting import until


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    """A repository with a remote ``origin``."""
    mvc.Repository.init(tmp_path / "there", bare=True).close()
    with mvc.Repository.init(tmp_path / "here") as made:
        made.remotes.add("origin", str(tmp_path / "there"))
        yield made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that failed is tried again soon."""
    monkeypatch.setattr(pushing, "FIRST_PAUSE", 0.01)


def small() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


def versions(folder: Path, rev: str = "main") -> list[str]:
    """The messages of a branch, oldest first."""
    with mvc.Repository.open(folder) as there:
        return [entry.commit.message for entry in there.log(rev)][::-1]


def away(repo: mvc.Repository) -> Path:
    """Moves the remote away, and returns where it is."""
    there = repo.root.parent / "there"
    return there.rename(repo.root.parent / "away")


def test_versions_are_pushed_behind_their_commits(repo: mvc.Repository) -> None:
    model = small()
    with mvc.Recorder(repo, model, deploy="prod", push="origin") as recorder:
        for _ in range(3):
            recorder.step()
        recorder.flush()
        until(lambda: recorder.report.push == PushReport("origin", 3, 0))
        assert versions(repo.root.parent / "there") == ["step 1", "step 2", "step 3"]
        recorder.step()
    assert recorder.report.push == PushReport("origin", 4, 0)
    with mvc.Repository.open(repo.root.parent / "there") as there:
        assert there.live("prod").commit == repo.find("main")
        assert torch.equal(there.checkout(target="prod")["weight"], model.weight)


def test_a_push_rests_after_another_one(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "REST", 1e6)
    with mvc.Recorder(repo, small(), push="origin") as recorder:
        recorder.step()
        until(lambda: recorder.report.push == PushReport("origin", 1, 0))
        recorder.step()
        recorder.flush()
        time.sleep(0.2)
        assert recorder.report.push == PushReport("origin", 1, 1)
    assert recorder.report.push == PushReport("origin", 2, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority")
def test_a_push_has_a_lower_priority_than_the_training(repo: mvc.Repository) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with mvc.Recorder(repo, small(), push="origin"):
        (pusher,) = (each for each in threading.enumerate() if each.name == "mvc-pusher")
        assert pusher.native_id is not None
        until(lambda: os.getpriority(os.PRIO_PROCESS, pusher.native_id) == min(own + 10, 19))
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_remote_that_is_away_stops_nothing_and_gets_later_what_it_missed(
    repo: mvc.Repository,
) -> None:
    elsewhere = away(repo)
    with pytest.warns(NotPushed) as told, mvc.Recorder(repo, small(), push="origin") as recorder:
        for _ in range(3):
            recorder.step()
        recorder.flush()
        until(lambda: recorder.report.push.failure is not None)
        until(lambda: told.list)
        report = recorder.report
        assert (report.durable, report.push.pushed, report.push.left) == (3, 0, 3)
        elsewhere.rename(repo.root.parent / "there")
        until(lambda: recorder.report.push == PushReport("origin", 3, 0))
        recorder.step()
    assert recorder.report.push == PushReport("origin", 4, 0)
    assert versions(repo.root.parent / "there") == [f"step {i}" for i in range(1, 5)]
    assert len(told) == 1  # one line, however often it was tried
    line = str(told[0].message)
    assert line.startswith("main cannot be pushed to origin now: ") and "continues" in line
    shown = warnings.formatwarning(line, NotPushed, told[0].filename, told[0].lineno)
    assert shown == f"mvc push:0: NotPushed: {line}\n", "no line of a program"


def test_closing_tries_once_more_and_says_what_is_left(repo: mvc.Repository) -> None:
    elsewhere = away(repo)
    said = r"2 versions of main not pushed to origin: .*'mvc push origin main'"
    with pytest.warns(NotPushed, match=said), mvc.Recorder(repo, small(), push="origin") as one:
        one.step()
        one.step()
    left = one.report.push
    assert left is not None
    assert (left.pushed, left.left) == (0, 2) and left.failure
    elsewhere.rename(repo.root.parent / "there")
    with mvc.Recorder(repo, small(), start=2, push="origin") as recorder:
        recorder.step()
    assert recorder.report.push == PushReport("origin", 1, 0)
    assert versions(repo.root.parent / "there") == ["step 1", "step 2", "step 3"]


def test_a_push_that_hangs_holds_up_neither_steps_nor_the_end(
    repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_value(repo.handle.store.fs, repo.root / ".mvc/config.yaml", "recorder.push_timeout", "0.2")
    hung, released = threading.Event(), threading.Event()

    def push(*_: Any, **__: Any) -> None:
        hung.set()
        released.wait(60)
        raise RemoteUnreachable("origin does not answer")

    monkeypatch.setattr(mvc.Repository, "push", push)
    with mvc.Repository.open(repo.root) as own:
        recorder = mvc.Recorder(own, small(), push="origin")
        recorder.step()
        assert hung.wait(60)
        for _ in range(5):
            recorder.step()
        recorder.flush()
        assert recorder.report.durable == 6
        begun = time.monotonic()
        with pytest.warns(NotPushed, match=r"6 versions .* no answer from origin for 0.2 s"):
            assert recorder.close().push == PushReport("origin", 0, 6)
        assert time.monotonic() - begun < 30
    released.set()


def test_a_branch_that_somebody_else_pushed_to(repo: mvc.Repository, tmp_path: Path) -> None:
    """Such a failure is one like any other: the training goes on, and the warning says why."""
    with mvc.clone(str(tmp_path / "there"), tmp_path / "other") as other:
        other.commit({"w": torch.ones(2)}, message="theirs")
        other.push()
    with pytest.warns(NotPushed) as told, mvc.Recorder(repo, small(), push="origin") as recorder:
        recorder.step()
        until(lambda: recorder.report.push.failure)
    assert recorder.report.push.left == 1
    assert "rejects main (fetch first)" in str(told[0].message)
    assert versions(tmp_path / "there") == ["theirs"]


def test_a_token_that_may_not_deploy(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch goes, its deployments stay, and one warning names the scope."""
    there = repo.root.parent / "there"
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(there, "read,push:heads/main"))
    with serving(there) as server:
        repo.remotes.add("origin", server.url, force=True)
        with (
            pytest.warns(NotPushed) as told,
            mvc.Recorder(repo, small(), deploy="prod", push="origin") as recorder,
        ):
            for number in range(1, 3):
                recorder.step()
                recorder.flush()
                until(lambda done=number: recorder.report.push == PushReport("origin", done, 0))
    (line,) = (str(each.message) for each in told)
    assert line.endswith("because its token lacks the scope: deploy:prod")
    assert versions(there) == ["step 1", "step 2"]
    with mvc.Repository.open(there) as opened:
        assert not opened.targets()


def test_a_remote_where_somebody_rolled_back(repo: mvc.Repository, tmp_path: Path) -> None:
    """The branch goes, the rollback stays, and one warning says so."""
    there = mvc.Repository.open(tmp_path / "there")
    with (
        there,
        pytest.warns(NotPushed) as told,
        mvc.Recorder(repo, small(), deploy="prod", push="origin") as recorder,
    ):
        for number in range(1, 5):
            recorder.step()
            recorder.flush()
            until(lambda done=number: recorder.report.push == PushReport("origin", done, 0))
            if number == 2:
                back = there.rollback("prod")
        assert there.live("prod").deployment.id == back.id
    (line,) = (str(each.message) for each in told)
    assert "refuses the training's deployments to prod" in line and back.commit.short in line
    assert versions(tmp_path / "there")[-1] == "step 4"


def test_warnings_as_errors_stop_no_training(repo: mvc.Repository) -> None:
    away(repo)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mvc.Recorder(repo, small(), push="origin") as recorder:
            recorder.step()
            until(lambda: recorder.report.push.failure)
            recorder.step()
    assert (recorder.report.durable, recorder.report.push.left) == (2, 2)


def test_arguments(repo: mvc.Repository) -> None:
    with pytest.raises(UnknownRevision, match="there is no remote elsewhere"):
        mvc.Recorder(repo, small(), push="elsewhere")
    with pytest.raises(WrongUsage, match="push is of type int"):
        mvc.Recorder(repo, small(), push=3)  # type: ignore[arg-type]
    first = repo.commit({"w": torch.ones(1)}).id
    repo.checkout(str(first), to=repo.root)
    if repo.head().branch is None:
        with pytest.raises(WrongUsage, match="HEAD is detached, so there is no branch to push"):
            mvc.Recorder(repo, small(), push="origin")
    assert not repo.recorder("main")
    with mvc.Recorder(repo, small()) as recorder:
        recorder.step()
    assert recorder.report.push is None


def test_watch_passes_it_on(repo: mvc.Repository) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = mvc.watch(repo, model, optimizer, push="origin")
    for _ in range(2):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    assert recorder.close().push == PushReport("origin", 2, 0)
