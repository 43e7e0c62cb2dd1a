"""Links that lead out of the working folder or out of ``.mvc``, in place or swapped in."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import IoFailed, MvcError, WouldOverwrite
from mvc.io.files import FileSystem
from mvc.testing import WrappedFS
from tests.counters import count
from tests.index_files import index_file

T = TypeVar("T")


class Place:
    """A repository with ``a/x`` and ``a/b/y`` of two versions, and a folder it must not touch."""

    def __init__(self, root: Path) -> None:
        self.tree, self.outside = root / "tree", root / "outside"
        (self.outside / "b").mkdir(parents=True)
        (self.tree / "a/b").mkdir(parents=True)
        with Repository.init(self.tree) as repo:
            self.ids = []
            for version in (b"one", b"two"):
                for name in ("a/x", "a/b/y"):
                    (self.tree / name).write_bytes(version)
                self.ids.append(str(repo.commit([self.tree / "a"]).id))

    def lead_out(self, name: str = "a") -> None:
        """Puts a link to the folder outside where a folder of the tree was."""
        os.rename(self.tree / name, self.tree / f"{name}.real")
        (self.tree / name).symlink_to(self.outside, target_is_directory=True)

    def untouched(self) -> bool:
        return sorted(p.name for p in self.outside.rglob("*")) == ["b"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("folder", ["a", "a/b"])
def test_a_link_in_place_of_a_folder_is_not_written_through(
    place: Place, folder: str, force: bool
) -> None:
    place.lead_out(folder)
    with Repository.open(place.tree) as repo:
        before = repo.log()[0].commit.id
        with pytest.raises(WouldOverwrite, match=f"{folder} is a symbolic link"):
            repo.checkout(place.ids[0], force=force, to=repo.root)
        with pytest.raises(WouldOverwrite, match=f"{folder} is a symbolic link"):
            repo.checkout(place.ids[0], path=["a/b/y"], force=force, to=repo.root)
        assert repo.log()[0].commit.id == before
    assert place.untouched()


def test_nothing_is_deleted_through_a_link(place: Place) -> None:
    with Repository.open(place.tree) as repo:
        (place.tree / "a/x").unlink()
        gone = repo.commit([place.tree / "a/b/y", place.tree / "a/x"]).id
        repo.checkout(place.ids[1], force=True, to=repo.root)
        place.lead_out()
        (place.outside / "x").write_bytes(b"two")
        (place.outside / "b/y").write_bytes(b"two")
        with pytest.raises(WouldOverwrite, match="a is a symbolic link"):
            repo.checkout(gone, force=True, to=repo.root)
    assert (place.outside / "x").read_bytes() == b"two"


def test_output_goes_where_the_user_says_but_no_further(place: Place, tmp_path: Path) -> None:
    """A link in the path that was typed is the user's; one below it is not followed."""
    (tmp_path / "way").symlink_to(place.outside, target_is_directory=True)
    with Repository.open(place.tree) as repo:
        repo.checkout(place.ids[0], to=tmp_path / "way")
        assert (place.outside / "a/b/y").read_bytes() == b"one"
        target = tmp_path / "target"
        target.mkdir()
        (target / "a").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (tmp_path / "elsewhere").mkdir()
        with pytest.raises(MvcError, match="symbolic link"):
            repo.checkout(place.ids[0], to=target, force=True)
        with pytest.raises(MvcError, match="symbolic link"):
            repo.checkout(place.ids[0], path=["a"], to=target, force=True)
        assert list((tmp_path / "elsewhere").iterdir()) == []
        repo.checkout(place.ids[0], path=["a/x"], to=tmp_path / "way/single.bin")
        assert (place.outside / "single.bin").read_bytes() == b"one"


@pytest.mark.parametrize("kind", ["symlink", "dangling", "hard link"])
def test_a_link_at_the_target_is_replaced_and_what_it_leads_to_stays(
    place: Place, kind: str
) -> None:
    secret = place.outside / "secret"
    if kind != "dangling":
        secret.write_bytes(b"secret")
    target = place.tree / "a/x"
    target.unlink()
    if kind == "hard link":
        os.link(secret, target)
    else:
        target.symlink_to(secret)
    with Repository.open(place.tree) as repo:
        repo.checkout(place.ids[0], force=True, to=repo.root)
    assert target.read_bytes() == b"one" and not target.is_symlink()
    assert secret.exists() == (kind != "dangling")
    assert kind == "dangling" or secret.read_bytes() == b"secret"


