"""A training yields to everybody else who deploys: it goes on committing, and stops deploying."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import TargetProtected, WrongUsage
from mvc.repo.statements.protection import NotDeployed
from mvc.testing import FixedClock

PROJECT = Path(__file__).parents[2]

_CHILD = """
import json, sys, torch, mvc
with mvc.Recorder(sys.argv[1], torch.nn.Linear(4, 2), deploy="prod") as recorder:
    for line in sys.stdin:
        if line.strip() == "step":
            recorder.step()
            recorder.flush()
        else:
            recorder.deploy_again()
        report = recorder.report
        print(json.dumps([report.durable, report.not_deployed, str(report.newest.id)]), flush=True)
"""


class Child:
    """A training in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder)], cwd=PROJECT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, words: str) -> list[Any]:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        answer: list[Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> str:
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return str(errors)


def command(folder: Path, *arguments: str) -> str:
    """Runs a command in a process of its own; returns what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "mvc", "-C", str(folder), *arguments],
        cwd=PROJECT, capture_output=True, text=True, check=True,
        env={**os.environ, "MVC_AUTHOR": "ada"},
    )  # fmt: skip
    return done.stderr


def test_a_rollback_beside_a_running_recorder_stays(tmp_path: Path) -> None:
    mvc.Repository.init(tmp_path).close()
    child = Child(tmp_path)
    made = [child.ask("step")[2] for _ in range(3)]
    said = command(tmp_path, "rollback", "prod")
    assert f"a training deploys to prod: process {child.process.pid} " in said
    assert [child.ask("step")[:2] for _ in range(3)] == [[4, 1], [5, 2], [6, 3]]
    with mvc.Repository.open(tmp_path) as repo:
        assert str(repo.live("prod").commit) == made[1]
        assert len(repo.log()) == 6
        child.ask("again")
        durable, left_out, newest = child.ask("step")
        assert (durable, left_out) == (7, 3)
        assert str(repo.live("prod").commit) == newest
        errors = child.end()
        assert errors.count("stops deploying to prod: ada rolled back to") == 1
        repo.rollback("prod")
        assert len(repo.deployments("prod")) == 6
        again = Child(tmp_path)  # a restart goes on
        _, left_out, newest = again.ask("step")
        assert (left_out, str(repo.live("prod").commit)) == (0, newest)
        assert again.end() == ""


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path) as repo:
        yield repo


def steps(recorder: mvc.Recorder, count: int = 2) -> int:
    """How many of so many further steps are deployed."""
    before = recorder.report.not_deployed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotDeployed)
        for _ in range(count):
            recorder.step()
            recorder.flush()
    return count - (recorder.report.not_deployed - before)


def test_others_who_change_what_is_live_stop_it(repo: mvc.Repository) -> None:
    other = repo.commit({"w": torch.ones(2)}, deploy="prod").id
    with mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod", branch="main") as recorder:
        assert steps(recorder) == 2
        repo.deploy(other, "prod")
        assert steps(recorder) == 0
        recorder.deploy_again()
        assert steps(recorder) == 2
        repo.retract(None, "prod")
        assert steps(recorder) == 0
        recorder.deploy_again()
        assert steps(recorder) == 2
        assert recorder.report.not_deployed == 4
        assert recorder.report.durable == 10


def test_others_who_do_not_change_what_is_live_do_not(repo: mvc.Repository) -> None:
    other = repo.commit({"w": torch.ones(2)}, deploy="prod").id
    with mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod") as recorder:
        assert steps(recorder) == 2
        repo.deploy(other, "staging")
        assert steps(recorder) == 2
        repo.deploy(other, "prod", at="2020-01-01")
        assert steps(recorder) == 2
        repo.retract(other, "prod", at="2020-01-01")
        repo.commit({"w": torch.zeros(2)})
        assert steps(recorder) == 2


def test_a_deployment_that_becomes_due_stops_it(repo: mvc.Repository) -> None:
    import time
    from datetime import datetime, timedelta

    other = repo.commit({"w": torch.ones(2)}).id
    with mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod") as recorder:
        assert steps(recorder) == 2
        due = datetime.now(UTC) + timedelta(seconds=2)
        repo.deploy(other, "prod", at=due)
        assert steps(recorder, 1) == 1
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()) + 0.1)
        assert steps(recorder) == 0
    assert repo.live("prod").commit == other


def test_a_clock_that_is_set_back_does_not_stop_it(tmp_path: Path) -> None:
    clock = FixedClock(step_ns=1_000_000)
    repo = mvc.Repository.init(tmp_path, clock=clock)
    with repo, mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod") as recorder:
        assert steps(recorder) == 2
        clock.advance(-3600 * 10**9)
        assert steps(recorder) == 2
        repo.rollback("prod")
        assert steps(recorder) == 0


def test_protection_is_looked_at_before_each_deployment(repo: mvc.Repository) -> None:
    file = repo.root / ".mvc/config.yaml"
    with mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod") as recorder:
        assert steps(recorder) == 2
        command(repo.root, "config", "deploy.protect", "prod")
        with pytest.warns(NotDeployed, match=r"prod: the target is protected \(deploy\.protect\)"):
            recorder.step()
            recorder.flush()
        assert steps(recorder) == 0
        with pytest.raises(TargetProtected):
            recorder.deploy_again()
        file.write_text("")
        assert steps(recorder) == 0
        recorder.deploy_again()
        assert steps(recorder) == 2
        assert recorder.report.durable == 9


def test_the_warning_as_an_error_does_not_end_a_commit(repo: mvc.Repository) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mvc.Recorder(repo, nn.Linear(4, 2), deploy="prod") as recorder:
            recorder.step()
            recorder.flush()
            repo.deploy(repo.commit({"w": torch.ones(2)}).id, "prod")
            recorder.step()
        assert (recorder.report.durable, recorder.report.not_deployed) == (2, 1)


def test_a_recorder_without_a_target_has_nothing_to_deploy_again(repo: mvc.Repository) -> None:
    with mvc.Recorder(repo, nn.Linear(4, 2)) as recorder:
        with pytest.raises(WrongUsage, match="no target"):
            recorder.deploy_again()
        recorder.step()
    assert recorder.report.not_deployed == 0
