"""A file that follows what is live on a target, without a repository beside it."""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api.repository import Repository
from mvc.errors import (
    Busy,
    DubiousOwnership,
    IoFailed,
    MvcError,
    NoDeployment,
    RemoteUnreachable,
    StateForgotten,
    UnknownPath,
    UnknownTarget,
    WouldOverwrite,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.remote.replicas.replica import Replica
from mvc.serving.reader import FileReader
from mvc.serving.sinks import TakenOver
from mvc.serving.sources import Followed, NotFollowing
from tests.fleet.following import follow, following
from tests.remote.kit import ssh

BASE = np.random.default_rng(0).standard_normal(40_000, np.float32)


def state(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {
        "w": BASE + np.float32(1e-4 * step) * BASE,
        "b": random.random(30, np.float32),
        "same": BASE[:100],
    }


def commit(repo: Repository, step: int, *, deploy: str | None = "prod", **files: object) -> bytes:
    done = repo.commit(states={"model.st": state(step), **files}, message=str(step), deploy=deploy)
    return done.id


def checked_out(repo: Repository, version: bytes, path: str = "model.st") -> bytes:
    place = repo.root / "compare"
    repo.checkout(version, path=path, to=place / "one.st", force=True)
    return (place / "one.st").read_bytes()


def test_the_file_is_what_checkout_writes(repo: Repository, url: str, tmp_path: Path) -> None:
    file = tmp_path / "node" / "model.safetensors"
    file.parent.mkdir()
    sizes = []
    for step in range(1, 4):
        version = commit(repo, step)
        done = follow(url, "prod", to=file, once=True)
        assert done is not None and done.commit == version
        sizes.append(done.received)
        assert file.read_bytes() == checked_out(repo, version)
    assert max(sizes[1:]) < sizes[0] / 2
    assert follow(url, "prod", to=file, once=True) is None
    assert sorted(os.listdir(file.parent)) == [".model.safetensors.mvc", "model.safetensors"]


def test_over_ssh(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ssh.install(tmp_path / "bin").items():
        monkeypatch.setenv(name, value)
    url, file = f"ssh://host{repo.root}", tmp_path / "model.st"
    commit(repo, 1)
    follow(url, "prod", to=file, once=True)
    with Running(url, file) as running:
        version = commit(repo, 2)
        running.until(lambda: bool(running.changes), 60)
    assert file.read_bytes() == checked_out(repo, version)


def test_over_a_bucket(repo: Repository, tmp_path: Path) -> None:
    url, file = f"bucket:{tmp_path / 'bucket'}", tmp_path / "model.st"
    (tmp_path / "bucket").mkdir()
    repo.remotes.add("bucket", url)
    commit(repo, 1)
    repo.push("bucket", every=True)
    whole = follow(url, "prod", to=file, once=True)
    with Running(url, file, interval=0.2) as running:
        for step in (2, 3):
            version = commit(repo, step)
            repo.push("bucket", every=True)
            running.until(lambda step=step: len(running.changes) == step - 1, 60)
    assert whole is not None and running.changes[-1].received < whole.received / 2
    assert file.read_bytes() == checked_out(repo, version)
    assert (tmp_path / ".model.st.mvc" / "mirror").is_dir()


def test_each_version_costs_its_delta_whatever_it_is_coded_against(
    repo: Repository, tmp_path: Path
) -> None:
    file, url = tmp_path / "model.safetensors", str(repo.root)
    random = np.random.default_rng(5)
    names = [f"layers.{i}" for i in range(6)]
    state = {name: random.standard_normal(60_000, np.float32) for name in names}
    for step in range(1, 20):
        state = {
            name: value + 1e-3 * random.standard_normal(60_000, np.float32)
            for name, value in state.items()
        }
        if step == 7:  # one tensor is new, and stored in full
            state["layers.0"] = random.standard_normal(60_000, np.float32)
        stored = repo.commit(state, message=str(step), deploy="prod").stored_bytes
        done = follow(url, "prod", to=file, once=True)
        assert done is not None and done.commit == repo.live("prod").commit
        assert step == 1 or done.received <= 1.02 * stored + 8192, step
    repo.rollback("prod", steps=3)
    back = follow(url, "prod", to=file, once=True)
    assert back is not None and back.received < 3 * stored
    assert file.read_bytes() == checked_out(repo, back.commit, path="model.safetensors")


def test_rollback_retraction_and_dated_deployments_arrive_like_deployments(
    repo: Repository, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.st"
    ids = [commit(repo, step) for step in range(1, 4)]

    def served() -> bytes:
        follow(url, "prod", to=file, once=True)
        found = [id_ for id_ in ids if checked_out(repo, id_) == file.read_bytes()]
        return found[0]

    assert served() == ids[2]
    repo.rollback("prod")
    assert served() == ids[1]
    repo.rollback("prod")
    assert served() == ids[0]
    repo.retract(None, "prod")
    assert served() == ids[1]
    repo.deploy(ids[2], "prod", at=datetime.now(UTC) + timedelta(seconds=1))
    assert served() == ids[1]
    time.sleep(1.2)
    assert served() == ids[2]


def test_files_of_every_kind(folder: Path, url: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with Repository.init(work) as repo, Repository.open(folder / "models") as served:
        rng = np.random.default_rng(3)
        linear = torch.nn.Linear(20, 30)
        for step in range(3):
            with torch.no_grad():
                linear.weight.add_(0.001)
            torch.save(linear.state_dict(), work / "net.pt")
            np.save(work / "one.npy", np.arange(5000, dtype=np.float32) + step)
            np.savez(work / "some.npz", a=np.arange(500) + step, b=np.ones(3))
            (work / "vocabulary.txt").write_bytes(rng.bytes(2000) + bytes(3000))
            (work / "empty.txt").write_bytes(b"")
            names = ["net.pt", "one.npy", "some.npz", "vocabulary.txt", "empty.txt"]
            repo.commit([work / name for name in names], message=str(step), deploy="prod")
            if step == 0:
                repo.remotes.add("origin", str(folder / "models"))
            repo.push("origin")
            served.log("main")
            for name in names:
                follow(url, "prod", to=tmp_path / name, path=name, once=True)
                assert (tmp_path / name).read_bytes() == (work / name).read_bytes(), name


def test_what_something_else_wrote_is_replaced_and_named(
    repo: Repository, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.st"
    first = commit(repo, 1)
    follow(url, "prod", to=file, once=True)
    right = file.read_bytes()
    flipped = bytearray(right)
    flipped[-7] ^= 1
    file.write_bytes(flipped)
    with pytest.warns(TakenOver, match=f"by {first.short}"):
        follow(url, "prod", to=file, once=True)
    assert file.read_bytes() == right
    file.unlink()
    follow(url, "prod", to=file, once=True)
    assert file.read_bytes() == right
    file.write_bytes(right)  # the same bytes, from elsewhere
    second = commit(repo, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = follow(url, "prod", to=file, once=True)
    assert done is not None and done.previous == first and done.commit == second


def test_damage_that_no_time_tells_leads_to_a_whole_file(
    repo: Repository, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.st"
    commit(repo, 1)
    follow(url, "prod", to=file, once=True)
    second = commit(repo, 2)
    with following(url, "prod", file) as follower:
        with file.open("r+b") as raw:
            raw.seek(-9, os.SEEK_END)
            byte = raw.read(1)
            raw.seek(-9, os.SEEK_END)
            raw.write(bytes([byte[0] ^ 4]))
        with pytest.warns(TakenOver):
            follower.poll()
    assert file.read_bytes() == checked_out(repo, second)


def test_no_note_is_believed_that_does_not_fit(repo: Repository, url: str, tmp_path: Path) -> None:
    file = tmp_path / "model.st"
    first = commit(repo, 1)
    follow(url, "prod", to=file, once=True)
    note = tmp_path / ".model.st.mvc" / "note"
    whole = note.read_bytes()
    for damaged in (b"", b"{}", whole[:-30], whole.replace(b'["model.st"]', b'["a"]')):
        note.write_bytes(damaged)
        with pytest.warns(TakenOver):
            follow(url, "prod", to=file, once=True)
        assert file.read_bytes() == checked_out(repo, first)


def test_what_cannot_be_followed_is_named_and_the_old_file_stays(
    repo: Repository, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.st"

    def refused(error: type[MvcError], target: str = "prod", **more: object) -> None:
        with pytest.raises(error):
            follow(url, target, to=file, once=True, **more)

    refused(UnknownTarget)
    first = commit(repo, 1)
    follow(url, "prod", to=file, once=True)
    right = file.read_bytes()
    refused(UnknownTarget, "staging")
    refused(UnknownPath, path="nothing")
    second = commit(repo, 2)
    repo.storage.forget([second])
    refused(StateForgotten)
    repo.retract(None, "prod")
    repo.retract(first, "prod")
    refused(NoDeployment)
    assert file.read_bytes() == right


def test_places_that_can_be_no_file(repo: Repository, tmp_path: Path) -> None:
    commit(repo, 1)
    url = str(repo.root)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link.st").symlink_to("model.st")
    (tmp_path / "link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe.st")
    places = {
        "folder": WouldOverwrite,
        "link": WouldOverwrite,
        "link.st": WrongUsage,
        "pipe.st": WrongUsage,
        "no/model.st": IoFailed,
        "served/models/.mvc/model.st": WrongUsage,
    }
    for name, error in places.items():
        with pytest.raises(error) as refused:
            follow(url, "prod", to=tmp_path / name, once=True)
        assert "atomic_dir" not in str(refused.value.hint)  # that is no word of a follower
    with following(url, "prod", tmp_path / "model.st"), pytest.raises(Busy):
        follow(url, "prod", to=tmp_path / "model.st", once=True)


@pytest.mark.parametrize("link", ["records", "records/.mvc"])
def test_nothing_is_written_behind_a_link(link: str, repo: Repository, tmp_path: Path) -> None:
    """Who may write next to the file writes to no repository of the follower's user by that."""
    to, url = tmp_path / "model.st", str(repo.root)
    for step in (1, 2):
        commit(repo, step)
        follow(url, "prod", to=to, once=True)
    beside = tmp_path / ".model.st.mvc"
    shutil.rmtree(beside / "records", ignore_errors=True)
    with Repository.init(tmp_path / "own") as own:
        (beside / link).parent.mkdir(exist_ok=True)
        (beside / link).symlink_to(own.root if link == "records" else own.root / ".mvc")
        before = len(list(own.operations()))
        version = commit(repo, 3)
        follow(url, "prod", to=to, once=True)
        assert len(list(own.operations())) == before and sorted(os.listdir(own.root)) == [".mvc"]
    assert to.read_bytes() == checked_out(repo, version)


def test_kept_records_that_lack_a_file_are_fetched_again(repo: Repository, tmp_path: Path) -> None:
    file = tmp_path / "node" / "m.st"
    file.parent.mkdir()
    for step, name in enumerate(("format", "journal", "config.yaml", "witness", "packs/*", "")):
        version = commit(repo, step)
        follow(repo.root, "prod", to=file, once=True)
        assert file.read_bytes() == checked_out(repo, version)
        for lost in file.parent.rglob(f"records/.mvc/{name}") if name else ():
            lost.unlink()


def test_a_folder_of_another_user_is_not_believed(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note could say that a file that was poisoned is what is live."""
    commit(repo, 1)
    to = tmp_path / "model.st"
    follow(str(repo.root), "prod", to=to, once=True)
    monkeypatch.setattr("mvc.repo.ownership.trusted_owners", lambda: frozenset({12345}))
    with pytest.raises(DubiousOwnership):
        Replica(FileSystem(), to)


def test_a_disk_without_room_is_named_before(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mvc.errors import StorageFull
    from mvc.io.files import FileSystem

    class Small(FileSystem):
        room = 1 << 40

        def free_bytes(self, path: Path) -> int:
            return self.room

    fs, file = Small(), tmp_path / "model.st"
    first = commit(repo, 1)
    with following(str(repo.root), "prod", file, fs=fs) as follower:
        follower.poll()
        right = file.read_bytes()
        commit(repo, 2)
        fs.room = 100_000
        with pytest.raises(StorageFull, match="the disk is nearly full"):
            follower.poll()
        assert file.read_bytes() == right == checked_out(repo, first)
        fs.room = 1 << 40
        follower.poll()
        assert file.read_bytes() != right


class Running:
    """A follower in a thread."""

    def __init__(self, url: str, file: Path, interval: float | None = None) -> None:
        self.changes: list[Followed] = []
        self.notes: list[str] = []
        self.warned: list[warnings.WarningMessage] = []
        self._stop = threading.Event()

        def run() -> None:
            with following(
                url, "prod", file, stop=self._stop, note=self.notes.append,
                on_change=self.changes.append,
            ) as follower:  # fmt: skip
                follower.run(interval)

        self._catch = warnings.catch_warnings(record=True)
        self._thread = threading.Thread(target=run)

    def __enter__(self) -> Running:
        self.warned = self._catch.__enter__()
        warnings.simplefilter("always")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._catch.__exit__(None, None, None)
        assert not self._thread.is_alive()

    def until(self, arrived: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not arrived():
            assert time.monotonic() < deadline, (self.changes, list(map(str, self.warned)))
            time.sleep(0.02)


def test_it_goes_on_by_itself(repo: Repository, url: str, tmp_path: Path) -> None:
    file = tmp_path / "model.st"
    with Running(url, file) as running:
        running.until(lambda: bool(running.warned))  # nothing is live yet
        ids = [commit(repo, 1)]
        running.until(lambda: len(running.changes) == 1)
        ids.append(commit(repo, 2))
        running.until(lambda: len(running.changes) == 2)
        repo.rollback("prod")
        running.until(lambda: len(running.changes) == 3)
        file.write_bytes(b"foreign")
        running.until(lambda: file.read_bytes() == checked_out(repo, ids[0]))
    assert [each.commit for each in running.changes[:3]] == [ids[0], ids[1], ids[0]]
    kinds = {each.category for each in running.warned}
    assert kinds == {NotFollowing, TakenOver}
    assert len([each for each in running.warned if each.category is NotFollowing]) == 1
    assert running.notes == ["following prod again"]


def test_a_remote_that_is_away_is_named_once_and_when_it_is_back(
    repo: Repository, folder: Path, tmp_path: Path
) -> None:
    file, away = tmp_path / "model.st", folder / "elsewhere"
    url = str(folder / "models")
    (folder / "models").rename(away)
    with pytest.raises(RemoteUnreachable):
        follow(url, "prod", to=file, once=True)
    with Running(url, file) as running:
        running.until(lambda: bool(running.warned))
        time.sleep(1.5)
        assert len(running.warned) == 1
        away.rename(folder / "models")
        with Repository.open(folder / "models") as back:
            commit(back, 1)
            running.until(lambda: bool(running.changes))
    assert running.notes == ["following prod again"]


def test_the_file_of_an_earlier_run_is_the_current_version_while_the_remote_is_away(
    repo: Repository, folder: Path, tmp_path: Path
) -> None:
    commit(repo, 1)
    file, url = tmp_path / "model.st", str(folder / "models")
    with following(url, "prod", file) as follower:
        assert follower.current is None
        done = follower.poll()
    (folder / "models").rename(folder / "elsewhere")
    with following(url, "prod", file) as follower:
        assert done is not None and follower.current is not None
        assert (follower.current.commit, follower.current.file) == (done.commit, done.file)
        with pytest.raises(RemoteUnreachable):
            follower.poll()
        assert follower.current.commit == done.commit
    file.write_bytes(b"foreign")
    with following(url, "prod", file) as follower:
        assert follower.current is None


def test_the_command_runs_after_each_swap(repo: Repository, tmp_path: Path) -> None:
    file, log = tmp_path / "model.st", tmp_path / "log"
    url = str(repo.root)
    first = commit(repo, 1)
    run = f'echo "$DEPLOY_VERSION $DEPLOY_PREVIOUS $DEPLOY_FILE" >> {log}'
    follow(url, "prod", to=file, once=True, command=run)
    follow(url, "prod", to=file, once=True, command=run)
    second = commit(repo, 2)
    with pytest.warns(mvc.repo.hook.HookFailed, match="exit status 3"):
        follow(url, "prod", to=file, once=True, command=run + "; exit 3")
    follow(url, "prod", to=file, once=True, command=run)
    assert log.read_text().split("\n") == [f"{first}  {file}", f"{second} {first} {file}", ""]
    commit(repo, 3)
    with (
        following(url, "prod", file, command="sleep 60", timeout=0.3) as follower,
        pytest.warns(mvc.repo.hook.HookFailed, match="took longer"),
    ):
        follower.poll()


def test_a_change_that_its_caller_refused_is_told_again(repo: Repository, tmp_path: Path) -> None:
    file, url = tmp_path / "model.st", str(repo.root)
    commit(repo, 1)

    def refuse(_: Followed) -> None:
        raise KeyError("not now")

    with pytest.raises(KeyError):
        follow(url, "prod", to=file, once=True, on_change=refuse)
    assert file.exists()
    seen: list[Followed] = []
    follow(url, "prod", to=file, once=True, on_change=seen.append)
    assert len(seen) == 1


def test_a_reader_swaps_what_a_follower_writes(repo: Repository, tmp_path: Path) -> None:
    file, url = tmp_path / "model.safetensors", str(repo.root)
    reader = FileReader(file)
    assert reader.swap() is None
    for step in (1, 2):
        version = commit(repo, step)
        follow(url, "prod", to=file, once=True)
        swapped = reader.swap()
        assert swapped is not None and swapped.commit == version
        assert swapped.state.keys() == state(step).keys()
        assert all(np.array_equal(swapped.state[k], v) for k, v in state(step).items())
        assert reader.swap() is None
    file.write_bytes(checked_out(repo, repo.log("main")[1].commit.id))  # by somebody else
    with pytest.raises(WrongUsage):
        reader.swap()
