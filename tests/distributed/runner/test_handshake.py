"""Nobody without the secret of a training takes part in it, learns the secret, or disturbs it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mvc.distributed.runner.connection import (
    CONTROL,
    MESSAGE,
    Connection,
    ConnectionGone,
    Keys,
    serve,
)
from mvc.distributed.runner.handshake import Unproven, admit, greet, keyed
from mvc.distributed.runner.launch import ADDRESS
from mvc.distributed.runner.layout import ModelLayout
from mvc.distributed.runner.participant import Participant
from mvc.distributed.runner.settings import TOKEN
from mvc.errors import CannotDistribute
from tests.cli.program import ROOT
from tests.distributed.runner import small
from tests.distributed.runner.conftest import SECRET
from tests.distributed.runner.small import Trainer
from tests.distributed.runner.team import Team, global_models, ordinary

pytestmark = pytest.mark.usefixtures("secret")

HELLO, PROOF = 42, 32  # bytes
NONE: list[BaseException | None] = [None, None]


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: a worker's and the coordinator's."""
    with (
        serve("127.0.0.1", 0) as door,
        socket.create_connection(door.getsockname()) as mine,
        door.accept()[0] as theirs,
    ):
        for end in (mine, theirs):
            end.settimeout(20)
        yield mine, theirs


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def heard(link: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    link.settimeout(20)
    parts = []
    with suppress(ConnectionResetError):
        while part := link.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


# -- the proofs ------------------------------------------------------------------------------------


def test_known_answers() -> None:
    nonces = bytes(range(64))
    assert [keyed(SECRET, role, 7, nonces).hex() for role in ("coordinator", "worker")] == KNOWN
    others = [
        keyed("other", "worker", 7, nonces),
        keyed(SECRET, "worker", 8, nonces),
        keyed(SECRET, "worker", 7, nonces[32:] + nonces[:32]),
        keyed(SECRET, "from worker", 7, nonces),
    ]
    assert len({*KNOWN, *(each.hex() for each in others)}) == 6


KNOWN = [
    "93784cf073b08ca4ea10eb0155aebd31d26c710a3c877c8b3d3005243cbb8671",
    "d8acf985add8d605bb6e2daf8dd07c4bf5bd6191cff999202222358e080b54f7",
]


def test_both_prove_it_and_get_the_same_keys() -> None:
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        other = pool.submit(admit, theirs, soon())
        keys = greet(mine, 3, soon())
        assert other.result() == (3, Keys(out=keys.into, into=keys.out))
        assert keys.into != keys.out


@pytest.mark.parametrize("alien", ["", "5e" * 15, "\udcff"])
def test_another_secret(monkeypatch: pytest.MonkeyPatch, alien: str) -> None:
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        nonce = bytes(32)
        other = pool.submit(admit, theirs, soon())
        mine.sendall(b"mvc run\n\x03\x00" + nonce)
        answer = mine.recv(64, socket.MSG_WAITALL)
        mine.sendall(keyed(alien, "worker", 3, nonce + answer[:32]))
        with pytest.raises(Unproven):
            other.result()


@pytest.mark.parametrize("unset", [True, False])
def test_a_secret_that_everybody_knows_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, unset: bool
) -> None:
    monkeypatch.delenv(TOKEN) if unset else monkeypatch.setenv(TOKEN, "")
    with pair() as (mine, theirs):
        for part in (lambda: greet(mine, 3, soon()), lambda: admit(theirs, soon())):
            with pytest.raises(CannotDistribute, match="has no secret"):
                part()
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_a_coordinator_without_a_secret_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could be admitted: it waited for its workers instead."""
    monkeypatch.delenv(TOKEN)
    team = Team(tmp_path, protocol="sync")
    team.run([Trainer(0, count=4), Trainer(1, count=4)])
    assert isinstance(team.failure, CannotDistribute)
    assert "has no secret" in str(team.failure)
    assert team.events == []


def test_reflected_proofs() -> None:
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        other = pool.submit(admit, theirs, soon())
        mine.sendall(b"mvc run\n\x00\x00" + bytes(32))
        answer = mine.recv(64, socket.MSG_WAITALL)
        mine.sendall(answer[32:])  # the coordinator's own
        with pytest.raises(Unproven):
            other.result()
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        other = pool.submit(greet, mine, 0, soon())
        hello = theirs.recv(HELLO, socket.MSG_WAITALL)
        theirs.sendall(hello[-32:] * 2)
        with pytest.raises(Unproven):
            other.result()


def recorded() -> tuple[bytes, bytes]:
    """What a worker and the coordinator said in a handshake that succeeded."""
    with pair() as (mine, far), pair() as (near, theirs), ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(greet, mine, 0, soon()), pool.submit(admit, theirs, soon())]
        hello = far.recv(HELLO, socket.MSG_WAITALL)
        near.sendall(hello)
        answer = near.recv(64, socket.MSG_WAITALL)
        far.sendall(answer)
        proof = far.recv(PROOF, socket.MSG_WAITALL)
        near.sendall(proof)
        for end in ends:
            end.result()
        return hello + proof, answer


def test_replayed_proofs() -> None:
    worker, coordinator = recorded()
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        mine.sendall(worker)
        with pytest.raises(Unproven):
            admit(theirs, soon())
        other = pool.submit(greet, mine, 0, soon())
        theirs.sendall(coordinator)
        with pytest.raises(Unproven):
            other.result()


def test_the_limit_of_time_holds_for_the_whole_handshake() -> None:
    with pair() as (mine, theirs), ThreadPoolExecutor(1) as pool:
        other = pool.submit(admit, theirs, soon(0.6))
        began = time.monotonic()
        while not other.done() and time.monotonic() < began + 10:
            mine.sendall(b"m")
            time.sleep(0.1)
        with pytest.raises(ConnectionGone):
            other.result()
        assert time.monotonic() < began + 5


# -- a coordinator that is none --------------------------------------------------------------------


def test_a_false_coordinator_learns_nothing() -> None:
    trainer, said = Trainer(0), list[bytes]()
    with serve("127.0.0.1", 0) as door:

        def impostor() -> None:
            with door.accept()[0] as link:
                link.sendall(os.urandom(64))
                said.append(heard(link))

        thread = threading.Thread(target=impostor)
        thread.start()
        port = door.getsockname()[1]
        with pytest.raises(CannotDistribute) as caught:
            layout = ModelLayout.of(trainer.model)
            Participant(
                trainer.model, layout, f"127.0.0.1:{port}", (1, 2), settings={}, timeout=20.0
            )
        thread.join()
    text = f"the coordinator at 127.0.0.1:{port} does not know the secret of this training"
    assert caught.value.message == text
    assert [len(each) for each in said] == [HELLO]
    assert said[0].startswith(b"mvc run\n\x01\x00")
    assert SECRET.encode() not in said[0]
    assert bytes.fromhex(SECRET) not in said[0]


def test_a_script_that_meets_a_false_coordinator_ends_with_one_line(tmp_path: Path) -> None:
    with serve("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "2"}
        process = subprocess.Popen(
            [sys.executable, "-m", "mvc.distributed.runner.script", small.__file__],
            cwd=tmp_path,
            env={**variables, ADDRESS: f"127.0.0.1:{port}"},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        door.settimeout(120)
        with door.accept()[0] as link:
            link.sendall(bytes(64))
            assert len(heard(link)) == HELLO
        assert process.wait(60) == 3
        assert process.stdin is not None
        assert process.stderr.read() == (
            f"mvc: the coordinator at 127.0.0.1:{port} does not know the secret of this training\n"
        )
        process.stderr.close()
        process.stdin.close()


# -- somebody in between ---------------------------------------------------------------------------

Change = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    "change",
    [
        lambda frames: [bytes([frames[0][0] ^ 2]) + frames[0][1:]],  # its kind
        lambda frames: [frames[0][:4] + b"\x01" + frames[0][5:]],  # its step
        lambda frames: [frames[0][:-1] + b"?"],  # its content
        lambda frames: [frames[0][:12] + bytes(16) + frames[0][28:]],  # its tag
        lambda frames: frames[1:],  # the first one left out
        lambda frames: [frames[1], frames[0]],
        lambda frames: [frames[0], frames[0]],
        lambda frames: [b"\x02" + frames[0][1:8] + b"\xff\xff\xff\xff" + frames[0][12:]],
    ],
    ids=["kind", "step", "content", "tag", "left-out", "order", "repeated", "length"],
)
def test_frames_that_somebody_has_touched(change: Change) -> None:
    keys = Keys(out=bytes(32), into=bytes([1] * 32))
    with pair() as (mine, far), pair() as (near, theirs):
        sender = Connection(mine, keys, 5)
        receiver = Connection(theirs, Keys(out=keys.into, into=keys.out), 5)
        frames = []
        for word in (b"first", b"other"):
            sender.send(MESSAGE, word, 7)
            frames.append(far.recv(28 + 5, socket.MSG_WAITALL))
        touched = change(frames)
        for frame in touched:
            near.sendall(frame)
        near.shutdown(socket.SHUT_WR)
        if touched[0] == frames[0]:
            assert receiver.receive().data == b"first"
        with pytest.raises(ConnectionGone):
            receiver.receive()
        for link in (sender, receiver):
            assert link.finish(5)
            link.close()


def test_frames_that_nobody_has_touched() -> None:
    keys = Keys(out=bytes(32), into=bytes([1] * 32))
    with pair() as (mine, theirs):
        sender = Connection(mine, keys, 5)
        receiver = Connection(theirs, Keys(out=keys.into, into=keys.out), 5)
        large = os.urandom(5_000_000)
        for data in (b"", b"x", large):
            sender.send(CONTROL, data, 9)
        assert [receiver.receive().data for _ in range(3)] == [b"", b"x", large]
        receiver.send(MESSAGE, b"y")
        assert sender.receive().data == b"y"
        assert sender.beside == receiver.beside == 1 + len(large)
        sender.close()
        receiver.close()


class Relay:
    """Stands between the workers and the coordinator, and passes on what they say."""

    def __init__(self, port: int, spoil: Callable[[int, socket.socket], None]) -> None:
        self._port, self._spoil = port, spoil
        self.connections = 0
        self.door = serve("127.0.0.1", 0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                mine, _ = self.door.accept()
                theirs = socket.create_connection(("127.0.0.1", self._port))
                self.connections += 1
                for pipe in ((mine, theirs), (theirs, mine)):
                    threading.Thread(target=self._pass, args=pipe, daemon=True).start()
                self._spoil(self.connections, theirs)

    def _pass(self, source: socket.socket, goal: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                goal.sendall(part)
            goal.shutdown(socket.SHUT_WR)


def test_a_relay_can_cut_but_put_nothing_in(tmp_path: Path) -> None:
    """The first worker's connection gets a foreign frame once the training runs."""
    team = Team(tmp_path, protocol="sync", timeout=20)
    cut = threading.Event()

    def spoil(number: int, coordinator: socket.socket) -> None:
        def put_in() -> None:
            while len(team.of("round")) < 2:
                time.sleep(0.01)
            coordinator.sendall(b"\x02" + bytes(7) + b"\x04\x00\x00\x00" + bytes(16 + 4))
            cut.set()

        if number == 1:
            threading.Thread(target=put_in, daemon=True).start()

    tell, relays = team.tell, list[Relay]()

    def through(event: str, **fields: Any) -> None:
        if event == "listening":
            relays.append(Relay(fields["port"], spoil))
            fields["port"] = relays[0].door.getsockname()[1]
        tell(event, **fields)

    def loop(worker: Participant, trainer: Trainer) -> None:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            if worker.steps > 8:
                assert cut.wait(20)

    team.tell = through  # type: ignore[method-assign]
    assert team.run([Trainer(0, count=20), Trainer(1, count=20)], loop) == NONE
    relays[0].door.close()
    assert relays[0].connections == 3
    assert [event["reason"] for event in team.of("lost")] == ["its process has gone"]
    assert team.finished["refused"] == {}
    assert len(global_models(tmp_path)) == team.finished["rounds"] + 1


