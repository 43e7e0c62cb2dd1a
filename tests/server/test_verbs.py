"""clone, fetch, pull and push over https and through ssh, as users call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import RefConflict, RemoteRefused, StateForgotten
from mvc.ids import CommitId
from tests.remote.kit import ssh
from tests.remote.kit.proxy import Proxy
from tests.remote.kit.serving import serving, token
from tests.server.moving import content, record, served_folder


@pytest.fixture(params=["http", "unix", "ssh"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of an empty bare repository."""
    folder = served_folder(tmp_path / "served")
    if request.param == "ssh":
        for name, value in ssh.install(tmp_path / "bin").items():
            monkeypatch.setenv(name, value)
        yield f"ssh://lab{folder}/models"
        return
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read", "push:heads/*", "deploy:lab"))
    address = f"unix:{tmp_path}/mvc.sock" if request.param == "unix" else "127.0.0.1:0"
    with serving(folder, address=address) as server:
        yield f"{server.url}/models"


def test_a_repository_is_shared(url: str, tmp_path: Path) -> None:
    with Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", url)
        record(ada, 1)
        ada.push()
        with mvc.clone(url, tmp_path / "bob") as bob:
            assert content(bob) == content(ada)
            record(bob, 2)
            bob.deploy("HEAD", "lab")
            bob.push()
            record(ada, 3)
            with pytest.raises(RefConflict):
                ada.push()
            assert ada.fetch().versions == 1
            assert ada.find("origin/main") == bob.find("HEAD")
            assert not ada.fetch().is_news


def test_an_idle_fetch_is_one_trip_and_a_push_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served_folder(tmp_path / "served")
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read", "push:heads/*"))
    with serving(folder) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/models"

        def trips(act: Callable[[], object]) -> int:
            proxy.again()
            act()
            return proxy.trips

        with Repository.init(tmp_path / "ada") as ada:
            ada.remotes.add("origin", url)
            record(ada, 1)
            assert trips(ada.push) <= 3
            assert trips(ada.push) == 1
            assert trips(ada.fetch) <= 2  # what it pushed itself
            assert trips(ada.fetch) == 1
            with mvc.clone(url, tmp_path / "bob") as bob:
                record(ada, 2)
                assert trips(ada.push) <= 3
                assert trips(bob.fetch) == 2
                assert trips(bob.fetch) == 1


def test_a_push_that_a_scope_forbids_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served_folder(tmp_path / "served")
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        with pytest.raises(RemoteRefused, match="requires a token"):
            ada.push()
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:heads/x/*"))
        with pytest.raises(RemoteRefused, match="needs the scope push:heads/main"):
            ada.push()
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:heads/*", name="wider"))
        ada.push()
    assert len(content(folder / "models")) == 1


def test_states_travel_later(url: str, tmp_path: Path) -> None:
    def weights(repo: Repository, rev: CommitId) -> bytes:
        return repo.checkout(rev)["w"].tobytes()

    with Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", url)
        for number in range(1, 6):
            record(ada, number)
        ids = [entry.id for entry in ada.log()][::-1]
        ada.push()
        with mvc.clone(url, tmp_path / "bob", states="last:1") as bob:
            assert [not isinstance(bob.availability(id_), Gone) for id_ in ids] == [False] * 4 + [
                True
            ]
            bob.fetch("origin", [ids[1]])
            assert weights(bob, ids[1]) == weights(ada, ids[1])
            bob.remotes.add("origin", url, force=True, lazy="true")
            assert weights(bob, ids[2]) == weights(ada, ids[2])
            assert bob.storage.fsck(full=True).sound
        with mvc.visit(url) as there:
            assert weights(there, ids[0]) == weights(ada, ids[0])
        ada.storage.forget(keep_last=1)
        ada.storage.gc(grace="0")
        ada.fetch(versions=ids[:2])
        assert ada.checkout(ids[1])
        with mvc.clone(url, tmp_path / "carl") as carl:
            carl.storage.forget(keep_last=1)
            with pytest.raises(StateForgotten):
                carl.push(states=[ids[1]])
            ada.push(states=[ids[1]])


def test_what_goes_along_unasked_is_left_out_where_a_scope_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served_folder(tmp_path / "served")
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*,deploy:lab"))
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        ada.tag("v1")
        ada.deploy("HEAD", "prod")
        ada.deploy("HEAD", "lab")
        done = ada.push()
        assert done.denied == ("push:tags/v1", "deploy:prod")
        with Repository.open(folder / "models") as remote:
            assert [live.target for live in remote.live()] == ["lab"]
            assert not list(remote.refs("tag"))
        assert ada.push().denied == done.denied
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:*,deploy:*", name="wider"))
        assert ada.push().denied == ()
        with Repository.open(folder / "models") as remote:
            assert sorted(live.target for live in remote.live()) == ["lab", "prod"]
            assert [ref.name for ref in remote.refs("tag")] == ["v1"]
        assert not ada.push().is_news


def test_a_retraction_that_a_scope_lacks_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served_folder(tmp_path / "served")
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:*,deploy:*", name="wider"))
    with serving(folder) as server, Repository.init(tmp_path / "ada") as ada:
        ada.remotes.add("origin", f"{server.url}/models")
        record(ada, 1)
        for target in ("prod", "lab"):
            ada.deploy("HEAD", target)
        ada.push()
        record(ada, 2)
        for target in ("prod", "lab"):
            ada.retract(None, target)
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read,push:heads/*,deploy:lab"))
        for _ in range(2):
            assert ada.push().denied == ("deploy:prod",)
            with Repository.open(folder / "models") as remote:
                assert remote.refs()[0].commit == ada.head().commit
                assert [live.target for live in remote.live()] == ["prod"]
        monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "push:*,deploy:*", name="again"))
        assert ada.push().denied == ()
        with Repository.open(folder / "models") as remote:
            assert not remote.live()
