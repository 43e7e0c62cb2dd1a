"""What nodes report to a server at about the same time becomes one entry of its journal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mvc.api.node_status import nodes as states_of_nodes
from mvc.api.repository import Repository
from mvc.errors import HistoryMissing, RemoteRefused
from mvc.ids import CommitId
from mvc.remote.slices import NodeReport, Sent, encode_entries
from mvc.remote.transport import Slice
from mvc.serving.reports import Reports
from tests.fleet.test_reports import START
from tests.remote.kit.serving import token, transport
from tests.server.moving import answering, record, served_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A served folder whose repository ``models`` has two versions, the second live on prod."""
    served = served_folder(tmp_path / "served")
    with Repository.open(served / "models") as repo:
        record(repo, 0)
        record(repo, 1)
        repo.deploy("HEAD", "prod")
    return served


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with answering(folder, gather=0.5) as url:
        yield f"{url}/models"


def versions(folder: Path) -> list[CommitId]:
    with Repository.open(folder / "models") as repo:
        return [entry.id for entry in repo.log()][::-1]


def entries(folder: Path) -> int:
    with Repository.open(folder / "models") as repo:
        return sum(1 for _ in repo.operations())


def node(folder: Path, name: str, where: Path, commit: CommitId) -> tuple[Reports, str]:
    """A node that serves a version, and its token."""
    (where / name).mkdir()
    reports = Reports(where / name, name)
    reports.served(commit, "prod", START)
    return reports, token(folder, "read", f"deploy:nodes/{name}/*", name=name)


def test_reports_of_many_nodes_become_one_entry(folder: Path, url: str, tmp_path: Path) -> None:
    first, _ = versions(folder)
    before = entries(folder)
    nodes = [node(folder, str(number), tmp_path, first) for number in range(8)]

    def send(each: tuple[Reports, str]) -> int:
        with closing(transport(url, each[1])) as opened:
            each[0].send(opened)
        return len(each[0].waiting)

    with ThreadPoolExecutor(len(nodes)) as pool:
        assert list(pool.map(send, nodes)) == [0] * len(nodes)
    assert entries(folder) == before + 1
    with Repository.open(folder / "models") as repo:
        assert [each.node for each in states_of_nodes(repo)] == [str(number) for number in range(8)]
        assert {each.commit for each in states_of_nodes(repo)} == {first}


def test_what_one_node_may_not_say_holds_no_other_back(
    folder: Path, url: str, tmp_path: Path
) -> None:
    first, _ = versions(folder)
    good = node(folder, "good", tmp_path, first)
    unknown = node(folder, "bad", tmp_path, CommitId(bytes(32)))
    (tmp_path / "thief").mkdir()
    thief = (
        Reports(tmp_path / "thief", "good"),
        token(folder, "read", "deploy:nodes/thief/*", name="thief"),
    )
    thief[0].served(first, "prod", START + 5)

    def send(each: tuple[Reports, str]) -> type[Exception] | None:
        with closing(transport(url, each[1])) as opened:
            try:
                each[0].send(opened)
            except (HistoryMissing, RemoteRefused) as error:
                return type(error)
        return None

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(send, (good, unknown, thief))) == [None, HistoryMissing, RemoteRefused]
    assert [len(each[0].waiting) for each in (good, unknown, thief)] == [0, 1, 1]


def test_a_node_dates_no_report_of_another(folder: Path, url: str, tmp_path: Path) -> None:
    """Nor its own arrival: a report says what its clock says, and the server when it came."""
    first, _ = versions(folder)
    honest = node(folder, "8", tmp_path, first)
    forged = token(folder, "read", "deploy:nodes/7/*", name="7")
    now = time.time_ns()
    at = now + 20 * 3600 * 10**9
    claim = NodeReport("nodes/7/prod", bytes(first), START, at, arrived_ns=at)
    given = Slice(encode_entries([Sent(reports=(claim,))]), 0, ())

    def forge() -> None:
        with closing(transport(url, forged)) as opened:
            opened.receive(given)

    def send() -> None:
        with closing(transport(url, honest[1])) as opened:
            honest[0].send(opened)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda act: act(), (forge, send)))
    with Repository.open(folder / "models") as repo:
        seven, eight = states_of_nodes(repo)
    for each in (seven, eight):
        assert now < each.reported_ns < now + 60 * 10**9
    assert seven.ahead_ms is not None and abs(seven.ahead_ms - 20 * 3600 * 1000) < 60_000
    assert eight.ahead_ms is not None and abs(eight.ahead_ms) < 60_000