# -- strangers at the port -------------------------------------------------------------------------


def at_the_port(team: Team, act: Callable[[int], object]) -> None:
    """Strangers act before the workers come, and again when the training begins."""
    tell = team.tell

    def first(event: str, **fields: Any) -> None:
        if event == "listening":
            act(fields["port"])
        elif event == "begins":
            act(team.of("listening")[0]["port"])
        tell(event, **fields)

    team.tell = first  # type: ignore[method-assign]


def garbage() -> list[bytes]:
    draw = random.Random(1)
    hello = b"mvc run\n\x01\x00" + bytes(32)
    return [
        b"",
        b"\x00",
        b"GET / HTTP/1.0\r\n\r\n",
        hello[:7],
        hello[:41],
        hello,
        hello + bytes(32),
        hello + b"\xff" * 100_000,
        b"\xff" * 4096,
        b"\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff",
        b'{"hello": 1, "token": ""}',
        *(draw.randbytes(draw.randrange(1, 5000)) for _ in range(20)),
    ]


def test_garbage_at_the_port_disturbs_nobody(tmp_path: Path) -> None:
    team, held = Team(tmp_path, protocol="sync", timeout=20), list[socket.socket]()

    def act(port: int) -> None:
        for data in garbage():
            for closes in (True, False):
                link = socket.create_connection(("127.0.0.1", port))
                with suppress(ConnectionResetError, BrokenPipeError):
                    link.sendall(data)
                link.close() if closes else held.append(link)

    at_the_port(team, act)
    assert team.run([Trainer(0, count=4), Trainer(1, count=4)]) == NONE
    assert team.finished["refused"] == {}
    assert sorted(event["worker"] for event in team.of("joined")) == [0, 1]
    assert team.finished["steps"] == [4, 4]
    assert len(global_models(tmp_path)) == 5
    for link in held:  # dropped, with at most one nonce and proof said to it
        assert len(heard(link)) in (0, 64)
        link.close()


def test_a_crowd_of_strangers_takes_no_place(tmp_path: Path) -> None:
    team, held, most = Team(tmp_path, protocol="sync", timeout=20), list[socket.socket](), [0]
    before = threading.active_count()

    def act(port: int) -> None:
        held.extend(socket.create_connection(("127.0.0.1", port)) for _ in range(150))

    def loop(worker: Participant, trainer: Trainer) -> None:
        most[0] = max(most[0], threading.active_count())
        ordinary(worker, trainer)

    at_the_port(team, act)
    assert team.run([Trainer(0, count=4), Trainer(1, count=4)], loop) == NONE
    assert team.finished["refused"] == {}
    assert before < most[0] < before + 100
    for link in held:
        assert heard(link) == b""
        link.close()
