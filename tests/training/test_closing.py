"""Whatever an act of ``close`` raises, all others are done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import Busy
from mvc.training.staging import Queue


class _Failed(Exception):
    pass


def _raising() -> None:
    raise _Failed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mvc.Repository.init(tmp_path / "there", bare=True).close()
    with mvc.Repository.init(tmp_path / "models") as repo:
        repo.remotes.add("origin", tmp_path / "there")
    return tmp_path / "models"


def test_an_act_that_raises_keeps_nothing_open(folder: Path) -> None:
    done: list[str] = []
    recorder = mvc.Recorder(folder, nn.Linear(4, 2), deploy="prod", push="origin")
    recorder.on_close(lambda: done.append("first"))
    recorder.on_close(_raising)
    recorder.on_close(lambda: done.append("last"))
    recorder.step()
    with pytest.raises(_Failed):
        recorder.close()
    assert done == ["last", "first"]
    assert recorder.repo.closed
    report = recorder.close()
    assert (report.durable, report.push and report.push.left) == (1, 0)
    with mvc.Repository.open(folder) as repo:
        assert not repo.recorder("main")
        mvc.Recorder(repo, nn.Linear(4, 2)).close()  # another training may record there
    with mvc.Repository.open(folder.parent / "there") as there:
        assert len(there.log("main")) == 1


def test_a_queue_that_raises_keeps_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Queue.finish

    def late(self: Queue, thread: object) -> None:
        finish(self, thread)  # type: ignore[arg-type]
        raise Busy("step 2 is not stored")

    monkeypatch.setattr(Queue, "finish", late)
    recorder = mvc.Recorder(folder, nn.Linear(4, 2), push="origin")
    recorder.step()
    with pytest.raises(Busy):
        recorder.close()
    assert recorder.repo.closed
    with mvc.Repository.open(folder) as repo:
        assert not repo.recorder("main")
        assert repo.remotes.tracking("main", "origin").ahead == 0  # type: ignore[union-attr]


def test_a_repository_that_is_open_stays_open(folder: Path) -> None:
    with mvc.Repository.open(folder) as repo:
        recorder = mvc.Recorder(repo, nn.Linear(4, 2))
        recorder.on_close(_raising)
        with pytest.raises(_Failed):
            recorder.close()
        repo.commit({"w": torch.ones(2)})
