"""States that travel later than their versions, or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import (
    RemoteUnreachable,
    StateForgotten,
    UnknownRevision,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.testing import FixedClock, open_quietly
from tests.fleet.following import following as follower
from tests.remote.kit.places import KINDS, place
from tests.remote.kit.team import Team


def state(value: float) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7).standard_normal((64, 64)).astype(np.float32)
    return {"w": random + np.float32(value), "b": np.full(64, value, np.float32)}


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Team]:
    """A team with seven versions."""
    made = Team(tmp_path, {f"v{i}": state(i) for i in range(7)}, bob=False)
    made.ada.deploy(made.ids[2], "prod")
    made.ada.push()
    yield made
    made.close()


def is_right(repo: Repository, line: Team, number: int) -> bool:
    read = repo.checkout(line.ids[number], path="model.safetensors")
    return all(np.array_equal(read[name], value) for name, value in state(number).items())


def kept(repo: Repository, line: Team) -> list[int]:
    """The numbers of the versions whose states are here."""
    return [i for i, id_ in enumerate(line.ids) if not isinstance(repo.availability(id_), Gone)]


def absent(error: pytest.ExceptionInfo[StateForgotten], id_: CommitId, remote: str) -> bool:
    return f"'mvc fetch {remote} {id_.short}' fetches the state" in str(error.value.hint)


@pytest.mark.parametrize(
    ("states", "here"),
    [("all", [0, 1, 2, 3, 4, 5, 6]), ("none", []), ("live", [2]), ("last:2", [2, 5, 6])],
)
def test_history_is_whole_and_states_are_those_that_were_asked_for(
    line: Team, states: str, here: list[int]
) -> None:
    repo = line.clone("c", states=states)
    assert [entry.commit.message for entry in repo.log()] == [f"v{i}" for i in range(6, -1, -1)]
    assert kept(repo, line) == here
    assert all(is_right(repo, line, number) for number in here)
    assert repo.live("prod").commit == line.ids[2]
    assert repo.storage.fsck(full=True).sound
    assert (repo.root / "model.safetensors").exists() == (6 in here)


def test_a_state_is_fetched_later_and_is_here_again(line: Team) -> None:
    repo = line.clone("c", states="last:1")
    with pytest.raises(StateForgotten) as error:
        repo.checkout(line.ids[3])
    assert absent(error, line.ids[3], "origin")
    done = repo.fetch("origin", [line.ids[3], str(line.ids[1]), "main"])
    assert (done.versions, kept(repo, line)) == (2, [1, 2, 3, 6])
    assert all(is_right(repo, line, number) for number in (1, 2, 3, 6))
    before = repo.handle.store.fresh().position
    assert not repo.fetch("origin", [line.ids[3]]).is_news
    assert repo.handle.store.fresh().position == before
    assert repo.storage.fsck(full=True).sound
    repo.storage.gc(grace="0")
    assert is_right(repo, line, 3) and repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_live_comes_with_its_state(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as remote, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", remote.url)
        ids = [ada.commit(state(i)).id for i in range(4)]
        ada.deploy(ids[1], "prod")
        ada.push()

        def held() -> list[int]:
            assert bob.storage.fsck(full=True).sound
            here = [i for i, id_ in enumerate(ids) if not isinstance(bob.availability(id_), Gone)]
            for i in here:
                assert np.array_equal(bob.checkout(ids[i])["w"], state(i)["w"])
            return here

        with mvc.clone(remote.url, tmp_path / "bob", states="live") as bob:
            assert held() == [1]
            assert not bob.fetch().is_news
            ids.append(ada.commit(state(4), deploy="edge").id)
            ids.append(ada.commit(state(5)).id)
            ada.deploy(ids[3], "prod")
            ada.push()
            done = bob.fetch()
            assert (done.versions, held()) == (3, [1, 3, 4])  # two new ones, and the state of one
            bob.storage.gc(grace="0")
            assert held() == [1, 3, 4]
            ada.deploy(ids[0], "prod")
            ada.push()
            bob.fetch(states="none")
            assert held() == [1, 3, 4]
            bob.fetch(states="last:1")
            assert held() == [0, 1, 3, 4]
            assert np.array_equal(bob.checkout(target="prod")["w"], state(0)["w"])


def test_what_is_live_of_all_that_was_deployed(line: Team) -> None:
    now = datetime.now(UTC)
    line.ada.deploy(line.ids[0], "edge", at=now - timedelta(hours=2))
    line.ada.deploy(line.ids[1], "edge", at=now + timedelta(hours=2))
    line.ada.deploy(line.ids[3], "lab")
    line.ada.deploy(line.ids[4], "lab")
    line.ada.retract(None, "lab")
    line.ada.push()
    with follower(line.url, "edge", line.root / "node.safetensors", name="7") as node:
        node.poll()
    line.server.deploy(line.ids[5], "edge", at=now - timedelta(hours=1))
    repo = line.clone("c", states="live", nodes="true")
    assert kept(repo, line) == [2, 3, 5]  # what node 7 serves is live on no target
    later = FixedClock(time.time_ns() + 3 * 3600 * 10**9)
    with open_quietly(repo.root, clock=later) as tomorrow:
        assert tomorrow.live("edge").commit == line.ids[1]
        tomorrow.fetch()  # of which nothing tells but the time
    assert kept(repo, line) == [1, 2, 3, 5]


def test_what_is_live_and_nobody_has(line: Team) -> None:
    repo = line.clone("c", states="live")
    line.server.storage.forget(keep_last=1)
    line.server.storage.gc(grace="0")
    line.ada.deploy(line.ids[4], "prod")
    line.ada.deploy(line.ids[3], "lab")
    line.ada.push()
    assert repo.fetch().targets == ("lab", "prod")
    assert kept(repo, line) == [2]
    assert not repo.fetch().is_news
    line.ada.push(states=line.ids[3:5])
    line.ada.storage.forget(line.ids[3])
    assert repo.fetch().is_news
    line.ada.push()
    repo.fetch()
    assert kept(repo, line) == [2, 4]


def test_what_a_rule_forgot_comes_back_too(line: Team) -> None:
    repo = line.clone("c")
    repo.storage.forget(keep_last=2)
    repo.storage.gc(grace="0")
    assert kept(repo, line) == [2, 5, 6]  # 2 is live
    with pytest.raises(StateForgotten) as error:
        repo.diff(line.ids[0], line.ids[6])
    assert absent(error, line.ids[0], "origin")
    repo.fetch(versions=line.ids)
    assert kept(repo, line) == list(range(7))
    assert all(is_right(repo, line, number) for number in range(7))
    assert repo.storage.fsck(full=True).sound


def test_what_was_forgotten_by_name_does_not(line: Team) -> None:
    repo = line.clone("c")
    repo.storage.forget(line.ids[4])
    with pytest.raises(StateForgotten) as error:
        repo.checkout(line.ids[4])
    assert "mvc fetch" not in str(error.value.hint)
    assert getattr(repo.availability(line.ids[4]), "way", None) is None
    with pytest.raises(StateForgotten, match="forgotten by name") as error:
        repo.fetch("origin", [line.ids[4]])
    assert f"'mvc forget --list {line.ids[4].short}'" in str(error.value.hint)


def test_a_remote_that_lacks_it_as_well(line: Team) -> None:
    repo = line.clone("c", states="last:1")
    with Repository.open(line.url) as server:
        server.storage.forget(keep_last=1)
        server.storage.gc(grace="0")
    said = rf"origin lacks the state, too: the state of version {line.ids[3].short} was forgotten"
    for _ in range(2):
        with pytest.raises(StateForgotten, match=said):
            repo.fetch("origin", [line.ids[3]])
    assert kept(repo, line) == [2, 6]


def test_a_lazy_remote_is_asked_for_one_version_at_a_time(line: Team) -> None:
    repo = line.clone("c", states="none", lazy="true")
    assert kept(repo, line) == []
    assert is_right(repo, line, 2)
    assert kept(repo, line) == [2]
    assert repo.diff(line.ids[0], line.ids[1]).files
    assert kept(repo, line) == [0, 1, 2]
    repo.log("HEAD", mvc.LogOptions(relations=True), limit=7)
    mvc.write_report(repo)
    assert kept(repo, line) == [0, 1, 2]  # what can do without a state fetches none
    repo.switch("side", create=True, start=line.ids[4])
    assert kept(repo, line) == [0, 1, 2, 4]
    assert np.array_equal(repo.checkout(target="prod")["w"], state(2)["w"])
    repo.deploy(line.ids[5], "prod")
    assert kept(repo, line) == [0, 1, 2, 4, 5]
    assert [commit.id for commit, _ in repo.iter_versions()] == line.ids[:5]
    assert kept(repo, line) == [0, 1, 2, 3, 4, 5]
    assert repo.storage.fsck(full=True).sound


def test_a_follower_fetches_what_is_live(line: Team) -> None:
    repo = line.clone("c", states="none", lazy="true")
    model = torch.nn.ParameterDict({name: torch.zeros(a.shape) for name, a in state(0).items()})
    with mvc.Follower(repo, "prod", mvc.ModelSink(model)) as follower:
        first = follower.poll()
        assert first is not None and first.commit == line.ids[2]
        repo.deploy(line.ids[5], "prod")
        assert follower.poll() is not None
    assert np.array_equal(model["w"].detach(), state(5)["w"])
    assert kept(repo, line) == [2, 5]


def test_a_lazy_remote_that_is_away(line: Team) -> None:
    repo = line.clone("c", states="none", lazy="true")
    (line.root / "server").rename(line.root / "away")
    with pytest.raises(RemoteUnreachable):
        repo.checkout(line.ids[2])
    assert list(repo.log(limit=1))
    repo.remotes.add("mirror", line.root / "away", lazy="true")
    assert is_right(repo, line, 3)  # another one has it
    (line.root / "away").rename(line.root / "server")
    assert is_right(repo, line, 2)


def test_a_commit_onto_a_version_that_is_not_here(line: Team) -> None:
    repo = line.clone("c", states="none")
    with pytest.raises(StateForgotten) as error:
        repo.commit(state(9))
    assert absent(error, line.ids[6], "origin")
    lazy = line.clone("lazy", states="none", lazy="true")
    made = lazy.commit(state(9)).id
    assert lazy.version(made).parents == (line.ids[6],)
    assert kept(lazy, line) == [6]
    lazy.push()
    with Repository.open(line.url) as server:
        assert np.array_equal(server.checkout(made)["w"], state(9)["w"])
        assert server.storage.fsck(full=True).sound


def test_states_are_pushed_to_who_lacks_them(line: Team) -> None:
    repo = line.clone("c")
    with Repository.open(line.url) as server:
        server.storage.forget(keep_last=1)
        server.storage.gc(grace="0")
        assert kept(server, line) == [2, 6]
        assert not repo.push().versions
        repo.push(states=[line.ids[0], line.ids[5], line.ids[6]])
        assert kept(server, line) == [0, 2, 5, 6]
        assert all(is_right(server, line, number) for number in (0, 2, 5, 6))
        assert server.storage.fsck(full=True).sound
        before = server.handle.store.fresh().position
        again = repo.push(states=[line.ids[5], line.ids[0]])
        assert (again.is_news, again.versions, again.bytes) == (False, 0, 0)
        assert server.handle.store.fresh().position == before
        mine = repo.commit(state(8)).id
        with pytest.raises(UnknownRevision, match=mine.short):
            repo.push(states=[mine])


def test_a_version_that_neither_side_has_whole_is_refused(line: Team) -> None:
    repo, other = line.clone("c", states="last:3"), line.root / "backup"
    backup = Repository.init(other, bare=True)
    repo.remotes.add("backup", str(other))
    said = "neither this repository nor backup has"
    for _ in range(2):
        with pytest.raises(StateForgotten, match=said) as error:
            repo.push("backup")
        assert "--partial" in str(error.value.hint)
    with pytest.raises(StateForgotten, match=said):
        repo.push("backup", dry_run=True)
    assert not backup.refs()
    repo.push("backup", partial=True)
    assert kept(backup, line) == [2, 4, 5, 6]
    assert backup.storage.fsck(full=True).sound
    repo.fetch("origin", line.ids[:2])
    repo.push("backup", states=line.ids[:2])
    assert kept(backup, line) == [0, 1, 2, 4, 5, 6]
    assert is_right(backup, line, 1)
    with pytest.raises(StateForgotten):
        repo.push("backup", states=[line.ids[3]])
    backup.close()


def test_arguments(line: Team) -> None:
    repo = line.clone("c")
    with pytest.raises(WrongUsage, match="states are all, none, live or last:N"):
        repo.fetch(states="some")
    with pytest.raises(WrongUsage, match="does not combine with"):
        repo.fetch("origin", ["main"], states="all")
    with pytest.raises(WrongUsage, match="does not combine with"):
        repo.push("origin", ["main"], states=["main"])


def test_a_repository_is_read_without_one_here(line: Team, tmp_path: Path) -> None:
    with mvc.visit(line.url) as repo:
        folder = repo.root
        assert [entry.commit.message for entry in repo.log(limit=2)] == ["v6", "v5"]
        assert kept(repo, line) == []
        assert np.array_equal(repo.checkout("main~3")["w"], state(3)["w"])
        repo.checkout(target="prod", to=tmp_path / "live.safetensors")
        assert kept(repo, line) == [2, 3]
    assert not folder.exists() and not folder.parent.exists()
    with mvc.visit(line.url) as repo:
        assert repo.identify(tmp_path / "live.safetensors")[0].commit == line.ids[2]
    with Repository.open(line.url) as server:
        assert {each.entry.operation for each in server.operations()} == {"init", "receive"}
    with pytest.raises(RemoteUnreachable), mvc.visit(str(tmp_path / "nowhere")):
        pass


def test_what_never_came_is_not_counted_as_forgotten(line: Team) -> None:
    with Repository.open(line.root / "ada") as author:
        author.storage.forget(line.ids[1])
        author.push()
    here = line.clone("here", states="last:2")
    stats, report = here.storage.stats(), here.storage.fsck()
    assert (stats.versions, stats.forgotten, stats.absent) == (7, 1, 3)
    assert (report.versions, report.forgotten, report.absent) == (7, 1, 3)
    (receipt,) = here.storage.receipts()
    assert [state.came for state in receipt.states] == [False]
    here.fetch(versions=[line.ids[0]])
    assert here.storage.stats().absent == here.storage.fsck().absent == 2
    here.storage.forget(keep_last=2)
    after = here.storage.stats()
    assert (after.forgotten, after.absent) == (2, 2)
    here.storage.forget(line.ids[3])
    assert here.storage.stats().absent == here.storage.fsck().absent == 1
    assert "1 without their state (absent here)" in mvc.write_report(here)


def test_weights_that_are_here_arrive_as_a_delta_from_their_own_delta(tmp_path: Path) -> None:
    """The remote decodes the base from the very object that the received delta restores."""
    first = state(0)
    second = {"w": first["w"].copy(), "b": state(1)["b"]}
    second["w"][0] += 1
    with Repository.init(tmp_path / "remote", bare=True):
        pass
    with Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", (tmp_path / "remote").as_uri())
        forgotten = ada.commit(first).id
        ada.commit(second)
        ada.push("origin", ["main"])
    with Repository.open(tmp_path / "remote") as remote:
        remote.storage.forget([forgotten])  # without gc: its bytes stay
    with Repository.init(tmp_path / "ben") as ben:
        ben.remotes.add("origin", (tmp_path / "remote").as_uri())
        ben.fetch("origin", states="last:1")
        ben.merge("origin/main")
        third = {"w": first["w"], "b": state(2)["b"]}
        id_ = ben.commit(third).id
        ben.push("origin", ["main"])
    with Repository.open(tmp_path / "remote") as remote:
        assert remote.storage.fsck(full=True).problems == ()
        assert all(np.array_equal(remote.checkout(id_)[name], third[name]) for name in third)
        remote.storage.gc(grace="0")
        assert np.array_equal(remote.checkout(id_)["w"], third["w"])
