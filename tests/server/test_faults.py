"""Connections that break, answers that get lost, servers that are slow or busy."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import RefConflict, RemoteUnreachable
from mvc.remote.transports.http import HttpTransport
from tests.remote.kit.proxy import Faults, Proxy
from tests.remote.kit.serving import Serving, serving, token, transport
from tests.server.moving import content, move, record, served_folder

_SIZE = 100_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with Repository.init(tmp_path_factory.mktemp("faults") / "source") as repo:
        for value in range(3):
            record(repo, value, _SIZE)
        yield repo


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a connection that broke works again at once."""
    monkeypatch.setattr("mvc.remote.transports.http.PAUSES", (0.01, 0.1, 1.0, 2.0, 4.0))


class Place:
    """A served folder, reached through a proxy; each test has a repository of its own there."""

    def __init__(self, folder: Path, server: Serving, proxy: Proxy) -> None:
        self.folder, self.proxy = folder, proxy
        self.address = ("127.0.0.1", server.port)
        self.token = token(folder, "admin")
        self._number = 0

    def fresh(self) -> Path:
        """An empty repository."""
        self._number += 1
        root = self.folder / f"r{self._number}"
        Repository.init(root, bare=True).close()
        return root

    def transport(self, root: Path) -> HttpTransport:
        return transport(self.url(root), self.token)

    def url(self, root: Path) -> str:
        return f"http://127.0.0.1:{self.proxy.port}/{root.name}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = served_folder(tmp_path_factory.mktemp("faults") / "served")
    with serving(folder) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        yield Place(folder, server, proxy)


def points(count: int) -> list[int]:
    """Bytes after which a connection is cut; the same in each run."""
    return sorted(random.Random(7).sample(range(300, 3 * 4 * _SIZE), count))


def check_push(place: Place, source: Repository, faults: Faults) -> int:
    """Pushes with faults; returns the bytes that went up."""
    root = place.fresh()
    opened = place.transport(root)
    opened.head()
    place.proxy.again(faults)
    move(source, opened, "heads/main")
    went = place.proxy.up
    place.proxy.again()
    assert content(root) == content(source)
    return went


def check_fetch(place: Place, source: Repository, copy: Path, faults: Faults) -> int:
    """Fetches with faults; returns the bytes that came down."""
    root = place.fresh()
    move(source, place.transport(root), "heads/main")
    opened = place.transport(root)
    opened.head()
    place.proxy.again(faults)
    with Repository.init(copy) as repo:
        move(opened, repo, "heads/main")
        came = place.proxy.down
        place.proxy.again()
        assert content(repo) == content(source)
    return came


@pytest.mark.parametrize("at", points(4))
def test_a_push_goes_on_at_the_byte_at_which_it_was_cut(
    place: Place, source: Repository, at: int
) -> None:
    whole = check_push(place, source, Faults())
    assert check_push(place, source, Faults(up=at)) < whole + 200_000
    check_push(place, source, Faults(down=at % 900 + 1))


@pytest.mark.parametrize("at", points(4))
def test_a_fetch_goes_on_at_the_byte_at_which_it_was_cut(
    place: Place, source: Repository, tmp_path: Path, at: int
) -> None:
    whole = check_fetch(place, source, tmp_path / "a", Faults())
    assert check_fetch(place, source, tmp_path / "b", Faults(down=at)) < whole + 90_000


@pytest.mark.long
@pytest.mark.parametrize("at", points(100))
def test_cuts_at_many_points(place: Place, source: Repository, tmp_path: Path, at: int) -> None:
    check_push(place, source, Faults(up=at))
    check_fetch(place, source, tmp_path / "b", Faults(down=at))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_answer_that_gets_lost_is_asked_for_again(
    place: Place, source: Repository, tmp_path: Path, number: int
) -> None:
    check_push(place, source, Faults(lost=number))
    check_fetch(place, source, tmp_path / "b", Faults(lost=number))


def test_a_slow_connection_is_waited_for(place: Place, source: Repository, tmp_path: Path) -> None:
    check_push(place, source, Faults(drip=0.001, piece=8 << 10))
    check_fetch(place, source, tmp_path / "b", Faults(drip=0.001, piece=8 << 10))


def test_a_busy_server_is_waited_for(place: Place, source: Repository, tmp_path: Path) -> None:
    check_push(place, source, Faults(refused=3))
    check_fetch(place, source, tmp_path / "b", Faults(refused=3))


def test_a_server_that_stays_away_is_named(
    place: Place, source: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.remote.transports.http.PAUSES", (0.01, 0.01))
    root = place.fresh()
    with Proxy(place.address) as proxy:
        opened = transport(f"http://127.0.0.1:{proxy.port}/{root.name}", place.token)
        opened.head()
    with pytest.raises(RemoteUnreachable, match="does not answer: connection refused"):
        move(source, opened, "heads/main")


@pytest.mark.parametrize("count", [2, 16])
def test_pushers_at_once_to_branches_of_their_own(place: Place, tmp_path: Path, count: int) -> None:
    root = place.fresh()
    failures: list[Exception] = []

    def push(number: int) -> None:
        try:
            with Repository.init(tmp_path / f"{number}") as repo:
                record(repo, 100 + number)
                move(repo, place.transport(root), f"heads/n{number}")
        except Exception as error:
            failures.append(error)

    _together(push, count)
    assert failures == []
    with Repository.open(root) as repo:
        for number in range(count):
            assert len(list(repo.log(f"n{number}"))) == 1
        assert repo.storage.fsck(full=True).sound


def test_pushers_at_once_to_one_branch(place: Place, tmp_path: Path) -> None:
    root = place.fresh()
    won: list[int] = []
    refused: list[Exception] = []

    def push(number: int) -> None:
        with Repository.init(tmp_path / f"{number}") as repo:
            record(repo, 200 + number)
            try:
                move(repo, place.transport(root), "heads/main")
                won.append(number)
            except RefConflict as error:
                refused.append(error)

    _together(push, 4)
    assert len(won) >= 1 and len(won) + len(refused) == 4
    with Repository.open(root) as repo:
        assert len(list(repo.log("main"))) == 1


@pytest.mark.long
def test_pushers_at_once_beside_a_gc(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, done, failures = place.fresh(), threading.Event(), list[Exception]()
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", place.token)

    def push(number: int) -> None:
        try:
            with Repository.init(tmp_path / f"{number}") as repo:
                repo.remotes.add("origin", place.url(root))
                repo.rename_branch("main", f"n{number}")
                for value in range(4):
                    record(repo, 1000 + 10 * number + value)
                    repo.push()
        except Exception as error:
            failures.append(error)

    def collect() -> None:
        while not done.wait(0.1):
            with Repository.open(root) as repo:
                repo.storage.gc()

    collector = threading.Thread(target=collect)
    collector.start()
    _together(push, 16)
    done.set()
    collector.join()
    assert failures == []
    with Repository.open(root) as repo:
        assert [len(list(repo.log(f"n{number}"))) for number in range(16)] == [4] * 16
        assert repo.storage.fsck(full=True).sound


def _together(function: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
