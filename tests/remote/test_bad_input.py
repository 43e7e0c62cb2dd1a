"""What goes wrong with a folder or a verb: one line, its exit code, and it works afterwards."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

import mvc
import mvc.recipes as recipes
from mvc.api.repository import Repository
from mvc.errors import MvcError, RefConflict, RemoteRefused, StorageFull, UnsupportedFormat
from mvc.store.format import write_features
from mvc.testing import FixedClock
from mvc.testing.files import FailingFS, HookedFS
from mvc.testing.process import killed

DAY = 24 * 3600 * 10**9


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((64, 64), value, np.float32)}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    Repository.init(tmp_path / "server", bare=True).close()
    return tmp_path / "server"


@pytest.fixture
def ada(tmp_path: Path, server: Path) -> Repository:
    repo = Repository.init(tmp_path / "ada")
    repo.remotes.add("origin", server)
    repo.commit(state(1))
    return repo


def one_line(error: MvcError) -> None:
    assert "\n" not in error.message
    assert error.hint


def test_a_clock_two_days_ahead(tmp_path: Path, server: Path) -> None:
    import time

    clock = FixedClock(time.time_ns() + 2 * DAY)
    with Repository.init(tmp_path / "ahead", clock=clock) as repo:
        repo.remotes.add("origin", server)
        repo.commit(state(1))
        with pytest.raises(RemoteRefused, match="ahead of the receiver's clock") as caught:
            repo.push()
        one_line(caught.value)
        clock.advance(-2 * DAY)
        fine = repo.commit(state(2)).id
    with Repository.open(server) as there:
        assert there.refs() == []
        assert there.handle.store.snapshot.position.sequence == 1
    assert fine


def test_a_remote_of_a_later_version(ada: Repository, server: Path, tmp_path: Path) -> None:
    ada.push()
    before = (server / ".mvc" / "format").read_bytes()
    with Repository.open(server) as there:
        write_features(there.handle.store.fs, server / ".mvc", frozenset({"later"}))
    for act in (ada.push, ada.fetch, lambda: mvc.clone(server, tmp_path / "copy")):
        with pytest.raises(UnsupportedFormat) as caught:
            act()
        one_line(caught.value)
    assert not (tmp_path / "copy").exists()
    (server / ".mvc" / "format").write_bytes(before)
    ada.commit(state(2))
    assert ada.push().versions == 1
    mvc.clone(server, tmp_path / "copy").close()


def test_a_full_disk_here(ada: Repository, server: Path, tmp_path: Path) -> None:
    ada.push()
    Repository.init(tmp_path / "bob").close()
    full = FailingFS(fail_at=0, error=errno.ENOSPC, persistent=True)
    with Repository.open(tmp_path / "bob", fs=full) as bob:
        bob.remotes.add("origin", server)
        full.fail_at = full.calls + 1
        with pytest.raises(StorageFull) as caught:
            bob.fetch()
        one_line(caught.value)
        full.fail_at = 0
    with Repository.open(tmp_path / "bob") as bob:
        assert bob.fetch().versions == 1
        assert bob.storage.fsck(full=True).sound


def test_a_full_disk_there(ada: Repository, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FailingFS(fail_at=0, error=errno.ENOSPC, persistent=True)
    from mvc.remote.transports import folder

    real = folder.open_handle

    def opened(*args: object, **more: object) -> object:
        context = real(*args, **more, fs=full)
        full.fail_at = full.calls + 1
        return context

    monkeypatch.setattr(folder, "open_handle", opened)
    with pytest.raises(StorageFull) as caught:
        ada.push()
    one_line(caught.value)
    monkeypatch.undo()
    assert ada.push().versions == 1
    with Repository.open(server) as there:
        assert there.storage.fsck(full=True).sound


def test_a_data_set_of_one_name_with_two_contents(
    ada: Repository, server: Path, tmp_path: Path
) -> None:
    ada.push()
    with mvc.clone(server, tmp_path / "bob") as bob:
        for repo, text in ((ada, "one"), (bob, "two")):
            (tmp_path / "digits.csv").write_text(text)
            recipes.add_data(repo, tmp_path / "digits.csv", name="digits")
        ada.push(refs=["data/digits"])
        with pytest.raises(RefConflict, match=r"data/digits \(fetch first\)") as caught:
            bob.push(refs=["data/digits"])
        one_line(caught.value)
        fetched = bob.fetch()
        assert [(u.change, u.local) for u in fetched.updates] == [
            ("kept", "remotes/origin/data/digits")
        ]
        assert bob.find("data/digits") != bob.find("origin/data/digits")
        assert bob.fetch().updates == ()
        bob.push(refs=["data/digits"], force=True)
        ada.fetch()
        assert ada.find("origin/data/digits") == bob.find("data/digits")


def test_a_data_set_that_moves_on_is_followed(
    ada: Repository, server: Path, tmp_path: Path
) -> None:
    (tmp_path / "digits.csv").write_text("one")
    recipes.add_data(ada, tmp_path / "digits.csv", name="digits")
    ada.push(every=True)
    with mvc.clone(server, tmp_path / "bob") as bob:
        (tmp_path / "digits.csv").write_text("two")
        recipes.add_data(ada, tmp_path / "digits.csv", name="digits")
        ada.push(refs=["data/digits"])
        assert [u.change for u in bob.fetch().updates] == ["forward"]
        assert bob.find("data/digits") == ada.find("data/digits")


@pytest.mark.parametrize("op", ["replace", "unlink"])
def test_a_pull_that_was_killed_is_completed_or_taken_back(
    ada: Repository, server: Path, tmp_path: Path, op: str
) -> None:
    file = ada.root / "model.bin"
    file.write_bytes(b"one")
    ada.commit(file)
    ada.push()
    mvc.clone(server, tmp_path / "bob").close()
    file.write_bytes(b"two" * 100)
    second = ada.commit(file).id
    ada.push()
    place = tmp_path / "bob" / "model.bin"

    def pull(fs: HookedFS) -> None:
        with Repository.open(tmp_path / "bob", fs=fs) as bob:
            bob.pull()

    def when(_: int, name: str, path: Path) -> bool:
        return name == op and path.parent in (place.parent, place.parent / ".mvc" / "checkouts")

    assert killed(pull, when)
    with Repository.open(tmp_path / "bob") as bob:
        bob.pull()
        assert bob.head().commit == second
        assert place.read_bytes() == b"two" * 100
        assert bob.status().clean
