"""What one side remembers of the other: it covers what was read, proven by the chain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import HistoryMissing
from mvc.remote.transport import Place, RemoteHead, Slice
from mvc.remote.transports.folder import FolderTransport
from mvc.repo.lookup.availability import forgotten
from tests.remote.kit.team import Team


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((16, 16), value, np.float32)}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path, {"first": state(1), "second": state(2)})
    yield made
    made.close()


@pytest.mark.parametrize("said", ["deployment", "annotation", "tombstone"])
def test_what_is_recorded_during_a_fetch_is_pushed(
    team: Team, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Another process records it after a slice came, and before the fetch ends."""
    team.ada.deploy(team.ids[1], "prod")
    team.ada.push()
    team.bob.fetch()
    team.bob.push()
    team.ada.commit(state(3))
    team.ada.deploy("HEAD", "test")
    team.ada.push()
    real = FolderTransport.send

    def sending(transport: FolderTransport, wanted: object) -> Iterator[Slice]:
        yield from real(transport, wanted)
        with Repository.open(team.bob.root, discover=False) as other:
            if said == "deployment":
                other.deploy(team.ids[0], "prod")
            elif said == "annotation":
                other.annotate(team.ids[0], metrics={"loss": 1.5})
            else:
                other.storage.forget([team.ids[0]])

    with monkeypatch.context() as patched:
        patched.setattr(FolderTransport, "send", sending)
        team.bob.fetch()
    team.bob.pull()
    team.bob.push()
    team.server.handle.store.fresh()
    if said == "deployment":
        assert team.server.live("prod").commit == team.ids[0]
    elif said == "annotation":
        assert team.server.annotations(team.ids[0])
    else:
        assert forgotten(team.server.handle.store, team.ids[0]) is not None
    assert not team.bob.push().is_news


