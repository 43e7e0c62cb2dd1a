"""clone, fetch, push and pull between folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import (
    HistoryMissing,
    NotARepository,
    RefConflict,
    RemoteUnreachable,
    UnknownRevision,
    WouldOverwrite,
    WrongUsage,
)
from tests.remote.kit.team import Team


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((64, 64), value, np.float32), "b": np.arange(64, dtype=np.float32)}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path, {"first": state(1)})
    yield made
    made.close()


def tips(repo: Repository) -> dict[str, object]:
    return {ref.name: ref.commit for ref in repo.refs()}


def sound(repo: Repository) -> bool:
    return repo.storage.fsck(full=True).sound


def test_a_repository_is_shared_in_two_commands(team: Team) -> None:
    assert tips(team.server) == tips(team.bob) == {"main": team.ids[0]}
    assert team.bob.find("origin/main") == team.ids[0]
    assert np.array_equal(team.bob.checkout()["w"], state(1)["w"])
    assert all(map(sound, (team.server, team.bob)))


def test_new_versions_travel_on(team: Team) -> None:
    second = team.ada.commit(state(2)).id
    pushed = team.ada.push()
    assert (pushed.versions, [u.change for u in pushed.updates]) == (1, ["forward"])
    assert team.ada.find("origin/main") == second
    fetched = team.bob.fetch()
    assert (fetched.versions, [u.local for u in fetched.updates]) == (1, ["remotes/origin/main"])
    assert team.bob.head().commit == team.ids[0]
    pulled = team.bob.pull()
    assert (pulled.old, pulled.new, pulled.fetched.is_news) == (team.ids[0], second, False)
    assert np.array_equal(team.bob.checkout()["w"], state(2)["w"])
    assert sound(team.bob)


def test_nothing_new_is_one_trip(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    from mvc.remote.transports.folder import FolderTransport

    team.bob.fetch()
    before = team.bob.handle.store.fresh().position
    calls = list[str]()
    for name in ("head", "send", "receive"):
        real = getattr(FolderTransport, name)

        def noting(self: FolderTransport, *given: object, name: str = name, real=real) -> object:
            calls.append(name)
            return real(self, *given)

        monkeypatch.setattr(FolderTransport, name, noting)
    fetched = team.bob.fetch()
    assert (fetched.is_news, calls) == (False, ["head"])
    pushed = team.bob.push()
    assert (pushed.is_news, calls) == (False, ["head", "head"])
    assert team.bob.handle.store.fresh().position == before
    team.bob.commit(state(3))
    calls.clear()
    team.bob.push()
    assert calls == ["head", "receive"]
    calls.clear()
    team.ada.fetch()
    assert calls == ["head", "send"]


def test_who_is_behind_is_refused_and_nothing_moves(team: Team) -> None:
    team.ada.commit(state(2))
    team.ada.push()
    team.bob.commit(state(5))
    team.bob.branch("side")
    with pytest.raises(RefConflict, match=r"rejects main \(fetch first\); nothing was pushed") as e:
        team.bob.push(refs=["main", "side"])
    assert "'mvc switch -c NAME'" in str(e.value.hint)
    assert set(tips(team.server)) == {"main"}
    team.bob.fetch()
    with pytest.raises(RefConflict, match="non-fast-forward"):
        team.bob.push()
    with pytest.raises(RefConflict, match=r"diverged \(1 version here, 1 there\)"):
        team.bob.pull()
    assert team.bob.push(refs=["side"]).versions == 1


def test_force_moves_only_what_was_seen(team: Team) -> None:
    other = team.bob.commit(state(5)).id
    second = team.ada.commit(state(2)).id
    team.ada.push()
    with pytest.raises(RefConflict, match="stale info"):
        team.bob.push(force=True)
    team.bob.fetch()
    assert [u.change for u in team.bob.push(force=True).updates] == ["forced"]
    assert tips(team.server) == {"main": other}
    fetched = team.ada.fetch()
    assert [(u.change, u.old, u.new) for u in fetched.updates] == [("forced", second, other)]
    assert sound(team.server)


def test_branches_and_tags_are_deleted_and_pruned(team: Team) -> None:
    team.ada.branch("side")
    team.ada.tag("v1")
    team.ada.push(every=True)
    team.bob.fetch()
    assert team.bob.find("origin/side") == team.bob.find("v1") == team.ids[0]
    deleted = team.ada.push(delete=["side", "v1"])
    assert {u.change for u in deleted.updates} == {"deleted"}
    assert set(tips(team.server)) == {"main"}
    assert team.server.refs("tag") == []
    team.bob.fetch()
    assert team.bob.find("origin/side") == team.ids[0]
    assert [u.change for u in team.bob.fetch(prune=True).updates] == ["deleted"]
    with pytest.raises(UnknownRevision):
        team.bob.find("origin/side")
    assert team.bob.find("v1") == team.ids[0]
    with pytest.raises(UnknownRevision, match="has no branch or tag side"):
        team.ada.push(delete=["side"])


def test_tags_go_along_and_are_made_once(team: Team) -> None:
    second = team.ada.commit(state(2)).id
    team.ada.tag("v2")
    team.ada.branch("other", team.ids[0])
    assert {u.name for u in team.ada.push().updates} == {"heads/main", "tags/v2"}
    team.bob.tag("v2", team.ids[0])
    fetched = team.bob.fetch()
    kept = [u for u in fetched.updates if u.change == "kept"]
    assert [(u.name, u.local, u.new) for u in kept] == [("tags/v2", "remotes/origin/v2", second)]
    assert team.bob.find("v2") == team.ids[0]
    assert team.bob.find("origin/v2") == second
    assert team.bob.fetch().updates == ()
    team.bob.pull()
    pushed = team.bob.push()
    assert pushed.passed_over == ("v2",) and not pushed.is_short
    with pytest.raises(RefConflict, match="already exists"):
        team.bob.push(refs=["v2"])
    team.bob.push(refs=["v2"], force=True)
    assert {r.name: r.commit for r in team.server.refs("tag")} == {"v2": team.ids[0]}


def test_what_a_push_would_send(team: Team) -> None:
    team.ada.commit(state(2))
    planned = team.ada.push(dry_run=True)
    assert tips(team.server) == {"main": team.ids[0]}
    done = team.ada.push()
    assert planned.versions == done.versions == 1
    assert planned.updates == done.updates
    assert planned.bytes == done.bytes > 0


def test_deployments_follow_a_version_that_is_there(team: Team) -> None:
    team.ada.deploy("HEAD", "prod", reason="tested")
    pushed = team.ada.push()
    assert (pushed.updates, pushed.operations, pushed.is_news) == ((), 1, True)
    assert not team.ada.push().is_news
    team.bob.fetch()
    assert team.bob.live("prod").commit == team.ids[0]
    assert team.bob.live("prod").deployment.reason == "tested"
    team.bob.retract("HEAD", "prod")
    team.bob.push()
    team.ada.fetch()
    assert [each.retracted for each in team.ada.deployments("prod")] == [True]


def test_a_live_version_that_is_not_pushed_is_named(team: Team) -> None:
    team.ada.switch("trial", create=True)
    live = team.ada.commit(state(2), message="trial", deploy="prod").id
    team.ada.switch("main")
    pushed = team.ada.push()
    assert not pushed.is_news and pushed.not_there == (("prod", live),)
    assert team.ada.push(refs=["trial"]).not_there == ()
    assert team.ada.push().not_there == ()


def test_what_was_undone_when_it_was_fetched_comes_later(team: Team) -> None:
    """The remote takes it to be here, because it stands before what was read."""
    made = team.server.commit(state(2)).id
    team.server.undo()
    team.bob.fetch()
    with pytest.raises(UnknownRevision):
        team.bob.find(made.hex())
    team.server.undo(next(team.server.operations(1)).number)
    team.bob.fetch()
    assert team.bob.find("origin/main") == made


def test_a_version_that_was_undone_goes_along_with_what_replaced_it(team: Team) -> None:
    team.ada.push()
    undone = team.ada.commit(state(2), deploy="prod").id
    team.ada.undo()
    team.ada.deploy(team.ids[0], "prod")
    assert team.ada.push().refused == ()
    team.bob.fetch()
    assert undone in {each.commit for each in team.bob.deployments("prod")}
    assert team.bob.live("prod").commit == team.ids[0]


def test_a_checked_out_branch_is_not_pushed_to(team: Team, tmp_path: Path) -> None:
    with Repository.init(tmp_path / "desk") as desk:
        team.ada.remotes.add("desk", str(desk.root))
        with pytest.raises(RefConflict, match="checked out at the remote"):
            team.ada.push("desk")
        team.ada.branch("for-desk")
        team.ada.push("desk", ["for-desk"])
        assert tips(desk) == {"for-desk": team.ids[0]}


def test_a_recorded_branch_neither_pulls_nor_is_pushed_to(team: Team) -> None:
    from mvc.repo.recording import announce

    team.ada.commit(state(2))
    with announce(team.server.handle.store, "main"), pytest.raises(RefConflict, match="recording"):
        team.ada.push()
    team.ada.push()
    with announce(team.bob.handle.store, "main"), pytest.raises(RefConflict, match="recording"):
        team.bob.pull()
    assert team.bob.pull().restored is not None


def test_pull_writes_files_and_loses_none(team: Team) -> None:
    (team.root / "ada" / "model.bin").write_bytes(b"one")
    team.ada.commit(str(team.root / "ada" / "model.bin"))
    team.ada.push()
    team.bob.pull()
    mine = team.root / "bob" / "model.bin"
    assert mine.read_bytes() == b"one"
    (team.root / "ada" / "model.bin").write_bytes(b"two")
    team.ada.commit(str(team.root / "ada" / "model.bin"))
    team.ada.push()
    mine.write_bytes(b"my own work")
    with pytest.raises(WouldOverwrite):
        team.bob.pull()
    assert mine.read_bytes() == b"my own work"
    mine.write_bytes(b"one")
    assert team.bob.pull().restored.written == ("model.bin",)
    assert mine.read_bytes() == b"two"


def test_an_undone_pull_keeps_what_was_fetched(team: Team) -> None:
    second = team.ada.commit(state(2)).id
    team.ada.push()
    team.bob.pull()
    team.bob.undo()
    assert team.bob.head().commit == team.ids[0]
    assert team.bob.find("origin/main") == second


def test_an_exchanged_remote_is_seen(team: Team, tmp_path: Path) -> None:
    team.bob.fetch()
    Path(team.url).rename(tmp_path / "gone")
    with Repository.init(team.url, bare=True):
        pass
    for act in (team.bob.fetch, team.bob.push):
        with pytest.raises(HistoryMissing, match="different repository") as caught:
            act()
        assert "mvc remote remove origin" in str(caught.value.hint)
    team.bob.remotes.remove("origin")
    team.bob.remotes.add("origin", team.url)
    assert team.bob.push().versions == 1


def test_a_remote_that_has_gone_back_is_seen(team: Team, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(team.url, tmp_path / "copy")
    team.ada.commit(state(2))
    team.ada.push()
    team.bob.fetch()
    team.server.close()
    shutil.rmtree(team.url)
    shutil.copytree(tmp_path / "copy", team.url)
    with pytest.raises(HistoryMissing, match="rolled back"):
        team.bob.fetch()


def test_a_lost_place_costs_nothing_but_reading(team: Team) -> None:
    team.bob.fetch()
    for file in (team.root / "bob" / ".mvc" / "remotes" / "origin").iterdir():
        file.write_bytes(b"not a place")
    team.ada.commit(state(2))
    team.ada.push()
    assert team.bob.fetch().versions == 1
    assert sound(team.bob)


def test_what_was_collected_here_comes_again(team: Team) -> None:
    team.ada.branch("side")
    team.ada.switch("side")
    lost = team.ada.commit(state(7)).id
    team.ada.push()
    team.bob.fetch()
    team.ada.push(delete=["side"])
    team.bob.fetch(prune=True)
    team.bob.storage.gc(grace="0")
    assert all(entry.id != lost for entry in team.bob.log("HEAD", mvc.LogOptions(every=True)))
    team.ada.push()
    team.bob.fetch()
    assert team.bob.find("origin/side") == lost
    assert np.array_equal(team.bob.checkout("origin/side")["w"], state(7)["w"])


def test_clones_of_other_kinds(team: Team, tmp_path: Path) -> None:
    team.ada.branch("side")
    team.ada.tag("v1")
    team.ada.push(every=True)
    with mvc.clone(team.url, tmp_path / "bare", bare=True) as bare:
        assert set(tips(bare)) == {"main", "side"}
        assert [t.name for t in bare.refs("tag")] == ["v1"]
        assert bare.handle.store.bare
    with mvc.clone(team.url, tmp_path / "side", branch="side") as side:
        assert side.head().branch == "side"
        assert set(tips(side)) == {"side"}
    with pytest.raises(UnknownRevision, match="no branch nope") as caught:
        mvc.clone(team.url, tmp_path / "nope", branch="nope")
    assert "main, side" in str(caught.value.hint)
    assert not (tmp_path / "nope").exists()
    with pytest.raises(WouldOverwrite, match="not empty"):
        mvc.clone(team.url, team.root / "bob")


def test_an_empty_repository_is_cloned(tmp_path: Path) -> None:
    Repository.init(tmp_path / "empty", bare=True, branch="trunk").close()
    with mvc.clone(str(tmp_path / "empty"), tmp_path / "copy") as copy:
        assert copy.head().branch == "trunk"
        assert copy.head().commit is None
        copy.commit(state(1))
        copy.push()


def test_what_cannot_be_pushed(team: Team) -> None:
    with pytest.raises(UnknownRevision, match="no branch or tag nope"):
        team.ada.push(refs=["nope"])
    with pytest.raises(UnknownRevision, match="no remote nope"):
        team.ada.push("nope")
    team.ada.checkout(team.ids[0], to=team.ada.root)
    with pytest.raises(RefConflict, match="HEAD is detached"):
        team.ada.push()
    with pytest.raises(RefConflict, match="HEAD is detached"):
        team.ada.pull()
    with (
        mvc.clone(team.url, team.root / "bare", bare=True) as bare,
        pytest.raises(WrongUsage, match="bare repository"),
    ):
        bare.pull()


def test_tracking(team: Team) -> None:
    team.ada.commit(state(2))
    team.ada.commit(state(3))
    team.ada.push()
    team.bob.commit(state(9))
    team.bob.fetch()
    found = team.bob.remotes.tracking()
    assert found is not None
    assert (found.remote, found.ahead, found.behind) == ("origin", 1, 2)
    assert team.server.remotes.tracking() is None


def test_only_what_is_new_travels(team: Team) -> None:
    for repo, value, target in ((team.ada, 2, "prod"), (team.bob, 3, "edge")):
        repo.commit(state(value), deploy=target)
    team.ada.push()
    assert not team.ada.fetch().is_news
    team.bob.branch("mine")
    pushed = team.bob.push(refs=["mine"])
    assert (pushed.versions, pushed.operations) == (1, 1)
    fetched = team.ada.fetch()
    assert (fetched.versions, fetched.operations) == (1, 1)
    assert not team.ada.push().is_news
    assert [len(team.ada.deployments(target)) for target in ("prod", "edge")] == [1, 1]
    team.bob.fetch()
    assert not team.bob.push(refs=["mine"]).is_news


def test_what_is_said_of_a_version_follows_when_others_have_pushed_it(team: Team) -> None:
    carol = Repository.init(team.root / "carol")
    carol.remotes.add("origin", team.url)
    carol.remotes.add("elsewhere", str(team.root / "bob"))
    carol.fetch("elsewhere")
    carol.branch("old", "elsewhere/main")
    third = team.bob.commit(state(3)).id
    carol.fetch("elsewhere")
    carol.deploy(third, "prod")
    carol.push(refs=["old"])
    assert not team.server.targets()
    team.bob.branch("trial")
    team.bob.push(refs=["trial"])
    carol.push(refs=["old"])
    assert team.server.live("prod").commit == third
    carol.close()


def test_a_clone_that_was_killed_goes_on(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from mvc.remote.receiving import receiver
    from mvc.remote.sending import sender

    for value in range(2, 6):
        team.ada.commit(state(value))
    team.ada.push()
    monkeypatch.setattr(sender, "send", partial(sender.send, most=1))
    real, taken = receiver.receive, list[object]()

    def dying(*args: object, **more: object) -> object:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(args)
        return real(*args, **more)

    monkeypatch.setattr(receiver, "receive", dying)
    place = team.root / "late"
    with pytest.raises(KeyboardInterrupt):
        mvc.clone(team.url, place)
    assert not (place / ".mvc").exists()
    with pytest.raises(WouldOverwrite, match="unfinished clone"):
        mvc.clone(str(team.root / "ada"), place)
    monkeypatch.setattr(receiver, "receive", real)
    with mvc.clone(team.url, place) as late:
        assert len(list(late.log())) == 5
        assert sound(late)
    assert sorted(p.name for p in place.iterdir()) == [".mvc", "model.safetensors"]


def test_a_clone_after_a_crash_of_the_machine_begins_again(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mvc.remote.clone import UNFINISHED

    place = team.root / "late"
    (place / UNFINISHED / ".mvc").mkdir(parents=True)
    (place / UNFINISHED / ".mvc" / "journal").write_bytes(b"torn")
    (place / UNFINISHED / "state").write_text(json.dumps({"url": team.url, "boot": "old"}))
    with mvc.clone(team.url, place) as late:
        assert late.head().commit == team.ids[0]


def test_two_clones_into_one_folder(team: Team) -> None:
    from mvc.errors import Busy
    from mvc.io.files import FileSystem
    from mvc.remote.clone import UNFINISHED

    place = team.root / "late"
    (place / UNFINISHED).mkdir(parents=True)
    with (
        FileSystem().lock(place / UNFINISHED / "lock"),
        pytest.raises(Busy, match="another process clones"),
    ):
        mvc.clone(team.url, place)


def test_a_folder_of_repositories_is_not_to_become_one(team: Team) -> None:
    team.ada.remotes.add("all", str(team.root))
    with pytest.raises(NotARepository) as error:
        team.ada.fetch("all")
    assert error.value.hint == f"name a repository inside it, such as {team.root / 'ada'}"


def test_a_source_that_is_neither_a_url_nor_a_folder(team: Team) -> None:
    for text in "localhost:net", "127.0.0.1:8123/net":
        with pytest.raises(RemoteUnreachable, match="there is no folder") as error:
            mvc.clone(text, team.root / "new")
        assert str(error.value.hint).startswith("write the whole URL: http://HOST:PORT/NAME")
    with pytest.raises(RemoteUnreachable) as error:
        mvc.clone("origin", team.root / "new")
    assert "as a folder, not as the name of a remote" in str(error.value.hint)


def test_a_version_in_place_of_the_remote(team: Team) -> None:
    with pytest.raises(UnknownRevision, match="there is no remote HEAD~0") as error:
        team.bob.fetch("HEAD~0")
    assert error.value.hint == (
        "available: origin; the remote comes before the version: 'origin HEAD~0'"
    )
    with pytest.raises(UnknownRevision, match="there is no remote main:trial") as unreachable:
        team.bob.push("main:trial")
    assert unreachable.value.hint == "name the remote first: 'mvc push REMOTE REV:NAME'"
