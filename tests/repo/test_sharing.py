"""Permissions of what is made in ``.mvc``: the umask's, or of a shared repository its folder's."""

from __future__ import annotations

import os
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import WrongUsage
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from tests.moving import move_every_pack

PRIVATE, STRICT, USUAL, LOOSE = 0o077, 0o027, 0o022, 0o002


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """By name all files and folders of ``.mvc``, and itself as a point."""
    folder = root / ".mvc"
    found = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in found
        if not path.is_symlink()
    }


def live(root: Path, rounds: int = 2) -> None:
    """Whatever makes files: commits, deployments, queries, maintenance, remotes, checkouts."""
    with Repository.open(root) as repo:
        for step in range(rounds):
            repo.commit({"w": np.arange(2000) + step}, deploy="prod")
        repo.checkout("HEAD")
        repo.storage.rebuild_index()
        move_every_pack(repo.handle)
        repo.storage.gc(grace="0")
        repo.branch("side", force=True)


@pytest.mark.parametrize("mask", [PRIVATE, STRICT, USUAL, LOOSE])
def test_the_umask_alone_decides(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        Repository.init(tmp_path / "repo").close()
        live(tmp_path / "repo")
    for name, mode in modes(tmp_path / "repo").items():
        there = tmp_path / "repo" / ".mvc" / name
        assert mode == (0o777 if there.is_dir() else 0o666) & ~mask, name


@pytest.mark.parametrize("mask", [PRIVATE, STRICT, USUAL, LOOSE])
@pytest.mark.parametrize("shared, others", [("group", 0), ("all", 0o5)])
def test_a_shared_one_does_not_ask_the_umask(
    tmp_path: Path, mask: int, shared: str, others: int
) -> None:
    root = tmp_path / "repo"
    with umask(STRICT if shared == "group" else PRIVATE):
        Repository.init(root, shared=shared).close()
    with umask(mask):  # of another one of the group
        live(root)
    for name, mode in modes(root).items():
        wanted = 0o2770 | others if (root / ".mvc" / name).is_dir() else 0o660 | others & 4
        assert mode == wanted, name
    assert modes(root)["index.lmdb"] == 0o2770 | others


def test_a_repository_becomes_shared_by_its_modes(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    with umask(USUAL):
        Repository.init(root).close()
        live(root, 1)
        for path in [root / ".mvc", *(root / ".mvc").rglob("*")]:
            path.chmod(0o2775 if path.is_dir() else 0o664)
        live(root)
    assert set(modes(root).values()) == {0o2775, 0o664}


def test_working_files_are_the_umasks(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    with umask(STRICT), Repository.init(root, shared="group") as repo:
        repo.commit({"w": np.arange(3)}, path="m.safetensors")
        repo.checkout("HEAD", to=root, force=True)
        assert stat.S_IMODE((root / "m.safetensors").stat().st_mode) == 0o640


def test_pushes_of_a_group(tmp_path: Path) -> None:
    """Those who push through a folder, each with an umask of his own."""
    shared = tmp_path / "shared"
    with umask(USUAL):
        Repository.init(shared, bare=True, shared="group").close()
    for name, mask in (("ada", PRIVATE), ("bob", USUAL)):
        with umask(mask), Repository.init(tmp_path / name, branch=name) as repo:
            repo.commit({"w": np.arange(2000)}, message=name)
            repo.remotes.add("origin", str(shared))
            repo.push("origin", [name])
    assert set(modes(shared).values()) == {0o2775, 0o664}


GROUP, ADA, BOB, STRANGER = 54_320, 54_321, 54_322, 54_323


def as_user(user: int, groups: list[int], act: Callable[[], object]) -> bool:
    """Whether ``act`` ends well in a fork that is this user; what it raises is printed."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            os.umask(PRIVATE)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_two_users_work_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, index, maintenance and settings of one are in no way of the other."""
    monkeypatch.setenv("MVC_SAFE_DIRECTORY", "*")
    monkeypatch.setenv("HOME", "/")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        os.chown(folder, ADA, GROUP)
        folder.chmod(0o2770)
        root = folder / "repo"

        def begin() -> None:
            Repository.init(root, shared="group").close()
            live(root)

        def goes_on() -> None:
            live(root)
            set_value(FileSystem(), root / ".mvc" / "config.yaml", "gc.grace_days", "3")
            with Repository.open(root) as repo:
                assert repo.storage.fsck(full=True).sound

        with Repository.init(folder / "of-root") as repo:  # imports what others cannot read here
            live(repo.root)
            assert repo.storage.fsck(full=True).sound
        assert as_user(ADA, [GROUP], begin)
        assert as_user(BOB, [GROUP], goes_on)
        assert BOB in {path.lstat().st_uid for path in (root / ".mvc").rglob("*")}
        assert as_user(ADA, [GROUP], goes_on)
        assert not as_user(STRANGER, [], goes_on)
        assert {path.lstat().st_gid for path in (root / ".mvc").rglob("*")} == {GROUP}
        assert set(modes(root).values()) == {0o2770, 0o660}


def test_a_word_that_shares_with_nobody(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="group or all"):
        Repository.init(tmp_path / "repo", shared="world")  # type: ignore[arg-type]
    assert not (tmp_path / "repo" / ".mvc").exists()
