"""What nodes report: queued beside their file, given once, answered for any moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mvc.fleet.reports import Reports
from mvc.ids import CommitId
from mvc.remote.door import Door
from mvc.remote.doors import open_door
from mvc.remote.merging import SentDeployment
from mvc.testing.history import History
from mvc.testing.process import FixedClock, open_repository

START = 1_750_000_000_000_000_000


class Server:
    """A repository with some versions, through a door in this process."""

    def __init__(self, root: Path, versions: int = 3) -> None:
        self.root = root
        self.clock = FixedClock(START, step_ns=1)
        history = History(root, versions, clock=self.clock)
        self.versions = history.ids

    @contextmanager
    def door(self) -> Iterator[Door]:
        with closing(open_door(str(self.root))) as door:
            yield door

    def live(self, node: str, at: int | None = None) -> CommitId:
        with closing(open_repository(self.root)) as repo:
            return repo.live(f"nodes/{node}/prod", at=at).commit


def deployed(commit: CommitId, target: str = "prod") -> SentDeployment:
    """A deployment as the remote tells it."""
    return SentDeployment(target, START, bytes(commit), bytes(16), START, START)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "server")


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    (tmp_path / "beside").mkdir()
    return Reports(tmp_path / "beside", "7")


def test_a_report_says_what_a_node_served_when(server: Server, reports: Reports) -> None:
    first, second, _ = server.versions
    reports.served(deployed(first), START + 5)
    reports.served(deployed(second), START + 50)
    with server.door() as door:
        reports.send(door)
    assert reports.waiting == 0
    assert server.live("7", START + 49) == first
    assert server.live("7", START + 50) == server.live("7") == second


def test_what_is_said_again_counts_once(server: Server, reports: Reports) -> None:
    """After a kill between the swap and the note the follower says it again."""
    for moment in (5, 90, 91):
        reports.served(deployed(server.versions[0]), START + moment)
    with server.door() as door:
        reports.send(door)
        reports.served(deployed(server.versions[0]), START + 200)
        assert reports.waiting == 0


def test_nodes_says_who_serves_what(server: Server, reports: Reports) -> None:
    reports.served(deployed(server.versions[1]), START + 50)
    with server.door() as door:
        reports.send(door)
    with closing(open_repository(server.root)) as repo:
        (status,) = repo.nodes()
        assert (status.node, status.target, status.commit) == ("7", "prod", server.versions[1])
        assert (status.live, status.behind) == (server.versions[2], 1)
        assert repo.targets() == ["prod"]
        assert [d.target for d in repo.deployments_of(server.versions[1])] == ["prod"]
