"""What does not fit ends the training of all processes, with one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mvc.distributed
from mvc.api import Repository
from mvc.distributed.runner.ranks import Ranks
from mvc.errors import BadMessage, CannotDistribute, WrongUsage
from tests.cli.program import Mvc
from tests.distributed.own import Weighted, faulty
from tests.distributed.runner import small
from tests.distributed.runner.processes import global_models, in_processes, ordinary, train
from tests.distributed.runner.small import Trainer

FGM = {"rho": 0.2, "rate": 0.05}


def refused(folder: Path, text: str, work: Any = ordinary, count: int = 3, **settings: Any) -> None:
    """All processes end, and all say the same; the others name the rank."""
    outcomes = train(folder, count, 12, work, **settings)
    assert all(text.partition(": ")[2] in str(each.error) for each in outcomes), outcomes
    assert sum(text in str(each.error) for each in outcomes) == count - 1, outcomes
    assert max(each.seconds for each in outcomes) < 30


def wider(rank: int, count: int) -> Any:
    return ordinary(rank, count, 33 if rank == 1 else 32)


def other_protocol(rank: int, count: int) -> Any:
    trainer = Trainer(rank, count=count)
    mvc.distributed.join(trainer.model, protocol="gm" if rank == 2 else "fgm", radius=1.0)


def other_function(rank: int, count: int) -> Any:
    return ordinary(rank, count, safe=Weighted(2.0 if rank == 1 else 1.0))


def no_function(rank: int, count: int) -> Any:
    return ordinary(rank, count, safe=faulty(lambda drift, _: float("nan")))


def with_nan(rank: int, count: int) -> Any:
    trainer = Trainer(rank, count=count)
    with mvc.distributed.join(trainer.model, trainer.optimizer) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if rank == 1 and worker.steps == 5:
                with torch.no_grad():
                    trainer.model[0].bias[3] = float("nan")


def failing(rank: int, count: int) -> Any:
    trainer = Trainer(rank, count=count)
    with mvc.distributed.join(trainer.model, trainer.optimizer) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if rank == 1 and worker.steps == 5:
                raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (
            wider,
            "rank 1: the trainings differ: this process has 0.weight float32 [33, 20], "
            "but rank 0 has 0.",
        ),
        (
            other_protocol,
            "rank 2: the trainings differ: this process has protocol=gm, but "
            "rank 0 has protocol=fgm",
        ),
        (
            other_function,
            "rank 1: the trainings differ: this process has safe=Weighted(weight=2.0), "
            "but rank 0 has safe=Weighted(weight=1.0)",
        ),
        (no_function, "rank 0: the value of the safe function is not finite"),
        (with_nan, "rank 1: worker 1: its model has numbers that are not finite after update 6"),
    ],
)
def test_a_rank_that_does_not_fit(tmp_path: Path, work: Any, text: str) -> None:
    refused(tmp_path, text, work, **({} if work is other_protocol else FGM))


def test_a_script_that_fails(tmp_path: Path) -> None:
    outcomes = train(tmp_path, 3, 12, failing, **FGM)
    assert outcomes[1].error == "ValueError: no such thing"
    assert all("rank 1: ValueError: no such thing" in str(outcomes[n].error) for n in (0, 2))


def leaving(rank: int, count: int) -> Any:
    with mvc.distributed.join(small.make()):
        if rank == 1:
            sys.exit(0)


def test_a_script_that_leaves(tmp_path: Path) -> None:
    outcomes = train(tmp_path, 2, 12, leaving, **FGM)
    assert "rank 1: the script ended before its training did" in str(outcomes[0].error)


def test_no_repository_or_another_training_in_it(tmp_path: Path) -> None:
    outcomes = in_processes(2, ordinary, 12, repo=str(tmp_path / "none"), **FGM)
    assert all("none" in str(each.error) for each in outcomes), outcomes
    assert "rank 0: " in str(outcomes[1].error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_repository_that_cannot_be_written(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    (tmp_path / ".mvc").chmod(0o500)
    refused(tmp_path, "rank 0: ", **FGM)
    (tmp_path / ".mvc").chmod(0o700)


def uneven(rank: int, count: int) -> Any:
    return ordinary(rank, count if rank else 5)


@pytest.mark.parametrize("settings", [FGM, {"protocol": "local-sgd", "every": 4}])
def test_streams_of_different_lengths(tmp_path: Path, settings: dict[str, Any]) -> None:
    outcomes = train(tmp_path, 3, 12, uneven, **settings)
    assert [each.value[0] for each in outcomes] == [5, 12, 12]


def test_a_world_of_one(tmp_path: Path) -> None:
    (outcome,) = train(tmp_path, 1, 12, ordinary, protocol="local-sgd", every=4)
    assert outcome.value[0] == 12
    assert len(global_models(tmp_path)) == 4


def test_a_coordinator_of_its_own_without_a_worker(tmp_path: Path) -> None:
    (outcome,) = train(tmp_path, 1, 12, ordinary, coordinator="own", **FGM)
    assert outcome.error == "WrongUsage: averaging needs at least one worker"


def unjoined(rank: int, count: int) -> Any:
    return None if rank == 1 else ordinary(rank, count)


def test_a_rank_that_does_not_join(tmp_path: Path) -> None:
    outcomes = train(tmp_path, 3, 12, unjoined, timeout=2.0, **FGM)
    line = "rank 1 (process unknown) did not join the exchange within 2 seconds"
    assert all(line in str(outcomes[n].error) for n in (0, 2)), outcomes


def long_bytes(rank: int) -> Any:
    """Rank 1 sends more than rank 0 expects."""
    link = Ranks(None, "cpu", 5.0)
    try:
        link.collect(bytes(1000 if rank == 1 else 10), 100, 0)
    except BadMessage as error:
        return error.message
    except CannotDistribute:
        return "cut off"
    finally:
        link.close()


def test_no_memory_is_taken_for_more_bytes_than_are_expected() -> None:
    said = [each.value for each in in_processes(2, long_bytes)]
    assert said[0] == "rank 1 sends 1000 bytes: at most 100 are allowed"


def test_join_outside_of_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "MVC_TRAINING"):
        monkeypatch.delenv(name, raising=False)
    join = mvc.distributed.join
    with pytest.raises(WrongUsage, match="there is neither a process group"):
        join(small.make())
    with pytest.raises(WrongUsage, match=r"model is of type dict: it must be a torch\.nn\.Module"):
        join({})  # type: ignore[arg-type]
    with pytest.raises(
        CannotDistribute, match=r"0\.weight is torch\.float64: mvc averages only float32"
    ):
        join(small.make().double())
    with pytest.raises(CannotDistribute, match=r"the model has no trainable parameter"):
        join(small.make().requires_grad_(False))
    with pytest.raises(WrongUsage, match="there is no setting speed"):
        join(small.make(), speed=3)
    assert not dist.is_initialized()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        {"RANK": "x"},
        {"RANK": "2"},
        {"RANK": "-1"},
        {"WORLD_SIZE": "0"},
        {"MASTER_ADDR": ""},
        {"MASTER_PORT": "65536"},
    ],
)
def test_variables_that_cannot_be_meant(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    monkeypatch.delenv("MVC_TRAINING", raising=False)
    sound = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (sound | wrong).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WrongUsage, match="there is neither a process group"):
        mvc.distributed.join(small.make(), timeout=1)


def test_a_backend_that_does_not_fit_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: "nccl")
    group: Any = object()
    with pytest.raises(WrongUsage, match="the process group uses nccl, but the model is on the c"):
        mvc.distributed.join(small.make(), group=group)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (
            ("-Oradius=-1", "--protocol=fgm"),
            2,
            "radius cannot be -1: it must be float > 0.0",
        ),
        (
            ("-Oevery=0", "--protocol=local-sgd"),
            2,
            "every cannot be 0: it must be int >= 1",
        ),
        (("--protocol", "gossip"), 2, "there is no protocol gossip: use one of gm"),
        (("-Oport=7000",), 2, "there is no setting port"),
        (("-Orho=wide",), 2, "rho cannot be wide: it must be float"),
        (("-Otimeout=nan",), 2, "timeout cannot be nan: it must be float > 0"),
        (("-Oradius=1", "--repo", "/nonexist"), 3, "/nonexist"),
        (("-Oradius=1", "--repo", ".", "-Opush=ori"), 3, "mvc: there is no remote ori"),
    ],
)
def test_options_are_refused_before_the_script_runs(
    mvc: Mvc, options: tuple[object, ...], code: int, text: str
) -> None:
    Path("own.py").write_text("open('ran', 'w')")
    assert text in mvc("train-distributed", "own.py", "--workers", 2, *options, code=code).err
    assert not Path("ran").exists()
    mvc("train-distributed", "own.py", "--workers", 1, code=2)
    assert "there is no file no.py" in mvc("train-distributed", "no.py", "--workers=2", code=3).err
