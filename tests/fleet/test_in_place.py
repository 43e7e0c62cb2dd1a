"""A file or a folder that is written in place; a mixture never counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import CommandFailed, IoFailed, MvcError, StorageFull, WouldOverwrite, WrongUsage
from mvc.io.files import FileSystem, WriteFile
from mvc.remote.replicas.replica import Replica
from mvc.remote.replicas.versions import Update
from mvc.remote.transports.opening import open_transport
from mvc.serving.sinks import TakenOver
from mvc.testing import FailingFS, HookedFS, Killed, KilledFS
from tests.fleet.folders import commit, contents, shards
from tests.fleet.following import follow

FILE = "net.safetensors"


def deploy(repo: Repository, step: int, shape: tuple[int, ...] = (400, 1000)) -> None:
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weights[:, step % 7 :: 7] *= np.float32(1 + step)
    repo.commit({"w": weights, "n": np.array(step)}, path=FILE, deploy="prod")


def make(repo: Repository, work: Path, step: int, kind: str, count: int = 2) -> None:
    if kind == "file":
        deploy(repo, step)
    else:
        commit(repo, work, step, count=count)


def wanted(repo: Repository, to: Path, kind: str) -> dict[str, bytes]:
    if kind == "file":
        repo.checkout(target="prod", path=FILE, to=to / FILE, force=True)
        return contents(to / FILE)
    repo.checkout(target="prod", to=to, atomic_dir=True)
    return contents(to)


def place(tmp_path: Path, kind: str) -> Path:
    (tmp_path / "node").mkdir(exist_ok=True)
    return tmp_path / "node" / ("live.safetensors" if kind == "file" else "live")


kinds = pytest.mark.parametrize("kind", ["file", "folder"])


@kinds
def test_it_is_what_checkout_writes(repo: Repository, tmp_path: Path, kind: str) -> None:
    node, inodes = place(tmp_path, kind), set()
    if kind == "folder":
        node.mkdir()  # an empty folder is no one's
    for step in range(4):
        make(repo, tmp_path / "work", step, kind)
        done = follow(repo.root, "prod", to=node, once=True, in_place=True)
        assert done is not None
        assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
        inodes.add((node if kind == "file" else node / shards()[0]).stat().st_ino)
    assert len(inodes) == 1
    assert follow(repo.root, "prod", to=node, once=True, in_place=True) is None
    repo.rollback("prod")
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
    assert not node.is_symlink()
    beside = node.with_name(f".{node.name}.mvc")
    assert {each.name for each in beside.iterdir()} == {".gitignore", "lock", "note", "records"}


def test_another_layout(repo: Repository, tmp_path: Path) -> None:
    node = place(tmp_path, "folder")
    for step, count in enumerate((2, 3, 1, 2)):
        commit(repo, tmp_path / "work", step, count=count)
        follow(repo.root, "prod", to=node, once=True, in_place=True)
        assert contents(node) == wanted(repo, tmp_path / "wanted", "folder")
    node = place(tmp_path, "file")
    for step, shape in enumerate(((40, 1000), (40, 900), (41, 1001), (1, 3))):
        deploy(repo, step, shape)
        follow(repo.root, "prod", to=node, once=True, in_place=True, path=FILE)
        assert contents(node) == wanted(repo, tmp_path / "wanted", "file")


@kinds
def test_the_version_before_comes_back(repo: Repository, tmp_path: Path, kind: str) -> None:
    node = place(tmp_path, kind)
    transport = open_transport(str(repo.root))
    replica = Replica(FileSystem(), node, folder=kind == "folder", in_place=True, undo=True)
    make(repo, tmp_path / "work", 0, kind)
    replica.update(transport, "prod")
    old = contents(node)
    make(repo, tmp_path / "work", 1, kind, count=3)
    update = replica.update(transport, "prod")
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
    replica.go_back(update)
    assert contents(node) == old
    assert replica.current() is not None
    again = replica.update(transport, "prod")
    assert not again.foreign
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
    change(node if kind == "file" else node / "notes.txt")
    replica.go_back(again)  # over what something else wrote: it does not count
    assert replica.current() is None
    update = replica.update(transport, "prod")
    assert update.foreign
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
    replica.settle()
    with pytest.raises(IoFailed):
        replica.go_back(again)


def test_a_kill_on_the_way_back_where_the_clock_stands(repo: Repository, tmp_path: Path) -> None:
    """A file system's clock may give two writes one time."""
    node, transport, is_back = place(tmp_path, "folder"), open_transport(str(repo.root)), False
    fs = KilledFS(lambda _, op, path: is_back and (op, path.name) == ("unlink", "redo"))
    replica = Replica(fs, node, folder=True, in_place=True, undo=True)
    for step in range(2):
        commit(repo, tmp_path / "work", step)
        update = replica.update(transport, "prod")
    times = {each: each.stat().st_mtime_ns for each in node.rglob("*")}
    is_back = True
    with pytest.raises(Killed):
        replica.go_back(update)
    replica.close()
    replica = Replica(FileSystem(), node, folder=True, in_place=True)
    for each, ns in times.items():
        os.utime(each, ns=(ns, ns))
    found = replica.current()
    assert found is not None and update.before is not None
    assert found.id == update.before.id