@pytest.mark.parametrize("verb", ["fetch", "push"])
def test_another_process_fetches_while_this_one_asks(
    team: Team, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    real = FolderTransport.head

    def head(transport: FolderTransport, after: Place | None = None) -> RemoteHead:
        answer = real(transport, after)
        monkeypatch.setattr(FolderTransport, "head", real)
        team.ada.commit(state(3))
        team.ada.push()
        with Repository.open(team.bob.root, discover=False) as other:
            other.fetch()
        return answer

    monkeypatch.setattr(FolderTransport, "head", head)
    getattr(team.bob, verb)()
    team.bob.fetch()
    assert team.bob.find("origin/main") == team.ada.find("main")


def answers(repo: Repository) -> dict[str, object]:
    """What is live, forgotten and there, by targets and versions."""
    found: dict[str, object] = {t: repo.live(t).commit for t in ("prod", "ada", "bob")}
    for entry in repo.log("HEAD", mvc.LogOptions(every=True)):
        found[entry.id.hex()] = forgotten(repo.handle.store, entry.id) is not None
    return found


def history(team: Team) -> Iterator[None]:
    """Ten stations: commits, deployments, a rollback, an annotation, a tombstone; both push."""
    ada, bob = team.ada, team.bob
    bob.branch("bobs")
    bob.switch("bobs")
    for number in range(10):
        ada.commit(state(10 + number))
        bob.commit(state(100 + number))
        ada.deploy("HEAD", "ada")
        bob.deploy("HEAD", "bob")
        if number % 3 == 0:
            ada.deploy("HEAD", "prod")
        if number == 7:
            ada.rollback("prod")
        if number == 8:
            ada.storage.forget(["HEAD~5"])
            bob.annotate("HEAD~1", metrics={"accuracy": 0.5})
        ada.push()
        bob.push()
        ada.fetch()
        bob.fetch()
        yield


@pytest.mark.parametrize("reversed_order", [False, True])
def test_a_server_put_back_to_each_of_ten_backups(tmp_path: Path, reversed_order: bool) -> None:
    """Somebody else goes on there until it has more operations than it ever had."""
    first = Team(tmp_path / "first", {"first": state(1), "second": state(2)})
    for number, _ in enumerate(history(first)):
        shutil.copytree(first.url, tmp_path / f"backup{number}")
    before = answers(first.server)
    length = first.server.handle.store.fresh().position.sequence
    first.close()
    for number in range(10):
        for name in ("server", "ada", "bob"):
            shutil.copytree(tmp_path / "first" / name, tmp_path / str(number) / name)
            for file in (tmp_path / str(number) / name / ".mvc").glob("remotes.yaml"):
                old, new = str(tmp_path / "first"), str(tmp_path / str(number))
                file.write_text(file.read_text().replace(old, new))
        shutil.rmtree(tmp_path / str(number) / "server")
        server = shutil.copytree(tmp_path / f"backup{number}", tmp_path / str(number) / "server")
        with mvc.clone(str(server), tmp_path / str(number) / "carol") as carol:
            carol.switch("carols", create=True)
            while carol.handle.store.fresh().position.sequence < length + 5:
                carol.commit(state(1000 + carol.handle.store.fresh().position.sequence))
            carol.push()
        with Repository.open(server, discover=False) as repo:
            assert repo.handle.store.fresh().position.sequence > length or number == 9
        for name in sorted(("ada", "bob"), reverse=reversed_order):
            with Repository.open(tmp_path / str(number) / name, discover=False) as clone:
                clone.push()
        for name in ("ada", "bob"):  # what stood on the other's version goes now
            with Repository.open(tmp_path / str(number) / name, discover=False) as clone:
                clone.fetch()
                clone.push()
        with Repository.open(server, discover=False) as repo:
            after = answers(repo)
            assert {key: after.get(key) for key in before} == before, number
            assert repo.storage.fsck(full=True).sound


def test_others_deployed_on_a_server_that_was_put_back(tmp_path: Path) -> None:
    """Their deployment stays live; a push names it where it has another one to send again."""
    first = Team(tmp_path / "first", {"first": state(1), "second": state(2)})
    for number, _ in enumerate(history(first)):
        shutil.copytree(first.url, tmp_path / f"backup{number}")
    before = answers(first.server)
    first.close()
    for number in range(10):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "first" / "ada", root / "ada")
        file = root / "ada/.mvc/remotes.yaml"
        file.write_text(file.read_text().replace(str(tmp_path / "first"), str(root)))
        server = shutil.copytree(tmp_path / f"backup{number}", root / "server")
        with mvc.clone(str(server), root / "carol") as carol:
            carol.switch("carols", create=True)
            theirs = carol.commit(state(5000), deploy="prod").id
            assert not carol.push().refused
        with (
            Repository.open(server, discover=False) as repo,
            Repository.open(root / "ada", discover=False) as ada,
        ):
            known = {each.id for each in repo.deployments("prod")}
            lacks = any(each.id not in known for each in ada.deployments("prod"))
            refused = ada.push().refused
            assert [(each.target, each.live) for each in refused] == [("prod", theirs)] * lacks
            assert repo.live("prod").commit == theirs
            ada.fetch()
            assert ada.find("origin/carols") == theirs
            assert [each.state for each in ada.remotes.unsent()] == ["conflict"] * lacks
            ada.deploy(str(before["prod"]), "prod", push=True)
            assert {name: answers(repo)[name] for name in ("prod", "ada")} == {
                name: before[name] for name in ("prod", "ada")
            }
            assert not ada.push().refused and not ada.remotes.unsent()


def test_a_push_accepts_a_remote_that_has_gone_back(team: Team, tmp_path: Path) -> None:
    shutil.copytree(team.url, tmp_path / "copy")
    for number in range(5):
        team.ada.commit(state(20 + number))
        team.ada.deploy("HEAD", "prod")
        team.ada.push()
    team.bob.pull()
    team.server.close()
    shutil.rmtree(team.url)
    shutil.copytree(tmp_path / "copy", team.url)
    with pytest.raises(HistoryMissing, match="rolled back") as caught:
        team.bob.fetch()
    assert "mvc push" in str(caught.value.hint)
    assert team.bob.push().versions == 5
    with Repository.open(team.url, discover=False) as server:
        assert server.live("prod").commit == team.ada.find("HEAD")
    team.bob.fetch()
    assert not team.bob.push().is_news
