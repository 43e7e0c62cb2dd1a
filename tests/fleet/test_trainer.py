"""A training that deploys and pushes feeds the followers of its remote."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import torch

import mvc
from mvc.api.repository import Repository
from mvc.errors import MvcWarning
from mvc.ids import CommitId
from mvc.training import pushing
from mvc.training.pushing import NotPushed
from tests.fleet.following import following
from tests.remote.kit.serving import serving, token
from tests.waiting import until


class Node:
    """A file that follows the target ``prod``; ``served`` are the versions, and when they came."""

    def __init__(self, file: Path) -> None:
        self.served: list[tuple[CommitId, float]] = []
        self._file, self._stop = file, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def follow(self, url: str) -> None:
        self._url = url
        self._thread.start()

    def _run(self) -> None:
        def came(found: mvc.Followed) -> None:
            self.served.append((found.commit, time.monotonic()))

        with following(
            self._url, "prod", self._file, stop=self._stop, on_change=came
        ) as follower:  # fmt: skip
            follower.run()

    def __enter__(self) -> Self:
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture
def trainer(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/main,deploy:prod"))
    monkeypatch.setattr(pushing, "FIRST_PAUSE", 0.01)
    with Repository.init(tmp_path / "trainer") as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore", MvcWarning)  # of the follower
        yield opened


def test_the_newest_is_served_within_a_second(
    repo: Repository, folder: Path, trainer: Repository, tmp_path: Path
) -> None:
    model, waits = torch.nn.Linear(200, 200), []
    with serving(folder) as server, Node(tmp_path / "model.safetensors") as node:
        node.follow(f"{server.url}/models")
        trainer.remotes.add("origin", f"{server.url}/models")
        with mvc.Recorder(trainer, model, deploy="prod", push="origin") as recorder:
            for step in range(5):
                torch.nn.init.ones_(model.weight[step])
                recorder.step()
                recorder.flush()
                newest, committed = trainer.find("HEAD"), time.monotonic()
                until(lambda newest=newest: node.served and node.served[-1][0] == newest)
                waits.append(node.served[-1][1] - committed)
    assert sorted(waits)[2] < 1, waits  # a busy machine may delay one
    assert recorder.report.push.left == recorder.report.not_deployed == 0
    assert [each.commit for each in repo.deployments("prod")] == [c for c, _ in node.served]


def test_a_server_that_is_away_gets_all_of_them_and_nodes_the_newest(
    repo: Repository, folder: Path, trainer: Repository, tmp_path: Path
) -> None:
    model = torch.nn.Linear(3, 2)
    with serving(folder) as server, Node(tmp_path / "model.safetensors") as node:
        url = f"{server.url}/models"
        node.follow(url)
        trainer.remotes.add("origin", url)
        recorder = mvc.Recorder(trainer, model, deploy="prod", push="origin")
        recorder.step()
        until(lambda: len(node.served) == 1)
        server.end()
        with pytest.warns(NotPushed):
            for _ in range(4):
                torch.nn.init.normal_(model.weight)
                recorder.step()
            recorder.flush()
            until(lambda: recorder.report.push.failure)
        assert (recorder.report.durable, recorder.report.push.pushed) == (5, 1)
        with serving(folder, address=f"127.0.0.1:{server.port}"):
            until(lambda: recorder.report.push.pushed == 5)
            until(lambda: node.served[-1][0] == trainer.find("HEAD"))
            recorder.close()
            node.stop()
    assert [each.commit for each in repo.deployments("prod")] == [e.id for e in trainer.log()][::-1]
    assert len(node.served) == 2, "those in between were never the newest"