@pytest.mark.parametrize("name", ["a", "a/x"])
def test_a_device_or_pipe_at_the_target_is_refused(place: Place, name: str) -> None:
    os.rename(place.tree / name, place.tree / "aside")
    os.mkfifo(place.tree / name)
    with Repository.open(place.tree) as repo, pytest.raises(MvcError):
        repo.checkout(place.ids[0], force=True, to=repo.root)


class SwappingFS(WrappedFS):
    """Swaps ``a`` for a link right before one call: no check can come after it."""

    def __init__(self, place: Place, op: str, *, guarded: bool = True) -> None:
        super().__init__()
        self.place, self.op, self.guarded, self.swapped = place, op, guarded, False

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        inside = path.is_relative_to(self.place.tree / "a") and path.name != "a"
        if op == self.op and inside and not self.swapped:
            self.swapped = True
            self.place.lead_out()
        return act()

    def open_write(self, path: Path, **options: Any) -> Any:
        return super().open_write(path, **self._options(options))

    def replace(self, src: Path, dst: Path, **options: Any) -> None:
        super().replace(src, dst, **self._options(options))

    def make_dir(self, path: Path, *args: Any, **options: Any) -> None:
        super().make_dir(path, *args, **self._options(options))

    def unlink(self, path: Path, *args: Any, **options: Any) -> None:
        super().unlink(path, *args, **self._options(options))

    def sync_dir(self, path: Path, **options: Any) -> None:
        super().sync_dir(path, **self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self.guarded else options | {"within": None}


@pytest.mark.parametrize("op", ["open_write", "replace", "make_dir", "sync_dir", "stat"])
def test_a_swap_between_check_and_use(place: Place, op: str) -> None:
    with Repository.open(place.tree) as repo:
        repo.handle.store.fs = SwappingFS(place, op)
        with pytest.raises((IoFailed, WouldOverwrite)):
            repo.checkout(place.ids[0], force=True, to=repo.root)
        assert repo.handle.store.fs.swapped
    assert place.untouched()


def test_a_swap_before_a_deletion(place: Place) -> None:
    with Repository.open(place.tree) as repo:
        (place.tree / "a/x").unlink()
        gone = repo.commit([place.tree / "a/b/y", place.tree / "a/x"]).id
        repo.checkout(place.ids[1], force=True, to=repo.root)
        (place.outside / "x").write_bytes(b"two")
        repo.handle.store.fs = SwappingFS(place, "unlink")
        with pytest.raises(IoFailed, match="symbolic link"):
            repo.checkout(gone, to=repo.root)
    assert (place.outside / "x").read_bytes() == b"two"


def test_the_swaps_would_be_noticed(place: Place) -> None:
    """Without the anchor of the calls the very same swap leads outside."""
    with Repository.open(place.tree) as repo:
        repo.handle.store.fs = SwappingFS(place, "open_write", guarded=False)
        repo.checkout(place.ids[0], force=True, to=repo.root)
    assert not place.untouched()


def _swap(tree: str, outside: str, swaps: Synchronized[int], stop: Synchronized[int]) -> None:
    """Exchanges folder ``a`` and a link to the outside, over and over."""
    os.chdir(tree)
    os.symlink(outside, "link")
    while not stop.value:
        os.rename("a", "aside")
        os.rename("link", "a")
        os.rename("a", "link")
        os.rename("aside", "a")
        swaps.value += 2


@contextmanager
def swapping(place: Place) -> Iterator[tuple[Any, Synchronized[int]]]:
    context = multiprocessing.get_context("fork")
    swaps, stop = context.Value("q", 0), context.Value("q", 0)
    child = context.Process(target=_swap, args=(place.tree, place.outside, swaps, stop))
    child.start()
    try:
        yield child, swaps
    finally:
        stop.value = 1
        child.join(30)
        assert child.exitcode == 0


@pytest.mark.parametrize("wanted", [500, pytest.param(200_000, marks=pytest.mark.long)])
def test_many_swaps_in_another_process(place: Place, wanted: int) -> None:
    written = refused = 0
    with swapping(place) as (child, swaps):
        fs = FileSystem()
        path = place.tree / "a/x"
        while swaps.value < wanted or not written:
            assert child.is_alive()
            try:
                fs.replace_file(
                    path, lambda f: f.write(b"new"), mode=None, durable=False, within=place.tree
                )
                written += 1
            except IoFailed:
                refused += 1
        total = swaps.value
    assert place.untouched()
    count("link swaps", swaps=total, written=written, refused=refused, outside=0)


OWN = ["journal", "format", "packs", "index.lmdb", "index.lmdb/current"]


@pytest.mark.parametrize("name", OWN)
def test_a_link_in_the_repository_itself(place: Place, name: str) -> None:
    """LMDB would write its lock table into whatever file a link names."""
    with Repository.open(place.tree) as repo:
        repo.handle.store.snapshot.index_tail(force=True)
    own = place.tree / ".mvc" / name
    moved = place.outside / "b" / own.name
    os.rename(own, moved)
    own.symlink_to(moved)
    before = {p: p.read_bytes() for p in place.outside.rglob("*") if p.is_file()}
    for use in (Repository.open, Repository.init):
        with pytest.raises(IoFailed, match="symbolic link or a special file"):
            use(place.tree)
    assert before == {p: p.read_bytes() for p in place.outside.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb", "."])
def test_a_link_inside_the_index_is_replaced(place: Place, name: str) -> None:
    """Nothing is read from where it leads, nothing is written there."""
    with Repository.open(place.tree) as repo:
        repo.handle.store.snapshot.index_tail(force=True)
    own = index_file(place.tree).parent / name
    moved = place.outside / "b" / "moved"
    os.rename(own, moved)
    own.symlink_to(moved)
    before = {p: p.read_bytes() for p in place.outside.rglob("*") if p.is_file()}
    with Repository.open(place.tree) as repo:
        repo.handle.store.snapshot.index_tail(force=True)
        assert repo.storage.fsck(full=True).problems == ()
    assert before == {p: p.read_bytes() for p in place.outside.rglob("*") if p.is_file()}
    assert not own.is_symlink()


def test_a_pack_that_is_a_link_is_not_appended_to(place: Place) -> None:
    pack = place.tree / ".mvc/packs/00000001.pack"
    sound = pack.read_bytes()
    victim = place.outside / "b/victim"
    os.rename(pack, victim)
    pack.symlink_to(victim)
    with Repository.open(place.tree) as repo, pytest.raises(MvcError):
        repo.commit({"w": np.ones(3)}, message="m")
    assert victim.read_bytes() == sound


@pytest.mark.parametrize("name", ["00000001-000000000016.pack", ".mvc-tmp-0123456789abcdef"])
def test_a_quarantine_that_is_a_link_is_not_emptied(place: Place, name: str) -> None:
    """It could lead to the packs of another repository."""
    victim = place.outside / "b" / name
    victim.write_bytes(b"victim")
    (place.tree / ".mvc/quarantine").symlink_to(place.outside / "b")
    with Repository.open(place.tree) as repo:
        repo.storage.forget([place.ids[0]])
        with pytest.raises(IoFailed, match="quarantine is not a folder"):
            repo.storage.gc(grace=timedelta(0))
    assert victim.read_bytes() == b"victim"


def test_a_quarantine_that_is_a_link_takes_nothing_in(place: Place) -> None:
    pack = place.tree / ".mvc/packs/00000001.pack"
    data = bytearray(pack.read_bytes())
    data[16] ^= 1  # the header of the first record
    pack.write_bytes(data)
    (place.tree / ".mvc/quarantine").symlink_to(place.outside / "b")
    with Repository.open(place.tree) as repo, pytest.raises(IoFailed, match="is not a folder"):
        repo.storage.repair()
    assert place.untouched()


def test_a_pipe_in_place_of_a_leftover_keeps_nobody_waiting(place: Place) -> None:
    (place.tree / ".mvc/retraining").mkdir()
    os.mkfifo(place.tree / ".mvc/retraining/0123456789abcdef")
    with Repository.open(place.tree) as repo:
        repo.storage.gc(grace=timedelta(0))
    assert (place.tree / ".mvc/retraining/0123456789abcdef").exists()


def test_a_terabyte_of_nothing_in_quarantine_is_not_read(place: Place) -> None:
    (place.tree / ".mvc/quarantine").mkdir()
    huge = place.tree / ".mvc/quarantine/00000001-000000000016.pack"
    huge.touch()
    os.truncate(huge, 1 << 40)
    began = time.process_time()
    with Repository.open(place.tree) as repo:
        assert repo.storage.repair().after.sound
    assert time.process_time() - began < 60
