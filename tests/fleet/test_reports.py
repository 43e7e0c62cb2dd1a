"""What nodes report: queued beside their file, given once, answered for any moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from blake3 import blake3

from mvc.api.node_status import nodes
from mvc.errors import HistoryMissing, InvalidName, RemoteRefused, UnknownTarget
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.remote.transport import Transport
from mvc.remote.transports.opening import open_transport
from mvc.repo.statements.live import Deployed
from mvc.serving.reports import QUEUE, Reports
from mvc.testing.process import FixedClock, killed, open_repository
from tests.histories import CheckedHistory

DAY = 24 * 3600 * 10**9
START = 1_750_000_000_000_000_000


class Server:
    """A repository with some versions, through a transport in this process."""

    def __init__(self, root: Path, versions: int = 3) -> None:
        self.root = root
        self.clock = FixedClock(START, step_ns=1)
        history = CheckedHistory(root, versions, clock=self.clock)
        self.versions = history.ids

    @contextmanager
    def transport(self) -> Iterator[Transport]:
        with closing(open_transport(str(self.root))) as transport:
            yield transport

    def deployments(self, target: str) -> list[Deployed]:
        with closing(open_repository(self.root)) as repo:
            return list(repo.deployments(target))

    def live(self, node: str, at: int | None = None) -> CommitId:
        with closing(open_repository(self.root)) as repo:
            return repo.live(f"nodes/{node}/prod", at=at).commit


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "server")


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    (tmp_path / "beside").mkdir()
    return Reports(tmp_path / "beside", "7")


def test_a_report_says_what_a_node_served_when(server: Server, reports: Reports) -> None:
    first, second, _ = server.versions
    reports.served(first, "prod", START + 5)
    reports.served(second, "prod", START + 50)
    with server.transport() as transport:
        reports.send(transport)
    assert len(reports.waiting) == 0
    assert server.live("7", START + 49) == first
    assert server.live("7", START + 50) == server.live("7") == second


def test_what_is_said_again_counts_once(server: Server, reports: Reports) -> None:
    """After a kill between the swap and the note the follower says it again."""
    for moment in (5, 90, 91):
        reports.served(server.versions[0], "prod", START + moment)
    with server.transport() as transport:
        reports.send(transport)
        reports.served(server.versions[0], "prod", START + 200)
        assert len(reports.waiting) == 0


def test_nodes_says_who_serves_what(server: Server, reports: Reports) -> None:
    reports.served(server.versions[1], "prod", START + 50)
    with server.transport() as transport:
        reports.send(transport)
    with closing(open_repository(server.root)) as repo:
        (status,) = nodes(repo)
        assert (status.node, status.target, status.commit) == ("7", "prod", server.versions[1])
        assert (status.live, status.behind) == (server.versions[2], 1)
        assert repo.targets() == ["prod"]
        assert [d.target for d in repo.deployments(rev=server.versions[1])] == ["prod"]


def test_a_name_has_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="cannot contain '/'"):
        Reports(tmp_path, "site/7")


@pytest.fixture
def queue(tmp_path: Path, reports: Reports, server: Server) -> Path:
    """The queue of a node that has served all versions, one after the other."""
    for number, version in enumerate(server.versions):
        reports.served(version, "prod", START + number)
    return tmp_path / "beside" / QUEUE


def served(server: Server) -> list[CommitId]:
    with closing(open_repository(server.root)) as repo, suppress(UnknownTarget):
        return [each.commit for each in repo.deployments("nodes/7/prod")]
    return []


def test_a_damaged_line_costs_one_report(server: Server, reports: Reports, queue: Path) -> None:
    data = bytearray(queue.read_bytes())
    data[data.index(b"\n") + 30] ^= 1
    queue.write_bytes(data)
    assert len(reports.waiting) == 2
    with server.transport() as transport:
        reports.send(transport)
    assert served(server) == [server.versions[0], server.versions[2]]


def test_a_torn_end_is_cut(reports: Reports, queue: Path) -> None:
    data = queue.read_bytes()
    for size in range(len(data)):
        queue.write_bytes(data[:size])
        assert len(reports.waiting) == data[: size + 1].count(b"\n")


def test_what_another_wrote_there_is_not_sent(
    server: Server, reports: Reports, queue: Path
) -> None:
    """A line that says that something else went live."""
    text = queue.read_bytes().splitlines()[0].partition(b" ")[2].replace(b"nodes/7/prod", b"prod")
    queue.write_bytes(b"%s %s\n" % (blake3(text).hexdigest(8).encode(), text))
    before = len(server.deployments("prod"))
    with server.transport() as transport:
        reports.send(transport)
    assert len(server.deployments("prod")) == before


@pytest.mark.parametrize("number", range(12))
def test_a_kill_loses_no_report(number: int, server: Server, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()

    def serve(fs: FileSystem, since: int = 0) -> None:
        reports = Reports(tmp_path / "beside", "7", fs=fs)
        for at, version in list(enumerate(server.versions))[since:]:
            reports.served(version, "prod", START + at)

    killed(serve, lambda call, *_: call == number)
    noted = len(Reports(tmp_path / "beside", "7").waiting)
    serve(FileSystem(), max(0, noted - 1))  # the follower says what it serves once more
    with server.transport() as transport:
        Reports(tmp_path / "beside", "7").send(transport)
    assert served(server) == server.versions


def test_what_is_refused_stays_and_the_others_go(server: Server, reports: Reports) -> None:
    unknown = CommitId(bytes(32))
    for number, version in enumerate([server.versions[0], unknown, server.versions[1]]):
        reports.served(version, "prod", START + number)
    for _ in range(2):
        with (
            server.transport() as transport,
            pytest.raises(HistoryMissing, match="this repository lacks"),
        ):
            reports.send(transport)
        assert len(reports.waiting) == 1
    assert served(server) == server.versions[:2]


def test_however_many_are_refused_the_others_go(
    server: Server, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each call is a process of its own, and some are accepted only later."""
    monkeypatch.setattr("mvc.serving.reports.AT_ONCE", 16)
    missing = [CommitId(number.to_bytes(32)) for number in range(1, 101)]
    later = Server(tmp_path / "later", 4).versions[-1]
    for number, version in enumerate([*missing, later, server.versions[0]]):
        reports.served(version, "prod", START + number)

    def send() -> None:
        with (
            server.transport() as transport,
            pytest.raises(HistoryMissing, match="this repository lacks"),
        ):
            Reports(tmp_path / "beside", "7").send(transport)

    for _ in range(8):
        send()
    assert served(server) == [server.versions[0]] and len(reports.waiting) == 101
    with closing(open_repository(server.root)) as repo:
        repo.remotes.add("later", tmp_path / "later")
        repo.fetch("later")
    for _ in range(8):
        send()
    assert served(server) == [later, server.versions[0]] and len(reports.waiting) == 100


def test_the_oldest_go_for_newer_ones(
    server: Server, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.serving.reports.MOST", 2)
    for number, version in enumerate(server.versions):
        reports.served(version, "prod", START + number)
    with server.transport() as transport:
        reports.send(transport)
    assert served(server) == server.versions[1:]


def test_a_clock_that_was_far_ahead(server: Server, reports: Reports) -> None:
    first, second, third = server.versions
    reports.served(first, "prod", START)
    reports.served(second, "prod", START + 4000 * DAY)
    with server.transport() as transport, pytest.raises(RemoteRefused, match="ahead"):
        reports.send(transport)
    reports.served(third, "prod", START + 5)
    with server.transport() as transport:
        reports.send(transport)
    assert served(server) == [first, third]


def test_a_clock_that_is_set_back(server: Server, reports: Reports) -> None:
    """What is served last is what the node serves from then on."""
    for at, version in zip((0, 600, 30), server.versions, strict=True):
        reports.served(version, "prod", START + at)
    with server.transport() as transport:
        reports.send(transport)
    assert server.live("7", START + 599) == server.versions[0]
    assert server.live("7", START + 601) == server.live("7") == server.versions[2]
