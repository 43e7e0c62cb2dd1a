"""Who serves what, behind every transport; and where reports do not count."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api import Gone
from mvc.api.node_status import SILENT_NS
from mvc.api.repository import Repository
from mvc.cli.main import run
from mvc.errors import InvalidName, UnknownTarget
from mvc.ids import CommitId
from mvc.remote.transports.opening import open_transport
from mvc.serving.reports import Reports
from mvc.testing.process import FixedClock
from tests.fleet.following import follow
from tests.remote.kit.places import Place, place

MINUTE = 60 * 10**9
TRANSPORTS = ["folder", "ssh", "http", "bucket"]


def weights(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).random(500, np.float32)}


@dataclass
class Fleet:
    """``owner`` has pushed three versions to the remote, the last one live on prod."""

    remote: Place
    owner: Repository
    folder: Path
    versions: list[CommitId]

    def report(
        self, node: str, commit: CommitId, *, off_ns: int = 0, at: int | None = None
    ) -> None:
        """A node, whose clock is off, reports what it serves since a moment of its clock."""
        now = time.time_ns() + off_ns
        (self.folder / node).mkdir(exist_ok=True)
        reports = Reports(self.folder / node, node, clock=FixedClock(now))
        reports.served(commit, "prod", now if at is None else at)
        with closing(
            open_transport(
                self.owner.remotes.find("origin"),
                self.owner.handle.store,
                self.owner.handle.config,
            )
        ) as transport:
            reports.send(transport)
        assert not reports.waiting


@contextmanager
def a_fleet(kind: str, folder: Path) -> Iterator[Fleet]:
    with place(kind, folder / "there") as remote, Repository.init(folder / "owner") as owner:
        owner.remotes.add("origin", remote.url)
        versions = [owner.commit(weights(seed), deploy="prod").id for seed in range(3)]
        owner.push("origin")
        yield Fleet(remote, owner, folder, versions)


@pytest.fixture(params=TRANSPORTS)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with a_fleet(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def folder_fleet(tmp_path: Path) -> Iterator[Fleet]:
    with a_fleet("folder", tmp_path) as made:
        yield made


def test_nodes_of_a_remote(
    fleet: Fleet, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = fleet.versions
    fleet.report("10", third)
    fleet.report("9", first, off_ns=-9 * MINUTE, at=time.time_ns() - 60 * MINUTE)
    monkeypatch.chdir(fleet.owner.root)
    capfd.readouterr()
    assert run(["live", "--nodes", "--remote", "origin", "prod", "--json"]) == 0
    nine, ten = json.loads(capfd.readouterr().out)["nodes"]
    assert (nine["node"], nine["commit"], nine["behind"]) == ("9", str(first), 2)
    assert (ten["node"], ten["commit"], ten["behind"]) == ("10", str(third), 0)
    assert nine["live"] == str(third)
    if fleet.remote.kind != "bucket":  # which has no clock
        assert nine["clock_off"] and abs(nine["clock_ahead_ms"] + 9 * 60_000) < 30_000
    assert not ten["clock_off"]
    assert run(["live", "--nodes", "--remote", "origin"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["node", "9", "10"]
    assert "2 deployments" in lines[1]
    assert run(["checkout", "--remote", fleet.remote.url, "--target", "nodes/9/prod",
                "-o", str(fleet.folder / "nine.safetensors")]) == 0  # fmt: skip
    assert (fleet.folder / "nine.safetensors").stat().st_size


def test_reports_do_not_travel_unless_asked(fleet: Fleet) -> None:
    fleet.report("7", fleet.versions[0])
    with mvc.clone(fleet.remote.url, fleet.folder / "plain") as plain:
        assert not mvc.nodes(plain)
        plain.fetch("origin")
        assert not mvc.nodes(plain)
        assert plain.fetch("origin", nodes=True).operations
        assert [each.node for each in mvc.nodes(plain)] == ["7"]
        fleet.report("8", fleet.versions[1])
        plain.fetch("origin")
        assert [each.node for each in mvc.nodes(plain)] == ["7"]
        plain.fetch("origin", nodes=True)
        assert [(n.node, n.commit) for n in mvc.nodes(plain)] == [
            ("7", fleet.versions[0]), ("8", fleet.versions[1]),
        ]  # fmt: skip
        assert plain.fetch("origin", nodes=True).operations == 0
        # What was fetched is not pushed on.
        Repository.init(fleet.folder / "other", bare=True).close()
        plain.remotes.add("other", fleet.folder / "other")
        plain.push("other")
    with Repository.open(fleet.folder / "other") as other:
        assert not mvc.nodes(other) and other.targets() == ["prod"]
    with mvc.clone(fleet.remote.url, fleet.folder / "full", nodes=True) as full:
        assert [each.node for each in mvc.nodes(full)] == ["7", "8"]


def test_fetched_reports_are_as_old_as_the_fetch(
    folder_fleet: Fleet, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_fleet.report("7", folder_fleet.versions[0])
    folder_fleet.owner.fetch("origin", nodes=True)
    folder_fleet.report("7", folder_fleet.versions[1])
    monkeypatch.chdir(folder_fleet.owner.root)
    capfd.readouterr()
    note = "reports to a remote: as of the last 'mvc fetch --nodes'; newer:"
    for words in (["--nodes"], ["--nodes", "prod"], ["nodes/7/prod"]):
        assert run(["live", *words]) == 0
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(note)
        for more in (["--remote", "origin"], ["--json"]):
            assert run(["live", *words, *more]) == 0
            assert note not in capfd.readouterr().err
    assert run(["live", "prod"]) == 0 and not capfd.readouterr().err


def test_a_node_that_has_not_reported(folder_fleet: Fleet) -> None:
    folder_fleet.report("7", folder_fleet.versions[0])
    with pytest.raises(UnknownTarget, match="no known report of a node on nodes/8/prod") as error:
        folder_fleet.owner.checkout(at="2026-01-01", target="nodes/8/prod")
    assert "'mvc live --nodes'" in str(error.value.hint)


def test_reports_count_nowhere_else(folder_fleet: Fleet) -> None:
    fleet = folder_fleet
    first = fleet.versions[0]
    before = fleet.remote.own(_answers, reads=True)
    fleet.report("7", fleet.versions[1])
    fleet.report("7", first)
    assert fleet.remote.own(_answers, reads=True) == before

    def check(repo: Repository) -> None:
        assert repo.live("nodes/7/prod").commit == first
        assert [d.commit for d in repo.deployments("nodes/7/prod")] == [fleet.versions[1], first]
        with pytest.raises(InvalidName, match="reserved for reports"):
            repo.deploy("HEAD", "nodes/7/prod")
        with pytest.raises(InvalidName):
            repo.rollback("nodes/7/prod")
        with pytest.raises(UnknownTarget):
            mvc.nodes(repo, "nowhere")

    fleet.remote.own(check)


def _answers(repo: Repository) -> object:
    stats = repo.storage.stats()
    return (
        [(e.id, e.deployments) for e in repo.log("main")],
        [(each.target, each.commit) for each in repo.live()],
        [d.target for d in repo.deployments()],
        repo.targets(),
        (stats.deployments, stats.targets),
    )


def test_what_a_node_serves_now_is_not_forgotten(folder_fleet: Fleet) -> None:
    fleet = folder_fleet
    first, second, _ = fleet.versions
    fleet.report("7", first)
    fleet.report("8", first)
    fleet.report("8", second)
    fleet.report("7", second)

    def forget(repo: Repository) -> list[CommitId]:
        repo.storage.forget(keep_last=1)
        return [each for each in fleet.versions if isinstance(repo.availability(each), Gone)]

    assert fleet.remote.own(forget) == [first]


def test_reports_stay_through_a_collection(folder_fleet: Fleet) -> None:
    fleet = folder_fleet
    for version in fleet.versions:
        fleet.report("7", version)

    def served(repo: Repository) -> object:
        return [(d.time_ns, d.commit) for d in repo.deployments("nodes/7/prod")], mvc.nodes(repo)[
            0
        ].commit

    before = fleet.remote.own(served)
    fleet.remote.own(lambda repo: (repo.storage.gc(grace="0"), repo.storage.repack()))
    assert fleet.remote.own(served) == before
    assert fleet.remote.own(lambda repo: repo.storage.fsck(full=True).sound)


def test_who_is_behind_for_long_is_silent(folder_fleet: Fleet) -> None:
    fleet = folder_fleet
    fleet.report("7", fleet.versions[0])
    fleet.report("8", fleet.versions[2])

    def later(repo: Repository) -> dict[str, bool]:
        return {each.node: each.silent_since_ns is not None for each in mvc.nodes(repo)}

    assert fleet.remote.own(later, reads=True) == {"7": False, "8": False}
    assert fleet.remote.root is not None
    clock = FixedClock(time.time_ns() + 2 * SILENT_NS)
    with Repository.open(fleet.remote.root, clock=clock) as repo:
        assert later(repo) == {"7": True, "8": False}


def test_a_retracted_report_does_not_count(folder_fleet: Fleet) -> None:
    fleet = folder_fleet
    fleet.report("7", fleet.versions[0])
    fleet.report("7", fleet.versions[1])
    fleet.remote.own(lambda repo: repo.retract(fleet.versions[1], "nodes/7/prod"))
    served = fleet.remote.own(lambda repo: mvc.nodes(repo)[0].commit, reads=True)
    assert served == fleet.versions[0]


@pytest.mark.parametrize("kind", ["folder", "http"])
def test_a_follower_reports(kind: str, tmp_path: Path) -> None:
    """Also after the target was rolled back."""
    with a_fleet(kind, tmp_path) as fleet:
        for _ in range(2):
            follow(fleet.remote.url, "prod", to=tmp_path / "model.safetensors", name="7", once=True)
            fleet.remote.own(lambda repo: repo.rollback("prod"))
        made = fleet.remote.own(lambda repo: repo.deployments("nodes/7/prod"), reads=True)
        assert [each.commit for each in made] == fleet.versions[:0:-1]
        (status,) = fleet.remote.own(lambda repo: mvc.nodes(repo), reads=True)
        assert (status.commit, status.behind) == (fleet.versions[1], 1)
