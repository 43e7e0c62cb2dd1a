"""A thousand nodes ask one question: the server answers it once, and rightly."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError, RemoteUnreachable, StateForgotten
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.remote import slices
from mvc.remote.transport import Wanted
from mvc.remote.transports.http import HttpTransport
from mvc.server import answers
from mvc.testing import open_quietly
from tests.remote.kit.proxy import Faults, Proxy
from tests.remote.kit.serving import Serving, serving, token, transport
from tests.server.moving import answering, served_folder
from tests.waiting import until

LIVE = Wanted(live="prod")
PIECE = 70_000
"""Bytes that may be thrown away when a connection breaks, and come again."""


class World:
    """A repository that is served, and changed by its owner on the same machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.root = folder, name, folder / name
        self.text = token(folder, "read", name=name)
        Repository.init(self.root, bare=True).close()
        self._random = np.random.default_rng(0)
        self._state = {
            f"t{i}": self._random.standard_normal(20_000).astype(np.float32) for i in range(4)
        }

    def deploy(self, size: int | None = None) -> CommitId:
        """Another version goes live."""
        with open_quietly(self.root) as repo:
            if size is not None:
                self._state = {"t": self._random.random(size, np.float32)}
            self._state = {k: v + np.float32(0.5) * v for k, v in self._state.items()}
            return repo.commit(self._state, path="m.safetensors", deploy="prod").id

    def own(self, act: Callable[[Repository], object]) -> None:
        with open_quietly(self.root) as repo:
            act(repo)

    def transport(self, port: int) -> HttpTransport:
        return transport(f"http://127.0.0.1:{port}/{self.name}", self.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_folder(tmp_path_factory.mktemp("answers") / "served")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    with serving(folder) as running:
        yield running


@pytest.fixture
def world(folder: Path, request: pytest.FixtureRequest) -> World:
    return World(folder, request.node.name[5:45])


def ask(opened: HttpTransport, wanted: Wanted = LIVE) -> tuple[CommitId, bytes]:
    """Which version is live, and all bytes of the answer."""
    data, id_ = bytearray(), None
    for given in opened.send(wanted):
        (sent,) = slices.decode_entries(given.head)
        id_ = Commit.decode(sent.commits[0]).id
        for part in given.records:
            data += part
    assert id_ is not None
    return id_, bytes(data)


def outcomes(world: World, log: Callable[[], str], count: int) -> list[str]:
    """What became of so many questions; a line of the log comes after the answer."""

    def found() -> list[str]:
        return re.findall(rf" {world.name} send 200 (\S+) \d+ms$", log(), re.M)

    until(lambda: len(found()) >= count, 10)
    return found()


def test_two_hundred_ask_at_once_and_one_answer_is_planned(world: World, server: Serving) -> None:
    world.deploy()
    transports = [world.transport(server.port) for _ in range(200)]
    found, start = list[tuple[CommitId, bytes]](), threading.Barrier(len(transports))

    def work(opened: HttpTransport) -> None:
        start.wait()
        found.append(ask(opened))

    threads = [threading.Thread(target=work, args=(opened,)) for opened in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200 and len(set(found)) == 1 and len(found[0][1]) > 100_000
    assert sorted(outcomes(world, lambda: server.log, 200)) == ["done"] + ["kept"] * 199


def test_what_is_live_decides(world: World, server: Serving) -> None:
    opened = world.transport(server.port)
    first = world.deploy()
    assert ask(opened)[0] == ask(opened)[0] == first
    second = world.deploy()
    assert ask(opened)[0] == ask(opened)[0] == second
    world.own(lambda repo: repo.rollback("prod"))
    assert ask(opened)[0] == first
    whole, nothing = ask(opened)[1], ask(opened, Wanted(live="prod", have=frozenset({first})))[1]
    assert len(whole) > 100_000 and not nothing
    assert outcomes(world, lambda: server.log, 7) == ["done", "kept"] * 2 + ["done", "kept", "done"]


def test_a_state_that_was_forgotten_is_given_to_nobody(world: World, server: Serving) -> None:
    opened = world.transport(server.port)
    first, second = world.deploy(), world.deploy()
    delta = Wanted(live="prod", have=frozenset({first}))
    assert ask(opened)[0] == ask(opened)[0] == second
    small = len(ask(opened, delta)[1])
    world.own(lambda repo: repo.storage.forget([first], reason="withdrawn"))
    assert ask(opened)[0] == second  # and anew: what led over the first one leads there no more
    assert len(ask(opened, delta)[1]) >= small
    world.own(lambda repo: repo.storage.forget([second]))
    for wanted in (LIVE, delta):
        with pytest.raises(StateForgotten):
            ask(opened, wanted)
    assert "kept" not in outcomes(world, lambda: server.log, 7)[3:]


def test_what_others_deploy_leaves_it(world: World, server: Serving) -> None:
    opened = world.transport(server.port)
    first = world.deploy()
    ask(opened)
    world.own(lambda repo: repo.deploy(first, "lab"))
    ask(opened)
    assert outcomes(world, lambda: server.log, 2) == ["done", "kept"]


def test_an_answer_that_broke_off_goes_on(world: World, server: Serving) -> None:
    world.deploy()
    whole = ask(world.transport(server.port))
    with Proxy(("127.0.0.1", server.port)) as proxy:
        opened = world.transport(proxy.port)
        for cut in (1000, 90_000, len(whole[1])):
            proxy.again(Faults(down=cut))
            assert ask(opened) == whole
            assert proxy.down < len(whole[1]) + PIECE


def test_an_answer_that_became_another_one_does_not_go_on(world: World, server: Serving) -> None:
    world.deploy()
    with Proxy(("127.0.0.1", server.port)) as proxy:
        opened = world.transport(proxy.port)
        parts = opened.send(LIVE)
        proxy.again(Faults(down=90_000))
        given = next(parts)
        world.deploy()
        with pytest.raises(RemoteUnreachable, match="changed while the connection was broken"):
            for _ in given.records:
                pass


class TestUnshared:
    """Answers that are not kept are the same bytes, made for each who asks."""

    @pytest.fixture
    def port(self, world: World, caplog: pytest.LogCaptureFixture) -> Iterator[int]:
        self.log = caplog
        with (
            caplog.at_level(logging.INFO, "mvc.server.access"),
            answering(world.folder) as url,
        ):
            yield int(url.rpartition(":")[2])

    def _outcomes(self, world: World, count: int) -> list[str]:
        return outcomes(world, lambda: "\n".join(self.log.messages), count)

    def test_a_large_one(self, world: World, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(answers, "MOST", 1 << 20)
        world.deploy(500_000)
        opened = world.transport(port)
        found = {ask(opened) for _ in range(3)}
        assert len(found) == 1 and self._outcomes(world, 3) == ["done"] * 3

    def test_a_disk_without_room(
        self, world: World, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "no space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
        world.deploy()
        opened = world.transport(port)
        assert ask(opened) == ask(opened) and self._outcomes(world, 2) == ["done"] * 2

    def test_a_system_that_reserves_no_room(
        self, world: World, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr("os.posix_fallocate")  # macOS
        world.deploy()
        opened = world.transport(port)
        assert ask(opened) == ask(opened) and self._outcomes(world, 2) == ["done"] * 2

    def test_few_are_kept(self, world: World, port: int) -> None:
        versions = [world.deploy() for _ in range(answers.CACHED + 2)]
        opened = world.transport(port)
        questions = [Wanted(live="prod", have=frozenset({id_})) for id_ in versions]
        for wanted in [*questions, questions[-1], questions[0]]:
            ask(opened, wanted)
        expected = ["done"] * len(questions) + ["kept", "done"]
        assert self._outcomes(world, len(expected)) == expected

    def test_an_error_is_not_kept(self, world: World, port: int) -> None:
        opened = world.transport(port)
        for _ in range(2):
            with pytest.raises(MvcError, match="prod"):
                ask(opened)
        world.deploy()
        ask(opened)
        assert self._outcomes(world, 3) == ["unknown-target", "unknown-target", "done"]