@kinds
def test_prepare_fails(repo: Repository, tmp_path: Path, kind: str) -> None:
    node = place(tmp_path, kind)
    transport = open_transport(str(repo.root))
    replica = Replica(FileSystem(), node, folder=kind == "folder", in_place=True)
    make(repo, tmp_path / "work", 0, kind)
    replica.update(transport, "prod")
    old = contents(node)
    make(repo, tmp_path / "work", 1, kind)

    def refuse(update: Update) -> None:
        assert contents(node) == old
        raise IoFailed("the engine does not answer")

    with pytest.raises(IoFailed, match="does not answer"):
        replica.update(transport, "prod", prepare=refuse)
    assert contents(node) == old
    assert not replica.update(transport, "prod").foreign
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)


@kinds
def test_a_kill_at_every_call_of_a_swap(repo: Repository, tmp_path: Path, kind: str) -> None:
    node = place(tmp_path, kind)

    def update(fs: FileSystem) -> Update:
        replica = Replica(fs, node, folder=kind == "folder", in_place=True, undo=True)
        try:
            return replica.update(open_transport(str(repo.root)), "prod")
        finally:
            replica.close()

    make(repo, tmp_path / "work", 0, kind)
    versions = [wanted(repo, tmp_path / "wanted", kind)]
    update(FileSystem())
    make(repo, tmp_path / "work", 1, kind)
    counting = HookedFS(lambda *_: None)
    update(counting)
    half = 0
    for number in range(1, counting.calls, 3):
        make(repo, tmp_path / "work", number + 1, kind)
        versions = [contents(node), wanted(repo, tmp_path / "wanted", kind)]
        with pytest.raises(Killed):
            update(KilledFS(lambda n, *_, at=number: n >= at))
        half += contents(node) not in versions
        replica = Replica(FileSystem(), node, folder=kind == "folder", in_place=True)
        assert contents(node) in versions
        assert replica.current() is not None
        assert not replica.update(open_transport(str(repo.root)), "prod").foreign
        replica.close()
        assert contents(node) == versions[1]
    assert half


@kinds
def test_a_file_with_other_names_is_copied_first(
    repo: Repository, tmp_path: Path, kind: str
) -> None:
    node = place(tmp_path, kind)
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    for file in [node] if kind == "file" else [node / each for each in shards()]:
        file.chmod(0o640)
        os.link(file, tmp_path / file.name)
    old = {file.name: file.read_bytes() for file in tmp_path.glob("*.safetensors")}
    make(repo, tmp_path / "work", 1, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
    for name, data in old.items():
        assert (tmp_path / name).read_bytes() == data
    assert {f.stat().st_mode & 0o777 for f in node.parent.rglob("*.safetensors")} == {0o640}


def change(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


@kinds
@pytest.mark.parametrize("harm", [change, Path.unlink, lambda file: file.write_bytes(b"other")])
def test_what_something_else_wrote_is_never_mixed(
    repo: Repository, tmp_path: Path, kind: str, harm: Callable[[Path], object]
) -> None:
    node = place(tmp_path, kind)
    file = node if kind == "file" else node / shards()[0]
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    harm(file)
    make(repo, tmp_path / "work", 1, kind)
    if file.exists():
        with pytest.warns(TakenOver):
            follow(repo.root, "prod", to=node, once=True, in_place=True)
    else:
        follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)


@kinds
def test_what_something_else_writes_before_the_pause(
    repo: Repository, tmp_path: Path, kind: str
) -> None:
    node = place(tmp_path, kind)
    transport = open_transport(str(repo.root))
    replica = Replica(FileSystem(), node, folder=kind == "folder", in_place=True)
    make(repo, tmp_path / "work", 0, kind)
    replica.update(transport, "prod")
    make(repo, tmp_path / "work", 1, kind)
    file = node if kind == "file" else node / shards()[0]
    with pytest.raises(IoFailed, match="another program changed"):
        replica.update(transport, "prod", prepare=lambda update: change(file))
    assert replica.current() is None
    assert replica.update(transport, "prod").foreign
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)


@kinds
def test_a_file_that_is_replaced_while_it_is_written(
    repo: Repository, tmp_path: Path, kind: str
) -> None:
    node = place(tmp_path, kind)
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    file = node if kind == "file" else node / shards()[0]

    def replace(_: int, op: str, path: Path) -> None:
        if (op, path.name) == ("replace", "redo"):
            (tmp_path / "other").write_bytes(bytes(file.stat().st_size))
            (tmp_path / "other").replace(file)

    make(repo, tmp_path / "work", 1, kind)
    with pytest.raises(IoFailed, match="another program"):
        follow(repo.root, "prod", to=node, once=True, in_place=True, fs=HookedFS(replace))
    with pytest.warns(TakenOver):
        follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)


