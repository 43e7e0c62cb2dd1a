"""Stopped, blocked and deaf processes in a real training: the command ends, and says why."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.counters import count
from tests.distributed.runner.deaf import FGM, TIMEOUT, Training

WITHOUT = (
    r"trained to the end, but without worker {}: it did not answer within "
    rf"{TIMEOUT} seconds(?: at the end)?"
)
NOT_ENDED = (
    r"trained to the end, but worker {} \(process \d+\) did not end within "
    rf"{TIMEOUT + 15} seconds after it"
)
NOT_JOINED = rf"worker {{}} did not join within {TIMEOUT + 15} seconds"
HUB = rf"the coordinator \(process \d+\) has said nothing for {TIMEOUT} seconds"

PROTOCOLS: tuple[tuple[str, ...], ...] = (
    FGM,
    ("--protocol=sync",),
    (*FGM, "--protocol=gm"),
    (*FGM, "--protocol=fda"),
    (*FGM, "--protocol=fgm-rebalancing"),
)
IN_TRAINING = ("stop", "block", "ignore", "loader")
AT_EXIT = ("stop", "block", "ignore", "thread")
PEERS = {"silent": b"", "half": b"mvc run", "greeted": b"mvc run\n\x01\x00" + bytes(32)}
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}


@dataclass(frozen=True)
class Scenario:
    """``--hang`` and the line that the command must end with."""

    how: str
    where: str
    rank: int
    line: str
    options: tuple[str, ...] = FGM
    script: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join(
            [self.how, self.where, str(self.rank), *self.options[-1:], *self.script]
        ).replace("--", "")


def drawn(seed: int) -> Iterator[Scenario]:
    """38 trainings with something that hangs: every kind, at moments of the seed."""
    draw = random.Random(seed)
    for how in IN_TRAINING:
        for protocol in PROTOCOLS:
            rank, step = draw.randrange(2), draw.choice(["1", "7", "23", "59", "end"])
            yield Scenario(how, step, rank, WITHOUT.format(rank), protocol)
    for how in AT_EXIT:
        rank = draw.randrange(2)
        yield Scenario(how, "exit", rank, NOT_ENDED.format(rank), draw.choice(PROTOCOLS))
    for how in ("stop", "block", "ignore"):
        rank = draw.randrange(2)
        yield Scenario(how, "import", rank, NOT_JOINED.format(rank), draw.choice(PROTOCOLS))
    for protocol in PROTOCOLS:
        step = str(draw.randrange(60))
        yield Scenario("stop-hub", step, draw.randrange(2), HUB, protocol)
    for how in ("stop", "block"):
        everyone = rf"no worker is left: worker \d: it did not answer within {TIMEOUT} seconds"
        yield Scenario(how, str(draw.randrange(1, 50)), -1, everyone)
    for width in ("20000", "50000"):  # the model does not fit into a socket's buffer
        rank = draw.randrange(2)
        yield Scenario("stop", "5", rank, WITHOUT.format(rank), script=(f"--width={width}",))
    yield Scenario("thread", "5", 1, NOT_ENDED.format(1))
    yield Scenario("stop-hub", "end", 0, HUB)


SCENARIOS = list(drawn(25))


def run(folder: Path, scenario: Scenario) -> None:
    hang = f"--hang={scenario.rank}:{scenario.how}:{scenario.where}"
    training = Training(folder, hang, *scenario.script, options=scenario.options)
    done = training.finish()
    assert re.fullmatch(f"mvc: {scenario.line}", done.last), done.err
    assert done.code == 3
    assert bool(training.check()) == (scenario.where != "import")
    count("stopped, blocked, deaf processes", tried=1, max_seconds=round(done.seconds), wrong=0)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_something_hangs(tmp_path: Path, scenario: Scenario) -> None:
    run(tmp_path, scenario)


def test_a_stopped_worker(tmp_path: Path) -> None:
    line = f"trained to the end, but without worker 1: it did not answer within {TIMEOUT} seconds"
    run(tmp_path, Scenario("stop", "20", 1, line, FGM))


AT_ONCE = ("stop", signal.SIGINT)
ENDED = [
    pytest.param(hang, how, marks=() if (hang, how) == AT_ONCE else pytest.mark.long)
    for hang in ("stop", "ignore")
    for how in SIGNALS
]


@pytest.mark.parametrize(("hang", "how"), ENDED)
def test_the_command_is_ended_while_a_worker_is_deaf(tmp_path: Path, hang: str, how: int) -> None:
    training = Training(tmp_path, f"--hang=0:{hang}:9")
    since = training.await_hang()
    training.process.send_signal(how)
    sent = time.time()
    with suppress(Exception):
        training.process.wait(20)
    while how != signal.SIGINT and training.processes() and time.time() < sent + 10:
        time.sleep(0.1)  # nobody is left who could wait for them
    done = training.finish(since)
    assert done.code == SIGNALS[signal.Signals(how)]
    assert time.time() - sent < 15
    training.check()
    count("stopped, blocked, deaf processes", tried=1, wrong=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("hangs", [False, True])
def test_peers_that_say_nothing(tmp_path: Path, kind: str, hangs: bool) -> None:
    """They neither disturb a training nor keep the command from its end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = ("--hang=0:stop:30",) if hangs else ()
    training = Training(tmp_path, *script, options=(*FGM, f"--option=port={port}"))
    links: list[socket.socket] = []
    training.await_line("round 0")
    for _ in range(3):
        links.append(socket.create_connection(("127.0.0.1", port)))
        links[-1].sendall(PEERS[kind])
    done = training.finish(None if hangs else time.time())
    assert done.code == (3 if hangs else 0), done.err
    training.check()
    count("stopped, blocked, deaf processes", tried=1, wrong=0)


@pytest.mark.long
def test_a_worker_that_wakes_up_joins_again(tmp_path: Path) -> None:
    training = Training(tmp_path, "--hang=1:stop:20", "--count=1200")
    since = training.await_hang()
    training.await_line("worker 1 is lost")
    for pid in training.processes():
        os.kill(pid, signal.SIGCONT)
    done = training.finish(since + 60)
    assert done.code == 0, done.err
    training.check()


@pytest.mark.long
def test_a_stopped_coordinator_under_torchrun(tmp_path: Path) -> None:
    settings = "--settings=rho:0.3,rate:0.05,timeout:5"
    training = Training(tmp_path, "--hang=0:stop-hub:20", settings, torchrun=True)
    done = training.finish()
    assert done.code != 0
    assert re.search(
        r"CannotDistribute: the coordinator at .*:\d+ (says nothing|is not there)", done.err
    ), done.err
