"""What does not fit is refused in one line, and nothing is averaged that should not be."""

from __future__ import annotations

import gc
import itertools
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import to_builtins

from mvc.api.repository import Repository
from mvc.distributed import messages as m
from mvc.distributed.protocols.base import VectorLayout
from mvc.distributed.protocols.named import protocol_named
from mvc.distributed.runner.connection import (
    CONTROL,
    MESSAGE,
    MODEL,
    Connection,
    Frame,
    serve,
)
from mvc.distributed.runner.handshake import greet
from mvc.distributed.runner.launch import Dismissed
from mvc.distributed.runner.layout import ModelLayout
from mvc.distributed.runner.participant import Participant, join
from mvc.distributed.safe import Threshold
from mvc.distributed.simulator import parse_event
from mvc.errors import BadMessage, CannotDistribute, MvcError, WrongUsage
from tests.distributed.runner.small import Trainer, make
from tests.distributed.runner.team import Team, global_models

pytestmark = pytest.mark.usefixtures("secret")

FGM = {"rho": 0.2, "rate": 0.05}


def finite(folder: Path) -> bool:
    models = global_models(folder)
    return all(bool(value.isfinite().all()) for model in models for value in model.values())


def refused(tmp_path: Path, trainers: list[Trainer], text: str, **settings: Any) -> Team:
    """Nobody trains: all hear why, in one line."""
    team = Team(tmp_path, **settings)
    outcomes = team.run(trainers)
    assert isinstance(team.failure, MvcError)
    assert text in team.failure.message
    assert "\n" not in team.failure.message
    assert all(isinstance(each, Dismissed) and text in str(each) for each in outcomes)
    assert not team.of("begins")
    return team


