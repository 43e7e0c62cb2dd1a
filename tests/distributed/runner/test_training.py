"""Trainings over real links in the threads of this process."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mvc.api.clone import clone
from mvc.api.repository import Repository
from mvc.distributed import messages as m
from mvc.distributed.runner.participant import Participant
from mvc.errors import CannotDistribute, NotARepository
from mvc.ids import CommitId
from tests.distributed.runner import small
from tests.distributed.runner.small import Trainer
from tests.distributed.runner.team import Team, global_models, ordinary, replayed
from tests.fleet.following import follow
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("secret")


def team_of(count: int, batches: int = 30) -> list[Trainer]:
    return [Trainer(worker, count=batches) for worker in range(count)]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit, but for the counters of batches, which are not averaged."""
    return a.keys() == b.keys() and all(
        torch.equal(a[name].view(torch.int32), b[name].view(torch.int32))
        for name in a
        if a[name].dtype == torch.float32
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"rho": 0.2, "rate": 0.05},
        {"rho": 0.2, "rate": 0.05, "up": "int8", "down": "int8"},
        {"protocol": "fgm-rebalancing", "rho": 0.2, "rate": 0.05},
        {"protocol": "gm", "radius": 0.3},
        {"period": 5},
        {"protocol": "sync"},
        {"protocol": "local-sgd", "every": 7},
        {"protocol": "fda", "radius": 0.4},
        {"protocol": "diloco", "every": 5},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_replay_of_the_log_gives_the_same_models_and_bytes(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    log = tmp_path / "log"
    team = Team(tmp_path / "repo", log=str(log), **settings)
    count = 6 if settings.get("protocol") == "sync" else 30
    assert team.run(team_of(3, count)) == [None] * 3
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    coordinator, models = replayed(lines, team_of(3, count), **settings)
    kept = global_models(tmp_path / "repo")
    assert len(models) == len(kept) == team.finished["rounds"] + 1 > 1
    assert all(same(a, b) for a, b in zip(models, kept, strict=True))
    counts, done = coordinator.counts, team.finished
    assert (counts.up, counts.down) == (done["bytes_up"], done["bytes_down"])
    assert (counts.messages_up, counts.messages_down) == (
        done["messages_up"],
        done["messages_down"],
    )


def test_every_round_is_a_version_with_its_figures(tmp_path: Path) -> None:
    team = Team(tmp_path, rho=0.2, rate=0.05)
    trainers = team_of(2)
    assert team.run(trainers) == [None, None]
    rounds, done = team.of("round"), m.Done(0, 0, 0, 0).size
    with Repository.open(tmp_path) as repo:
        deployed = repo.deployments("global")
        assert [each.commit.hex() for each in deployed] == [each["commit"] for each in rounds]
        for number, (each, event) in enumerate(zip(deployed, rounds, strict=True)):
            version = repo.version(each.commit)
            assert version.message == f"round {number}"
            assert version.params["protocol"] == "fgm"
            assert version.metrics == {
                name: event[name] for name in ("round", "subrounds", "bytes_up", "bytes_down")
            }
        live = repo.checkout(target="global")
    after = team.finished["bytes_up"] - rounds[-1]["bytes_up"]
    assert after in (0, done, 2 * done)  # who had not yet said that it is done when it was made
    assert small.accuracy(live) > 0.9
    for trainer in trainers:  # the script holds the last global model, integers included
        state = trainer.model.state_dict()
        assert same(state, live)
        assert all(torch.equal(state[name], live[name]) for name in live)


def test_workers_models_are_deployed_if_asked_for(tmp_path: Path) -> None:
    team = Team(tmp_path, protocol="local-sgd", every=10, worker_models=True, branch="main")
    assert team.run(team_of(2)) == [None, None]
    models = [global_models(tmp_path, f"worker-{worker}") for worker in range(2)]
    kept = global_models(tmp_path)
    assert [len(each) for each in models] == [team.finished["rounds"]] * 2
    for first, second, average in zip(*models, kept[1:], strict=True):
        mean = (first["0.weight"].double() + second["0.weight"]) / 2
        assert not torch.equal(first["0.weight"], second["0.weight"])
        assert torch.allclose(mean.float(), average["0.weight"], atol=1e-6)
    with Repository.open(tmp_path) as repo:
        assert {ref.name for ref in repo.branches()} == {"main", "worker-0", "worker-1"}


def test_global_models_are_pushed_behind_the_rounds(tmp_path: Path) -> None:
    for branch in (None, "site"):
        folder, there = tmp_path / f"{branch}", tmp_path / f"{branch}-there"
        Repository.init(there, bare=True).close()
        with Repository.init(folder) as repo:
            repo.remotes.add("origin", str(there))
        settings = {} if branch is None else {"branch": branch}
        team = Team(folder, protocol="local-sgd", every=10, push="origin", **settings)
        assert team.run(team_of(2)) == [None, None]
        with Repository.open(folder) as repo, Repository.open(there) as remote:
            assert remote.find(branch or "main") == repo.live("global").commit
            assert len(remote.deployments("global")) == team.finished["rounds"] + 1


def pushing_team(folder: Path, **settings: Any) -> Team:
    """A team whose repository has a remote ``origin`` in the folder ``there`` beside it."""
    Repository.init(folder.parent / "there", bare=True).close()
    with Repository.init(folder) as repo:
        repo.remotes.add("origin", str(folder.parent / "there"))
    return Team(folder, protocol="local-sgd", every=5, push="origin", **settings)


def there_and_here(folder: Path) -> tuple[list[CommitId], list[CommitId]]:
    """What was deployed to ``global``, at the remote and here."""
    with Repository.open(folder) as repo, Repository.open(folder.parent / "there") as remote:
        both = remote.deployments("global"), repo.deployments("global")
        return tuple([each.commit for each in deployed] for deployed in both)


def test_a_remote_that_comes_back_gets_every_global_model(tmp_path: Path) -> None:
    team = pushing_team(tmp_path / "here")
    away = (tmp_path / "there").rename(tmp_path / "away")

    def halfway(worker: Participant, trainer: Trainer) -> None:
        for number, batch in enumerate(worker.batches(trainer.stream)):
            if (worker.rank, number) == (0, 15):
                until(lambda: team.of("not pushed"))
                away.rename(tmp_path / "there")
            trainer.step(batch)

    assert team.run(team_of(2), halfway) == [None, None]
    there, here = there_and_here(team.folder)
    assert there == here
    assert len(here) == team.finished["rounds"] + 1 == 7
    (warned,) = team.of("not pushed")
    assert warned["reason"].startswith("main cannot be pushed to origin now: there is no folder")
    (pushed,) = team.of("pushed")
    assert pushed == {"event": "pushed", "remote": "origin", "pushed": 7, "left": 0,
                      "failure": None}  # fmt: skip


def test_a_follower_of_the_remote_runs_the_global_models(tmp_path: Path) -> None:
    """Its file needs no name of a path, though a version has two."""
    team = pushing_team(tmp_path / "here")
    file, stop = tmp_path / "live.safetensors", threading.Event()
    seen: list[CommitId] = []

    def run() -> None:
        with warnings.catch_warnings(action="ignore"):  # nothing is live in the beginning
            follow(
                *(tmp_path / "there", "global"),
                to=file,
                on_change=lambda done: seen.append(done.commit),
                stop=stop,
                interval=0.05,
            )

    node = threading.Thread(target=run)
    node.start()
    try:
        assert team.run(team_of(2)) == [None, None]
        last = there_and_here(team.folder)[1][-1]
        until(lambda: last in seen)
    finally:
        stop.set()
        node.join(60)
    assert same(load_file(file), global_models(team.folder)[-1])


def test_what_is_left_is_said_and_pushed_when_the_training_goes_on(tmp_path: Path) -> None:
    team = pushing_team(tmp_path / "here")
    away = (tmp_path / "there").rename(tmp_path / "away")
    assert team.run(team_of(2, 10)) == [None, None]
    first, last = (event["reason"] for event in team.of("not pushed"))
    assert "the training goes on, and what is missing there is pushed later" in first
    assert last.startswith("3 versions of main not pushed to origin: there is no folder")
    assert last.endswith("'mvc push origin main' sends what is missing there")
    assert team.of("pushed")[0]["left"] == 3
    away.rename(tmp_path / "there")
    assert team.run(team_of(2, 10), resume=True) == [None, None]  # nothing is left to train
    there, here = there_and_here(team.folder)
    assert there == here and len(here) == 3
    assert team.of("pushed")[1]["pushed"] == 3


def test_a_branch_that_has_gone_another_way_there_stops_no_training(tmp_path: Path) -> None:
    team = pushing_team(tmp_path / "here")
    with clone(tmp_path / "there", tmp_path / "other") as other:
        other.commit({"w": torch.ones(2)}, message="theirs")
        other.push()
    assert team.run(team_of(2)) == [None, None]
    said = [event["reason"] for event in team.of("not pushed")]
    assert all("origin rejects main (fetch first)" in reason for reason in said)
    assert len(said) == 2
    assert team.of("pushed")[0]["left"] == team.finished["rounds"] + 1 == 7


def test_a_training_that_fails_has_pushed_its_rounds(tmp_path: Path) -> None:
    team = pushing_team(tmp_path / "here")

    def failing(worker: Participant, trainer: Trainer) -> None:
        for number, batch in enumerate(worker.batches(trainer.stream)):
            if number == 12:
                raise ValueError("no more")
            trainer.step(batch)

    assert all(isinstance(each, Exception) for each in team.run(team_of(2), failing))
    assert isinstance(team.failure, CannotDistribute)
    there, here = there_and_here(team.folder)
    assert there == here and len(here) >= 3


def test_training_goes_on_from_what_is_live(tmp_path: Path) -> None:
    settings = {"protocol": "diloco", "every": 5, "up": "int8", "down": "int8"}
    whole, parts = Team(tmp_path / "whole", **settings), Team(tmp_path / "parts", **settings)
    assert whole.run(team_of(2, 20)) == [None, None]

    def first_half(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream[:10]):
            trainer.step(batch)

    assert parts.run(team_of(2, 20), first_half) == [None, None]
    seen = []

    def rest(worker: Participant, trainer: Trainer) -> None:
        seen.append(worker.steps)
        ordinary(worker, trainer)

    assert parts.run(team_of(2, 20), rest, resume=True) == [None, None]
    assert seen == [10, 10]  # what has been trained on is left out
    assert parts.of("resumed")[0]["round"] == 2
    numbers = [event["round"] for event in parts.of("round")]
    assert numbers == [0, 1, 2, 3, 4]
    assert parts.of("finished")[1]["steps"] == [20, 20]
    up = [event["bytes_up"] for event in parts.of("round")]
    assert up == sorted(up)
    end = parts.of("finished")[1]
    assert (end["rounds"], end["resumed"]) == (4, True)
    assert up[-1] <= end["bytes_up"] < up[-1] + 100  # what was said after the last round


def test_training_goes_on_with_the_threshold_that_was_found(tmp_path: Path) -> None:
    team = Team(tmp_path, period=8)

    def half(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream[:20]):
            trainer.step(batch)

    assert team.run(team_of(2), half) == [None, None]
    assert team.of("begins")[0]["threshold"] == "r is found in the first 8 updates"
    (found,) = team.of("found")
    assert team.run(team_of(2), resume=True) == [None, None]
    radius = found["threshold"].split(",")[0]
    assert radius.startswith("r = ")
    assert team.of("begins")[1]["threshold"].split(",")[0] == radius
    assert len(team.of("found")) == 1


@pytest.mark.parametrize("count", [2, 4])
def test_training_goes_on_with_another_number_of_workers(tmp_path: Path, count: int) -> None:
    team = Team(tmp_path, protocol="local-sgd", every=5)
    assert team.run(team_of(3, 10)) == [None] * 3
    seen = {}

    def rest(worker: Participant, trainer: Trainer) -> None:
        seen[worker.rank] = worker.steps
        ordinary(worker, trainer)

    assert team.run(team_of(count, 20), rest, resume=True) == [None] * count
    assert seen == {rank: 10 if rank < 3 else 0 for rank in range(count)}
    assert team.of("finished")[1]["steps"] == [20] * count


def test_settings_of_the_script_are_taken_unless_the_command_has_them(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    team = Team(tmp_path, protocol="local-sgd")
    del team.settings["repo"]
    assert isinstance(team.run(team_of(2))[0], Exception)
    assert isinstance(team.failure, NotARepository)
