"""A folder that follows what is live on a target: all of its files change together."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import NoDeployment, StorageFull, UnknownPath, WouldOverwrite
from mvc.io.files import SWAPPED, FileSystem
from mvc.limits import MIB, PIECE
from mvc.remote.replicas.replica import Replica
from mvc.remote.replicas.versions import Update
from mvc.remote.transports.opening import open_transport
from mvc.serving.sinks import TakenOver
from tests.fleet.folders import commit, contents, shards
from tests.fleet.following import follow, following
from tests.remote.kit import ssh
from tests.seeds import draw


def checked_out(repo: Repository, to: Path, *paths: str) -> dict[str, bytes]:
    is_folder = not to.suffix
    repo.checkout(target="prod", path=paths or None, to=to, atomic_dir=is_folder, force=True)
    return contents(to)


def test_the_folder_is_what_checkout_writes(repo: Repository, url: str, tmp_path: Path) -> None:
    node, wanted = tmp_path / "node" / "live", tmp_path / "wanted"
    node.parent.mkdir()
    sizes = []
    for step in range(4):
        id_ = commit(repo, tmp_path / "work", step)
        done = follow(url, "prod", to=node, once=True)
        assert done is not None and (done.commit, done.path) == (id_, "")
        assert contents(node) == checked_out(repo, wanted)
        sizes.append(done.received)
    assert max(sizes[1:]) < sizes[0] / 2
    assert follow(url, "prod", to=node, once=True) is None
    repo.rollback("prod")
    follow(url, "prod", to=node, once=True)
    assert contents(node) == checked_out(repo, wanted)
    assert len([each for each in os.listdir(node.parent) if each.endswith(".old")]) == 0
    assert len(os.listdir(node.parent)) == 5  # the link, its folder, the one before, lock, note


def test_over_ssh_and_a_bucket(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ssh.install(tmp_path / "bin").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "bucket").mkdir()
    bucket = f"bucket:{tmp_path / 'bucket'}"
    repo.remotes.add("bucket", bucket)
    for step in range(2):
        commit(repo, tmp_path / "work", step)
        repo.push("bucket", every=True)
        for name, url in (("ssh", f"ssh://host{repo.root}"), ("net", bucket)):
            follow(url, "prod", to=tmp_path / name, once=True, path=["policy"])
            assert contents(tmp_path / name) == checked_out(repo, tmp_path / "wanted", "policy")


def test_paths_are_chosen_as_a_checkout_chooses(repo: Repository, url: str, tmp_path: Path) -> None:
    commit(repo, tmp_path / "work", 0)
    for paths in (["policy"], ["policy/config.json"], ["policy/tokenizer", "notes.txt"]):
        node = tmp_path / f"node{len(list(tmp_path.iterdir()))}"
        follow(url, "prod", to=node, once=True, path=paths)
        assert contents(node) == checked_out(repo, tmp_path / "wanted", *paths)
        commit(repo, tmp_path / "work", 1)
        follow(url, "prod", to=node, once=True, path=paths)
        assert contents(node) == checked_out(repo, tmp_path / "wanted", *paths)
    with pytest.raises(UnknownPath):
        follow(url, "prod", to=node, once=True, path=["policy/tokenizer", "nothing"])
    assert contents(node) == checked_out(repo, tmp_path / "wanted", *paths)


@pytest.mark.parametrize("name", ["live", "shard.safetensors"])
def test_whatever_comes_it_is_what_checkout_writes(
    name: str, repo: Repository, tmp_path: Path
) -> None:
    rng, place = draw("followed folders"), tmp_path / name
    every = ["policy", "notes.txt", "policy/tokenizer", "policy/config.json"]
    for step in range(14):
        changed = rng.choice([(0, 1), (0,), (1,), ()])
        commit(repo, tmp_path / "work", step, count=rng.choice([2, 2, 2, 3]), changed=changed)
        for _ in range(rng.choice([0, 0, 1, 3])):
            with suppress(NoDeployment):
                repo.rollback("prod")
        if name == "live":
            paths = rng.sample(every, rng.randrange(1, 4)) if step % 5 == 4 else []
        else:
            paths = rng.sample(sorted(repo.manifest(repo.live("prod")).by_path), 1)
        follow(repo.root, "prod", to=place, once=True, path=paths)
        assert contents(place) == checked_out(repo, tmp_path / f"wanted{place.suffix}", *paths)


def test_files_that_stay_are_hard_links(repo: Repository, url: str, tmp_path: Path) -> None:
    node = tmp_path / "live"
    commit(repo, tmp_path / "work", 0)
    follow(url, "prod", to=node, once=True)
    before = {name: (node / name).stat().st_ino for name in contents(node)}
    commit(repo, tmp_path / "work", 1, changed=[1])
    follow(url, "prod", to=node, once=True)
    (changed,) = (name for name, inode in before.items() if (node / name).stat().st_ino != inode)
    assert changed == shards()[1]


def test_a_file_system_without_hard_links_copies(repo: Repository, tmp_path: Path) -> None:
    class Plain(FileSystem):
        def link(self, src: Path, dst: Path) -> None:
            from mvc.errors import IoFailed

            raise IoFailed("no hard links here")

    node = tmp_path / "live"
    for step in range(3):
        commit(repo, tmp_path / "work", step)
        follow(repo.root, "prod", to=node, once=True, fs=Plain())
        assert contents(node) == checked_out(repo, tmp_path / "wanted")


def test_another_layout_of_shards(repo: Repository, url: str, tmp_path: Path) -> None:
    node = tmp_path / "live"
    for step, count in enumerate((2, 3, 1, 2)):
        commit(repo, tmp_path / "work", step, count=count)
        done = follow(url, "prod", to=node, once=True)
        assert done is not None
        assert contents(node) == checked_out(repo, tmp_path / "wanted")
        index = json.loads((node / "policy/model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) == set(shards(count, folder=""))


def test_contents_that_stay_are_not_read_for_their_hash(repo: Repository, tmp_path: Path) -> None:
    """A bit that the disk lost in a tensor that stays goes along; a full pass finds it."""
    node, url = tmp_path / "live", repo.root
    commit(repo, tmp_path / "work", 0)
    follow(url, "prod", to=node, once=True)
    file = node / shards()[0]
    seen = file.stat()
    data = bytearray(file.read_bytes())
    data[-3] ^= 1  # of the last tensor, which stays
    with file.open("r+b") as raw:
        raw.write(data)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    commit(repo, tmp_path / "work", 1)
    follow(url, "prod", to=node, once=True)
    wanted = checked_out(repo, tmp_path / "wanted")
    assert [n for n, found in contents(node).items() if found != wanted[n]] == [shards()[0]]
    replica = Replica(FileSystem(), node, folder=True)
    transport = open_transport(str(url))
    assert replica.update(transport, "prod", full=True).foreign
    assert contents(node) == wanted
    replica.close()
    transport.close()


def test_large_and_many_contents_that_stay_are_copied(repo: Repository, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    large = np.resize(random.random(MIB // 8), (PIECE + MIB) // 8)
    few = {f"s{i}": np.full(9, i) for i in range(300)}
    for step in range(3):
        state = {"a": large[:9] * step, "b": large, "c": large[::2] + step, "d": large[9:], **few}
        repo.commit(state, path="m.safetensors", deploy="prod")
        done = follow(repo.root, "prod", to=tmp_path / "m.safetensors", once=True)
        assert done is not None
        assert contents(tmp_path / "m.safetensors") == checked_out(repo, tmp_path / "wanted.st")


def test_what_something_else_wrote_is_replaced_and_named(
    repo: Repository, url: str, tmp_path: Path
) -> None:
    node = tmp_path / "live"
    commit(repo, tmp_path / "work", 0)
    follow(url, "prod", to=node, once=True)
    right = contents(node)
    (node / "policy/config.json").write_bytes(b"{}")
    with pytest.warns(TakenOver):
        follow(url, "prod", to=node, once=True)
    assert contents(node) == right
    (node / shards()[0]).touch()  # the same bytes
    assert follow(url, "prod", to=node, once=True) is None
    node.unlink()
    follow(url, "prod", to=node, once=True)
    assert contents(node) == right


def test_places_that_are_taken(repo: Repository, tmp_path: Path) -> None:
    commit(repo, tmp_path / "work", 0)
    node = tmp_path / "live"
    node.mkdir()
    follow(repo.root, "prod", to=node, once=True)  # it was empty
    assert node.is_symlink()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "other").symlink_to("full")
    for name in ("full", "other"):
        with pytest.raises(WouldOverwrite):
            follow(repo.root, "prod", to=tmp_path / name, once=True)
    assert os.listdir(tmp_path / "full") == ["file"]


def test_a_folder_that_was_moved_away(repo: Repository, tmp_path: Path) -> None:
    """A link that stands where a folder of an earlier swap was is left alone."""
    node = tmp_path / "live"
    for step in range(3):
        commit(repo, tmp_path / "work", step)
        follow(repo.root, "prod", to=node, once=True)
        if step == 0:
            node.resolve().rename(tmp_path / "away")
            (tmp_path / os.readlink(node)).symlink_to("away")
    assert contents(node) == checked_out(repo, tmp_path / "wanted")
    assert contents(tmp_path / "away")


def test_a_disk_without_room_keeps_the_old_folder(repo: Repository, tmp_path: Path) -> None:
    class Small(FileSystem):
        room, is_full = 1 << 40, False

        def free_bytes(self, path: Path) -> int:
            return self.room

        def write_beside(self, path: Path, *args: Any, **more: Any) -> None:
            if self.is_full and path.match(shards()[1]):
                raise StorageFull("no space left on device")
            super().write_beside(path, *args, **more)

    fs, node = Small(), tmp_path / "live"
    commit(repo, tmp_path / "work", 0)
    with following(repo.root, "prod", node, fs=fs) as follower:
        follower.poll()
        right = contents(node)
        commit(repo, tmp_path / "work", 1)
        for fs.room, fs.is_full in ((1 << 10, False), (1 << 40, True)):
            with pytest.raises(StorageFull):
                follower.poll()
            assert contents(node) == right
            assert len([n for n in os.listdir(tmp_path) if n.startswith(SWAPPED)]) == 2
        fs.is_full = False
        follower.poll()
    assert contents(node) == checked_out(repo, tmp_path / "wanted")


@pytest.mark.parametrize("room", [1 << 40, 150_000])
def test_the_folder_before_stays_until_the_next_swap_is_done_if_there_is_room(
    room: int, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = list[int]()

    def look(_: Update | None = None) -> None:
        there.append(len([n for n in os.listdir(tmp_path) if n.startswith(SWAPPED)]) - 1)

    replica = Replica(FileSystem(), tmp_path / "live", folder=True)
    with closing(replica), closing(open_transport(str(repo.root))) as transport:
        for step in range(3):
            commit(repo, tmp_path / "work", step, changed=(0,) if step else (0, 1))
            replica.update(transport, "prod", prepare=look)
            replica.settle()
            monkeypatch.setattr(FileSystem, "free_bytes", lambda *_: room)  # of one shard
            look()
    assert there == [1, 1, 2, 2, 3 if room > 1 << 20 else 2, 2]


@pytest.mark.parametrize("name", ["live", "model.safetensors"])
def test_prepared_then_shown_then_taken_back(name: str, repo: Repository, tmp_path: Path) -> None:
    is_folder, place = name == "live", tmp_path / name
    paths = () if is_folder else (shards()[0],)
    replica = Replica(FileSystem(), place, folder=is_folder)
    transport = open_transport(str(repo.root))

    def update(**more: object) -> Update:
        return replica.update(transport, "prod", paths, **more)

    def refuse(_: Update) -> None:
        raise KeyError("not now")

    def prepared(update: Update) -> None:
        assert update.prepared is not None and contents(place) == before
        seen.append((update.version.id, contents(update.prepared)))

    first = commit(repo, tmp_path / "work", 0)
    assert update().before is None
    replica.settle()
    before, seen = contents(place), list[tuple[bytes, dict[str, bytes]]]()
    second = commit(repo, tmp_path / "work", 1)
    with pytest.raises(KeyError):
        update(prepare=refuse)
    assert contents(place) == before and replica.current().id == first
    done = update(prepare=prepared)
    assert [id_ for id_, _ in seen] == [second] and contents(place) == seen[0][1] != before
    assert done.before is not None and done.before.id == first and not done.is_rollback
    replica.go_back(done)
    assert contents(place) == before and replica.current().id == first
    replica.close()
    replica = Replica(FileSystem(), place, folder=is_folder)
    done = update()
    assert done.version.id == second and contents(place) == seen[0][1]
    replica.settle()
    repo.rollback("prod")
    back = update()
    assert back.is_rollback and contents(place) == before
    replica.close()
    transport.close()
