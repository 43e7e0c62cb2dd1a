"""Trainings in several processes: the simulator's models, versions, restarts, pushes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import mvc.distributed
from mvc.api import Repository
from mvc.distributed.protocols.base import Coordinator
from mvc.distributed.runner.layout import ModelLayout
from mvc.distributed.runner.ranks import Ranks
from mvc.distributed.settings import protocol_of
from mvc.distributed.simulator import Simulation
from tests.distributed.own import Squares
from tests.distributed.runner import small
from tests.distributed.runner.processes import Outcome, global_models, in_processes, ordinary, train
from tests.distributed.runner.small import Trainer

PROTOCOLS = [
    {"rho": 0.2, "rate": 0.05},
    {"rho": 0.2, "rate": 0.05, "up": "int8", "down": "int8"},
    {"protocol": "fgm-rebalancing", "rho": 0.2, "rate": 0.05},
    {"protocol": "gm", "radius": 0.3},
    {"protocol": "gm-hedge", "radius": 0.3, "up": "lc:x=3", "down": "lc:x=3"},
    {"period": 5},
    {"protocol": "sync"},
    {"protocol": "local-sgd", "every": 7},
    {"protocol": "fda", "radius": 0.4},
    {"protocol": "diloco", "every": 5},
]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit, but for the counters of batches, which are not averaged."""
    return a.keys() == b.keys() and all(
        torch.equal(a[name].view(torch.int32), b[name].view(torch.int32))
        for name in a
        if a[name].dtype == torch.float32
    )


def succeeded(outcomes: list[Outcome]) -> list[Any]:
    assert [each.error for each in outcomes] == [None] * len(outcomes)
    return [each.value for each in outcomes]


def simulated(count: int, batches: int, **settings: Any) -> tuple[Coordinator, list[Any]]:
    """The same training in the simulator: its coordinator, and the global models in order."""
    trainers = [Trainer(worker, count=batches) for worker in range(count)]
    layout = ModelLayout.of(trainers[0].model)
    first, carried = layout.read(trainers[0].model), layout.carried_of(trainers[0].model)
    streams, models = [iter(trainer.stream) for trainer in trainers], [first]

    def learn(rows: np.ndarray[Any, Any], active: Any) -> list[int]:
        ended = []
        for number in active:
            batch = next(streams[number], None)
            if batch is None:
                ended.append(number)
                continue
            layout.write(trainers[number].model, rows[number])
            trainers[number].step(batch)
            rows[number] = layout.read(trainers[number].model)
        return ended

    simulation = Simulation(
        protocol_of(settings), first, count, layout=layout.flat,
        on_round=lambda hub: models.append(hub.reference.copy()),
    )  # fmt: skip
    return simulation.run(learn), [layout.state(vector, carried) for vector in models]


def at_every_step(rank: int, count: int, **settings: Any) -> Any:
    """All workers meet after each step, as in the simulator; so the order is fixed."""
    asked = [0]

    def alternately(_: Ranks) -> bool:
        asked[0] += 1
        return asked[0] % 2 == 1

    Ranks.called = alternately  # type: ignore[method-assign]
    return ordinary(rank, count, **settings)