@kinds
def test_a_full_disk_in_the_middle(repo: Repository, tmp_path: Path, kind: str) -> None:
    node = place(tmp_path, kind)
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    for number in range(1, 100):
        old = contents(node)
        make(repo, tmp_path / "work", number, kind)
        beside = node.with_name(f".{node.name}.mvc")
        new = wanted(repo, tmp_path / "wanted", kind)
        fs = FailingFS(fail_at=number, error=errno.ENOSPC, persistent=True, within=node.parent)
        try:
            follow(repo.root, "prod", to=node, once=True, in_place=True, fs=fs)
        except IoFailed:
            assert contents(node) in (old, new) or (beside / "redo").exists()
        else:
            if not fs.failures:
                break
        follow(repo.root, "prod", to=node, once=True, in_place=True)
        assert contents(node) == new
    assert number > 5


@kinds
def test_a_file_that_may_not_be_written(repo: Repository, tmp_path: Path, kind: str) -> None:
    class ReadOnlyFiles(FileSystem):
        def open_write(self, path: Path, **options: Any) -> WriteFile:
            if path.suffix == ".safetensors":
                raise IoFailed(f"cannot write {path}: Permission denied")
            return super().open_write(path, **options)

    node = place(tmp_path, kind)
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    old = contents(node)
    make(repo, tmp_path / "work", 1, kind, count=3)
    with pytest.raises(IoFailed, match="denied"):
        follow(repo.root, "prod", to=node, once=True, in_place=True, fs=ReadOnlyFiles())
    assert contents(node) == old


def test_the_journal_takes_the_room_of_a_larger_file(repo: Repository, tmp_path: Path) -> None:
    node = place(tmp_path, "file")
    deploy(repo, 0)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    old, next_ = contents(node), node.with_name(f".{node.name}.mvc") / "next"

    class Small(FileSystem):
        def free_bytes(self, path: Path) -> int:
            return 2_000_000 - (next_.stat().st_size if next_.exists() else 0)

    deploy(repo, 1, (800, 1000))  # 1.6 MB more
    with pytest.raises(StorageFull, match=r"nearly full: .* needs [0-9.]+ MB more") as found:
        follow(repo.root, "prod", to=node, once=True, in_place=True, fs=Small())
    assert contents(node) == old and not next_.exists()
    assert "the previous version stays" in str(found.value.hint)


def test_bad_places(repo: Repository, tmp_path: Path) -> None:
    commit(repo, tmp_path / "work", 0)
    full, link = tmp_path / "full", tmp_path / "link"
    full.mkdir()
    (full / "mine").write_text("mine")
    link.symlink_to(full)
    for node, error in ((full, WouldOverwrite), (link, WrongUsage), (tmp_path / "no/no", MvcError)):
        with pytest.raises(error):
            follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert [each.name for each in full.iterdir()] == ["mine"]
    for in_place in (False, True):
        with pytest.raises(WrongUsage, match="cannot be replaced"):
            follow(repo.root, "prod", to=Path(), once=True, in_place=in_place)


def test_a_folder_is_not_foreign_after_its_note_was_lost(repo: Repository, tmp_path: Path) -> None:
    node = place(tmp_path, "folder")
    commit(repo, tmp_path / "work", 0)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    (tmp_path / "node" / ".live.mvc" / "note").unlink()
    for _ in range(2):
        Replica(FileSystem(), node, folder=True, in_place=True).close()
    commit(repo, tmp_path / "work", 1)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", "folder")


def test_a_folder_that_was_kept_the_other_way(repo: Repository, tmp_path: Path) -> None:
    commit(repo, tmp_path / "work", 0)
    linked, real = tmp_path / "linked", tmp_path / "real"
    for node, in_place in ((linked, False), (real, True)):
        follow(repo.root, "prod", to=node, once=True, in_place=in_place)
        words = "was created with" if in_place else "was created without"
        for _ in range(2):
            with pytest.raises(WouldOverwrite, match=f"{node.name} {words} --in-place"):
                follow(repo.root, "prod", to=node, once=True, in_place=not in_place)
        follow(repo.root, "prod", to=node, once=True, in_place=in_place)
        node.rename(tmp_path / f"{node.name}.away")
        follow(repo.root, "prod", to=node, once=True, in_place=not in_place)
    assert contents(linked) == contents(real) and real.is_symlink() and not linked.is_symlink()


@kinds
def test_a_command_that_has_to_succeed(repo: Repository, tmp_path: Path, kind: str) -> None:
    node = place(tmp_path, kind)
    make(repo, tmp_path / "work", 0, kind)
    follow(repo.root, "prod", to=node, once=True, in_place=True)
    old = contents(node)
    make(repo, tmp_path / "work", 1, kind, count=3)
    for _ in range(2):
        with pytest.raises(CommandFailed, match=r"again: .* may serve another version"):
            follow(
                repo.root,
                "prod",
                to=node,
                once=True,
                in_place=True,
                command="exit 3",
                required=True,
            )
        assert contents(node) == old
    follow(repo.root, "prod", to=node, once=True, in_place=True, command="true", required=True)
    assert contents(node) == wanted(repo, tmp_path / "wanted", kind)
