"""A coordinator that is started again, and two trainings that want the same target."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import mvc
from mvc.api.repository import Repository
from mvc.distributed.runner.participant import Participant
from mvc.distributed.simulator import parse_event
from mvc.errors import BadMessage, CannotDistribute
from mvc.repo.statements.protection import NotDeployed
from tests.distributed.runner.small import Trainer, make
from tests.distributed.runner.team import Team, ordinary

pytestmark = pytest.mark.usefixtures("secret")


def some(count: int, batches: int = 4) -> list[Trainer]:
    return [Trainer(worker, count=batches) for worker in range(count)]


@pytest.mark.parametrize(
    ("gone", "why"), [({"2": "it failed"}, "it failed"), ({}, "not come back")]
)
def test_who_cannot_come_is_not_waited_for(tmp_path: Path, gone: dict[str, str], why: str) -> None:
    assert Team(tmp_path, protocol="sync").run(some(3), run="ours") == [None] * 3
    log = tmp_path / "log"
    again = Team(tmp_path, protocol="sync", timeout=20 if gone else 1, log=str(log))
    job = {"run": "ours", "again": True, "gone": gone, "workers": 3}
    assert again.run(some(2, 6), ranks=[0, 1], **job) == [None, None]
    assert why in again.finished["refused"]["2"]
    assert again.finished["rounds"] == 6
    assert again.of("resumed")[0]["round"] == 4
    with pytest.raises(BadMessage, match="the coordinator died or was removed in this run"):
        parse_event(json.loads(log.read_text().splitlines()[0]))


def test_one_worker_goes_on_alone_but_nobody_begins_alone(tmp_path: Path) -> None:
    assert Team(tmp_path, protocol="sync").run(some(2), run="ours") == [None] * 2
    again = Team(tmp_path, protocol="sync")
    job = {"run": "ours", "again": True, "workers": 2}
    assert again.run(some(2, 6)[1:], ranks=[1], gone={"0": "it failed"}, **job) == [None]
    assert again.finished["steps"] == [4, 6]
    nobody = Team(tmp_path, protocol="sync")
    nobody.run([], **job, gone={"0": "it failed", "1": None})
    assert isinstance(nobody.failure, CannotDistribute)
    assert nobody.failure.message == "no worker is left: it failed"


def test_a_second_training_at_a_target_is_refused(tmp_path: Path) -> None:
    first, second, other = (Team(tmp_path, protocol="sync") for _ in range(3))
    other.settings |= {"target": "site", "branch": "site"}

    def loop(worker: Participant, trainer: Trainer) -> None:
        if worker.rank == 0:
            second.run(some(2, 2))
            assert other.run(some(2, 2)) == [None, None]
        ordinary(worker, trainer)

    assert first.run(some(2), loop, run="first") == [None, None]
    assert isinstance(second.failure, CannotDistribute)
    assert second.failure.message == "another training deploys to global in this repository"
    assert second.failure.hint == "wait until it has ended, or name another --target"
    with Repository.open(tmp_path) as repo:
        runs = {repo.version(each.commit).params["run"] for each in repo.deployments("global")}
        assert runs == {"first"}
    assert Team(tmp_path, protocol="sync").run(some(2, 2)) == [None, None]


def test_a_coordinator_killed_before_it_began_starts_at_its_own_round_0(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    team = Team(tmp_path, protocol="sync", timeout=20)
    tell = team.tell

    def until_it_begins(event: str, **fields: object) -> None:
        if event == "begins":
            raise Killed
        tell(event, **fields)

    team.tell = until_it_begins  # type: ignore[method-assign]
    team.run(some(2), run="ours")
    assert isinstance(team.failure, Killed)
    again = Team(tmp_path, protocol="sync")
    assert again.run(some(2), run="ours", again=False) == [None, None]
    none = Team(tmp_path / "none", protocol="sync")
    assert none.run(some(2), run="ours", again=False) == [None, None]
    for folder in (tmp_path, tmp_path / "none"):
        with Repository.open(folder) as repo:
            versions = [repo.version(each.commit) for each in repo.deployments("global")]
            assert [version.metrics["round"] for version in versions] == [0, 1, 2, 3, 4]
            assert all(a.id == b.parents[0] for a, b in pairwise(versions))


def test_a_training_yields_to_who_deploys_beside_it(tmp_path: Path) -> None:
    team, made = Team(tmp_path, protocol="sync"), []

    def loop(worker: Participant, trainer: Trainer) -> None:
        if worker.rank == 0:
            with Repository.open(tmp_path) as repo:
                options = mvc.CommitOptions(branch="by-hand", new_branch=True)
                made.append(repo.commit(make().state_dict(), deploy="global", options=options).id)
        ordinary(worker, trainer)

    with pytest.warns(NotDeployed, match="stops deploying to global"):
        assert team.run(some(2), loop) == [None, None]
    assert team.of("finished")[0]["not_deployed"] == 4
    with Repository.open(tmp_path) as repo:
        assert repo.live("global").commit == made[0]
        assert [version.metrics["round"] for version in repo.log()] == [4, 3, 2, 1, 0]


def test_retracted_rounds_are_left_out(tmp_path: Path) -> None:
    assert Team(tmp_path, protocol="sync").run(some(2), run="ours") == [None, None]
    with Repository.open(tmp_path) as repo:
        repo.retract(None, "global")
        repo.commit(make().state_dict(), message="by hand", deploy="global")
    again = Team(tmp_path, protocol="sync")
    assert again.run(some(2), run="ours", again=True) == [None, None]
    assert again.of("resumed")[0]["round"] == 3
    with Repository.open(tmp_path) as repo:
        assert repo.live("global").message == "by hand"  # the training yields to somebody else
        assert again.of("finished")[0]["not_deployed"] == 1
        assert repo.version("HEAD").metrics["round"] == 4
    once_more = Team(tmp_path, protocol="sync")  # what was not deployed is a round as well
    assert once_more.run(some(2), run="ours", again=True) == [None, None]
    assert once_more.of("resumed")[0]["round"] == 4
    assert Team(tmp_path / "b", protocol="sync").run(some(2), run="ours") == [None, None]
    with Repository.open(tmp_path / "b") as repo:
        while any(not each.retracted for each in repo.deployments("global")):
            repo.retract(None, "global")
    lost = Team(tmp_path / "b", protocol="sync")
    lost.run(some(2), run="ours", again=True)
    assert isinstance(lost.failure, CannotDistribute)
    assert lost.failure.message == "no round of this training is left on global"