@pytest.mark.parametrize("settings", PROTOCOLS, ids=lambda s: "-".join(map(str, s.values())))
def test_the_simulator_makes_the_same_models_and_bytes(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    free = settings.get("protocol") in {"sync", "local-sgd", "fda", "diloco"}
    batches = 6 if settings.get("protocol") == "sync" else 30
    work = ordinary if free else at_every_step
    succeeded(train(tmp_path, 3, batches, work, **settings))
    coordinator, models = simulated(3, batches, **settings)
    kept = global_models(tmp_path)
    assert len(models) == len(kept) == coordinator.counts.rounds + 1 > 1
    assert all(same(a, b) for a, b in zip(models, kept, strict=True))
    with Repository.open(tmp_path) as repo:
        last = repo.version("HEAD").metrics
    # After the last commit: Done up, Stop down.
    assert 0 <= coordinator.counts.up - last["bytes_up"] <= 90
    assert 0 <= coordinator.counts.down - last["bytes_down"] <= 90 + 4096


@pytest.mark.parametrize("up", ["none", "topk:0.05"])
def test_what_rises_within_an_exchange_is_counted(tmp_path: Path, up: str) -> None:
    """What a codec has lost is part of the next round's first value. One worker has one order."""
    settings = {"protocol": "fgm", "rho": 0.2, "rate": 0.05, "up": up}
    succeeded(train(tmp_path, 1, 60, **settings))
    coordinator, models = simulated(1, 60, **settings)
    kept = global_models(tmp_path)
    assert len(models) == len(kept) == coordinator.counts.rounds + 1 > 3
    assert all(same(a, b) for a, b in zip(models, kept, strict=True))


def with_own_function(rank: int, count: int) -> Any:
    functions = [Squares() for _ in range(rank + 1)]  # at another address in each process
    return at_every_step(rank, count, safe=functions[-1])


def test_an_own_safe_function_makes_the_models_of_the_named_one(tmp_path: Path) -> None:
    succeeded(train(tmp_path, 2, 12, with_own_function, protocol="fgm", radius=0.0625))
    coordinator, models = simulated(2, 12, protocol="fgm", safe="variance", radius=0.25)
    kept = global_models(tmp_path)
    assert len(models) == len(kept) == coordinator.counts.rounds + 1 > 2
    assert all(same(a, b) for a, b in zip(models, kept, strict=True))


def test_every_round_is_a_version_with_its_figures(tmp_path: Path) -> None:
    ends = succeeded(train(tmp_path, 2, rho=0.2, rate=0.05))
    with Repository.open(tmp_path) as repo:
        versions = [repo.version(each.commit) for each in repo.deployments("global")]
        assert [version.metrics["round"] for version in versions] == list(range(len(versions)))
        assert [version.message for version in versions[:2]] == ["round 0", "round 1"]
        assert len({version.params["run"] for version in versions}) == 1
        assert {version.params["protocol"] for version in versions} == {"fgm"}
        sent = [version.metrics["bytes_up"] for version in versions]
        assert sent == sorted(sent)
        live = repo.checkout(target="global")
    assert small.accuracy(live) > 0.9
    for steps, state in ends:  # the script holds the last global model, integers included
        assert steps == 30
        assert all(torch.equal(state[name], live[name]) for name in live)


def test_workers_models_are_deployed_if_asked_for(tmp_path: Path) -> None:
    succeeded(train(tmp_path, 2, protocol="local-sgd", every=10, worker_models=True, branch="main"))
    models = [global_models(tmp_path, f"worker-{worker}") for worker in range(2)]
    kept = global_models(tmp_path)
    assert [len(each) for each in models] == [3, 3]
    for first, second, average in zip(*models, kept[1:], strict=True):
        mean = (first["0.weight"].double() + second["0.weight"]) / 2
        assert not torch.equal(first["0.weight"], second["0.weight"])
        assert torch.allclose(mean.float(), average["0.weight"], atol=1e-6)
    with Repository.open(tmp_path) as repo:
        assert {ref.name for ref in repo.refs()} == {"main", "worker-0", "worker-1"}


def test_a_coordinator_of_its_own_trains_nothing_and_changes_nothing(tmp_path: Path) -> None:
    succeeded(train(tmp_path / "a", 2, protocol="local-sgd", every=10))
    ends = succeeded(
        train(tmp_path / "b", 3, work=as_worker, protocol="local-sgd", every=10, coordinator="own")
    )
    assert [steps for steps, _ in ends] == [0, 30, 30]
    both = zip(global_models(tmp_path / "a"), global_models(tmp_path / "b"), strict=True)
    assert all(same(a, b) for a, b in both)


def as_worker(rank: int, count: int) -> Any:
    """The data of worker 0 are rank 1's."""
    return ordinary(max(0, rank - 1), count)


@pytest.mark.parametrize("coordinator", ["rank0", "own"])
def test_rank_0_warms_up_before_the_first_round(tmp_path: Path, coordinator: str) -> None:
    settings = {"protocol": "local-sgd", "every": 5, "warmup": 8, "coordinator": coordinator}
    ends = succeeded(train(tmp_path, 3, 20, **settings))
    warmed = Trainer(0, count=20)
    for batch in warmed.stream[:8]:
        warmed.step(batch)
    first = global_models(tmp_path)[0]
    assert same(first, warmed.model.state_dict())
    assert [steps for steps, _ in ends] == [20 if coordinator == "rank0" else 0, 20, 20]


def some_of_it(rank: int, count: int, until: int) -> Any:
    trainer = Trainer(rank, count=count)
    with mvc.distributed.join(trainer.model, trainer.optimizer) as worker:
        before = worker.steps
        for batch in worker.batches(trainer.stream[:until]):
            trainer.step(batch)
    return before, worker.steps


def part(folder: Path, count: int, until: int, **settings: Any) -> list[Any]:
    return succeeded(train(folder, count, 20, partial(some_of_it, until=until), **settings))


def test_training_goes_on_from_what_is_live(tmp_path: Path) -> None:
    settings = {"protocol": "diloco", "every": 5, "up": "int8", "down": "int8"}
    assert part(tmp_path, 2, 10, **settings) == [(0, 10)] * 2
    again = part(tmp_path, 2, 20, resume=True, **settings)
    assert again == [(10, 20)] * 2  # what has been trained on is left out
    with Repository.open(tmp_path) as repo:
        metrics = [repo.version(each.commit).metrics for each in repo.deployments("global")]
    assert [each["round"] for each in metrics] == [0, 1, 2, 3, 4]
    assert [each["bytes_up"] for each in metrics] == sorted(each["bytes_up"] for each in metrics)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_training_goes_on_with_another_number_of_workers(tmp_path: Path, count: int) -> None:
    assert part(tmp_path, 3, 10, protocol="local-sgd", every=5) == [(0, 10)] * 3
    again = part(tmp_path, count, 20, protocol="local-sgd", every=5, resume=True)
    assert again == [(10 if rank < 3 else 0, 20) for rank in range(count)]


def test_training_goes_on_with_the_threshold_that_was_found(tmp_path: Path) -> None:
    part(tmp_path, 2, 15, period=6)
    with Repository.open(tmp_path) as repo:
        own = repo.checkout(target="global", path="model.coordinator.safetensors")
        part(tmp_path, 2, 20, period=6, resume=True)
        again = repo.checkout(target="global", path="model.coordinator.safetensors")
    assert torch.equal(own["memory.radius"], again["memory.radius"])


def test_a_job_that_is_started_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name tells it from others; a restart of a job without one takes what is live."""
    settings = {"protocol": "local-sgd", "every": 5}

    def began(job: str, restart: str = "0") -> int:
        variables = {"TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_RESTART_COUNT": restart}
        return part(tmp_path, 2, 20, variables=variables, **settings)[0][0]

    assert began("ours") == 0
    assert began("ours") == 20
    assert began("theirs") == 0
    assert began("none", "1") == 20
    with Repository.open(tmp_path) as repo:  # by hand; the next one of the job goes on all the same
        repo.commit(small.make().state_dict(), message="by hand", deploy="global")
    assert began("theirs") == 20
    with Repository.open(tmp_path) as repo:
        assert repo.version(repo.live("global").commit).message == "by hand"


def one_after_another(rank: int) -> list[tuple[int, int]]:
    """Three trainings in one job: where each began and ended."""
    found = []
    for target in ("first", "first", "second"):
        trainer = Trainer(rank, count=10)
        with mvc.distributed.join(trainer.model, target=target) as worker:
            began = worker.steps
            for batch in worker.batches(trainer.stream):
                trainer.step(batch)
        found.append((began, worker.steps))
    return found


def test_trainings_of_one_job_are_told_apart(tmp_path: Path) -> None:
    """Each goes on from its own global model."""
    Repository.init(tmp_path).close()
    settings = {"repo": str(tmp_path), "protocol": "local-sgd", "every": 5}

    def trained() -> list[list[tuple[int, int]]]:
        variables = {"TORCHELASTIC_RUN_ID": "ours"}
        return succeeded(in_processes(2, one_after_another, variables=variables, **settings))

    assert trained() == [[(0, 10)] * 3] * 2
    assert trained() == [[(10, 10)] * 3] * 2


def test_global_models_are_pushed(tmp_path: Path) -> None:
    folder, there = tmp_path / "here", tmp_path / "there"
    Repository.init(there, bare=True).close()
    with Repository.init(folder) as repo:
        repo.remotes.add("origin", str(there))
    away = there.rename(tmp_path / "away")
    settings = {"protocol": "local-sgd", "every": 5, "push": "origin"}
    part(folder, 2, 10, **settings)
    away.rename(there)
    part(folder, 2, 20, resume=True, **settings)
    with Repository.open(folder) as repo, Repository.open(there) as remote:
        assert remote.find("main") == repo.live("global").commit
        assert len(remote.deployments("global")) == 5


def two_groups(rank: int, folder: str) -> Any:
    """Ranks 0 and 1 train one model, 2 and 3 another, in one job."""
    store = dist.FileStore(f"{folder}/store-of-all", 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    trainer = Trainer(rank % 2, 16 + rank // 2, count=20)
    repo = f"{folder}/{rank // 2}"
    with mvc.distributed.join(
        trainer.model, group=groups[rank // 2], repo=repo, protocol="local-sgd", every=5
    ) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
    return worker.rank, worker.workers


def test_several_groups_train_in_one_job(tmp_path: Path) -> None:
    for name in "01":
        Repository.init(tmp_path / name).close()
    ends = succeeded(in_processes(4, two_groups, str(tmp_path)))
    assert ends == [(0, 2), (1, 2), (0, 2), (1, 2)]
    for name, width in ("0", 16), ("1", 17):
        models = global_models(tmp_path / name)
        assert [len(models), *models[-1]["0.weight"].shape] == [5, width, 20]