def test_another_model(tmp_path: Path) -> None:
    trainers = [Trainer(0), Trainer(1, width=33)]
    text = "worker 1 trains another model than worker 0: its 0.weight is 33x20, the others' is 32"
    refused(tmp_path, trainers, text, **FGM)
    trainers = [Trainer(0), Trainer(1)]
    trainers[1].model.append(torch.nn.Linear(4, 4))
    refused(tmp_path, trainers, "it has 4.weight, which the others lack", **FGM)
    trainers = [Trainer(0), Trainer(1)]
    del trainers[1].model[3]
    refused(tmp_path, trainers, "worker 1 trains another model than worker 0: it lacks 3.", **FGM)
    with Repository.open(tmp_path) as repo:
        assert repo.targets() == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"protocol": "gossip"}, "there is no protocol gossip: it must be one of"),
        ({"radius": 1.0, "period": 40}, "give the threshold as one of radius"),
        ({"rho": 1.0}, "a threshold in rho needs the learning rate"),
        ({"protocol": "sync", "every": 3}, "the protocol sync takes no every"),
        ({"radius": 1.0, "up": "gzip"}, "there is no codec gzip"),
        ({"radius": 1.0, "safe": "cube"}, "there is no safe function cube"),
        ({"radius": 1.0, "taget": "x"}, "there is no setting taget"),
        ({"radius": 1.0, "log": "/no/such/folder/log"}, "/no/such/folder"),
        (
            {"protocol": "fgm-rebalancing", "radius": 1.0, "worker_models": True},
            "with fgm-rebalancing the coordinator does not know the models of workers",
        ),
        ({"radius": "wide"}, "the setting radius cannot be 'wide'"),
    ],
)
def test_settings(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    refused(tmp_path, [Trainer(0), Trainer(1)], text, **settings)


def test_one_worker(tmp_path: Path) -> None:
    team = Team(tmp_path, **FGM)
    team.run([Trainer(0)])
    assert isinstance(team.failure, WrongUsage)
    assert team.failure.message == "1 worker: averaging needs at least two"


def test_numbers_that_are_not_finite_in_the_first_model(tmp_path: Path) -> None:
    trainers = [Trainer(0), Trainer(1)]
    with torch.no_grad():
        trainers[0].model[0].bias[3] = float("nan")
    refused(tmp_path, trainers, "the model holds numbers that are not finite", **FGM)


def test_numbers_that_are_not_finite_in_a_drift(tmp_path: Path) -> None:
    def loop(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if worker.rank == 1 and worker.steps == 9:
                with torch.no_grad():
                    trainer.model[0].bias[3] = float("nan")

    team = Team(tmp_path, log=str(tmp_path / "log"), **FGM)
    outcomes = team.run([Trainer(n) for n in range(3)], loop)
    assert [type(each) for each in outcomes] == [type(None), Dismissed, type(None)]
    with pytest.raises(BadMessage, match=r"worker 1 died or was removed in this run: the log la"):
        [parse_event(json.loads(line)) for line in (tmp_path / "log").read_text().splitlines()]
    text = "worker 1: its model holds numbers that are not finite after update 1"
    assert str(outcomes[1]).startswith(text)
    assert list(team.finished["refused"]) == ["1"]
    assert team.finished["steps"][0] == team.finished["steps"][2] == 60
    assert finite(tmp_path)


def test_statistics_that_are_not_finite_are_noticed_at_the_next_step() -> None:
    protocol = protocol_named("fgm", threshold=Threshold(radius=1.0))
    model = np.ones(10)
    layout = VectorLayout.of(model, 6)
    hub = protocol.coordinator(model.copy(), range(2), layout)
    worker, other = protocol.worker(0, model, layout), protocol.worker(1, np.ones(10), layout)
    for message in hub.on_messages([*worker.join(), *other.join()]):
        if message.worker == 0:
            worker.on_message(message)
    assert worker.on_update() == []
    model[8] = np.nan  # no safe function sees it
    with pytest.raises(BadMessage, match="not finite after update 2"):
        worker.on_update()


def test_a_script_that_fails_leaves_the_others_training(tmp_path: Path) -> None:
    def loop(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if worker.rank == 1 and worker.steps == 9:
                raise ValueError("no such thing")

    team = Team(tmp_path, **FGM)
    outcomes = team.run([Trainer(n) for n in range(3)], loop)
    assert isinstance(outcomes[1], ValueError)
    assert team.finished["refused"] == {"1": "worker 1 failed: ValueError: no such thing"}


def test_everybody_diverges(tmp_path: Path) -> None:
    def loop(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            with torch.no_grad():
                trainer.model[0].bias[3] = float("inf")

    team = Team(tmp_path, **FGM)
    outcomes = team.run([Trainer(n) for n in range(2)], loop)
    assert all(isinstance(each, Dismissed) for each in outcomes)
    assert isinstance(team.failure, CannotDistribute)
    assert "not finite" in team.failure.message
    assert len(global_models(tmp_path)) == 1


def as_worker_2(say: Callable[[Connection, Participant, Trainer], object]) -> Any:
    """A loop in which worker 2 says something of its own at its tenth step."""

    def loop(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if worker.rank == 2 and worker.steps == 4:
                say(worker._link, worker, trainer)

    return loop


@pytest.mark.parametrize(
    ("kind", "message", "text"),
    [
        (MESSAGE, m.Drift(2, 1, 0, 1, bytes(8)), "the drift of worker 2: "),
        (MESSAGE, m.Drift(2, 1, 0, 1, b"\xff\xff\xff\x7f" * 2000), "the drift of worker 2: "),
        (MESSAGE, m.Done(1, 1, 0, 0), "worker 2 speaks for worker 1"),
        (MESSAGE, m.Stop(2, 1, 0), "worker 2 sends Stop"),
        (MESSAGE, b"\x01", "a message has 1 bytes"),
        (MESSAGE, bytes([99]) * 20, "a message is of kind 99"),
        (CONTROL, b"\xff{", "a message of the runner cannot be read"),
        (MODEL, b"12345678", "worker 2 sends a model that nobody asked for"),
    ],
)
def test_messages_that_do_not_fit(tmp_path: Path, kind: int, message: Any, text: str) -> None:
    data = message if isinstance(message, bytes) else message.to_bytes()
    team = Team(tmp_path, protocol="local-sgd", every=20)
    loop = as_worker_2(lambda link, worker, trainer: link.send(kind, data))
    outcomes = team.run([Trainer(n) for n in range(3)], loop)
    assert text in team.finished["refused"]["2"]
    assert isinstance(outcomes[2], Dismissed)
    assert outcomes[:2] == [None, None]
    assert finite(tmp_path)


def test_late_and_repeated_messages_count_nothing(tmp_path: Path) -> None:
    def say(link: Connection, worker: Participant, trainer: Trainer) -> None:
        drift = ModelLayout.of(trainer.model).read(trainer.model) * 0 + 1e6
        link.send(MESSAGE, m.Drift(2, 0, 0, 1, drift.tobytes()).to_bytes())  # of a round before
        link.send(MESSAGE, m.Drift(2, 9, 0, 1, drift.tobytes()).to_bytes())
        link.send(MESSAGE, m.Increment(2, 0, 7, 1000).to_bytes())

    plain, noisy = (
        Team(tmp_path / "plain", protocol="sync"),
        Team(tmp_path / "noisy", protocol="sync"),
    )
    assert plain.run([Trainer(n, count=8) for n in range(3)]) == [None] * 3
    assert noisy.run([Trainer(n, count=8) for n in range(3)], as_worker_2(say)) == [None] * 3
    for a, b in zip(
        global_models(tmp_path / "plain"), global_models(tmp_path / "noisy"), strict=True
    ):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_same_worker_twice(tmp_path: Path) -> None:
    team = Team(tmp_path, protocol="sync", timeout=3)
    outcomes = team.run([Trainer(0), Trainer(1), Trainer(1)], ranks=[0, 1, 1])
    assert sum("takes part as worker 1 already" in str(each) for each in outcomes) == 1
    assert isinstance(team.failure, CannotDistribute)
    assert team.failure.message == "worker 2 did not join within 3 seconds"


@pytest.mark.parametrize("settings", [{"protocol": "sync"}, {"protocol": "fgm", **FGM}])
def test_a_worker_that_does_not_answer_is_given_up(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    def loop(worker: Participant, trainer: Trainer) -> None:
        if worker.rank == 2:
            while not team.of("lost"):
                time.sleep(0.01)
        for batch in itertools.cycle(trainer.stream):
            trainer.step(batch)
            worker.step()
            if len(team.of("joined")) == 4:  # the third one has come back
                return

    team = Team(tmp_path, timeout=1, **settings)
    assert team.run([Trainer(n) for n in range(3)], loop) == [None] * 3
    assert [each["worker"] for each in team.of("lost")] == [2]
    assert team.of("lost")[0]["reason"] == "it did not answer within 1 seconds"
    assert [each["worker"] for each in team.of("joined")][3:] == [2]
    assert finite(tmp_path)


def test_a_port_in_use(tmp_path: Path) -> None:
    with serve("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
        team = Team(tmp_path, **FGM)
        team.run([Trainer(0), Trainer(1)], port=port)
    assert isinstance(team.failure, CannotDistribute)
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in str(team.failure)


def test_nobody_serves() -> None:
    with serve("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
    trainer = Trainer(0)
    with pytest.raises(
        CannotDistribute, match=rf"the coordinator at 127\.0\.0\.1:{port} is not there"
    ):
        Participant(
            trainer.model,
            ModelLayout.of(trainer.model),
            f"127.0.0.1:{port}",
            (0, 2),
            settings={},
            timeout=0.3,
        )


def test_join_outside_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(WrongUsage, match="this process is not one of several"):
        join(make())
    with pytest.raises(WrongUsage, match=r"join takes a torch\.nn\.Module, not a dict"):
        join({})  # type: ignore[arg-type]
    with pytest.raises(CannotDistribute, match=r"0\.weight is torch\.float64: only float32"):
        join(make().double())
    with pytest.raises(CannotDistribute, match=r"the model has no parameter that is trained"):
        join(make().requires_grad_(False))


def test_a_training_that_failed_leaves_no_thread_behind(tmp_path: Path) -> None:
    def fail(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if worker.rank == 1:
                raise ValueError("no such thing")

    def threads() -> set[str]:
        gc.collect()  # an error holds what its frames hold
        return {each.name for each in Path("/proc/self/task").iterdir()}

    for settings in ({"protocol": "sync"}, {"protocol": "sync", "every": 3}):
        before = threads()
        Team(tmp_path, **settings).run([Trainer(n, count=4) for n in range(3)], fail)
        until = time.monotonic() + 20
        while left := threads() - before:  # they end one after the other
            assert time.monotonic() < until, left
            time.sleep(0.01)


def test_words_that_cannot_be_read() -> None:
    with pytest.raises(BadMessage, match="cannot be read"):
        Frame(CONTROL, 0, b"[" * 200_000).json()
    with pytest.raises(BadMessage, match="cannot be read"):
        ModelLayout.from_json([[], [["w", [float("inf")]]], [], []])


def test_a_run_goes_on_from_its_own_round_or_not_at_all(tmp_path: Path) -> None:
    team = Team(tmp_path, protocol="sync")
    team.run([Trainer(0, count=4), Trainer(1, count=4)], run="ours")
    with Repository.open(tmp_path) as repo:
        repo.commit(make().state_dict(), message="another", deploy="global")
    again = Team(tmp_path, protocol="sync")
    again.run([Trainer(0, count=4), Trainer(1, count=4)], run="ours", again=True)
    assert again.of("resumed")[0]["round"] == team.finished["round"]
    lost = Team(tmp_path, protocol="sync")
    lost.run([Trainer(0, count=4), Trainer(1, count=4)], run="theirs", again=True)
    assert "no round of this training is left on global" in str(lost.failure)


def test_a_worker_that_says_odd_things_of_itself_is_refused(tmp_path: Path) -> None:
    """It knows the secret of the run, but it takes no part, and the others train."""
    layout = to_builtins(ModelLayout.of(make()))
    hello = {"layout": layout, "settings": {}}
    unread = "a message of the runner cannot be read"
    odd = "what this process says of itself cannot be read"
    said: list[tuple[int, Any, str]] = [
        (CONTROL, b"", unread),
        (CONTROL, b"[" * 200_000, unread),
        (MODEL, bytes(100), unread),
        (MESSAGE, m.Drift(1, 1, 0, 1, bytes(8)).to_bytes(), unread),
        (99, bytes(53), unread),
        (CONTROL, {}, odd),
        (CONTROL, {**hello, "layout": float("inf")}, odd),
        (CONTROL, {**hello, "settings": 7}, odd),
        (CONTROL, hello, "there is no worker 2"),
    ]
    team = Team(tmp_path, protocol="sync", timeout=20)
    tell, heard = team.tell, list[tuple[str, str]]()

    def speak(port: int, what: tuple[int, Any, str]) -> tuple[str, str]:
        kind, words, text = what
        raw = socket.create_connection(("127.0.0.1", port))
        link = Connection(raw, greet(raw, 2, time.monotonic() + 10), 5)
        link.send(kind, words if isinstance(words, bytes) else json.dumps(words).encode())
        answer = str(link.receive().json()["failed"])
        link.finish(5)
        link.close()
        return text, answer

    def first(event: str, **fields: Any) -> None:
        if event == "listening":
            with ThreadPoolExecutor(5) as pool:
                answers = [pool.submit(speak, fields["port"], what) for what in said[:5]]
                heard.extend(answer.result() for answer in answers)
            pool = ThreadPoolExecutor(5)
            late.extend(pool.submit(speak, fields["port"], what) for what in said[5:])
            pool.shutdown(wait=False)
        tell(event, **fields)

    late: list[Future[tuple[str, str]]] = []
    team.tell = first  # type: ignore[method-assign]
    assert team.run([Trainer(0, count=4), Trainer(1, count=4)]) == [None, None]
    assert team.finished["refused"] == {}
    assert sorted(event["worker"] for event in team.of("joined")) == [0, 1]
    heard.extend(answer.result(20) for answer in late)
    assert len(heard) == len(said)
    assert all(text in answer for text, answer in heard)
    with Repository.open(tmp_path) as repo:
        assert len(repo.deployments("global")) == 5
