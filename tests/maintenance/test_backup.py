"""Backups and restores: of a repository in use, killed at any call, with bytes that are wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import (
    AlreadyARepository,
    Busy,
    DamagedData,
    MvcError,
    NotARepository,
    WouldOverwrite,
    WrongUsage,
)
from mvc.io.files import FileSystem
from mvc.maintenance.backup import backup, restore
from mvc.testing import WrappedFS, killed, open_quietly
from mvc.testing.files import WrappedWriteFile
from tests.crash.child import state_for
from tests.moving import move_every_pack
from tests.repo.working import tensors_of, write_model


def move_everything(root: Path) -> None:
    with Repository.open(root) as repo:
        move_every_pack(repo.handle)


def start(root: Path, name: str, count: int) -> subprocess.Popen[str]:
    child = [sys.executable, "-m", "tests.crash.child", str(root), name, str(count)]
    return subprocess.Popen(child, stdout=subprocess.PIPE, text=True)


def back_up(root: Path, place: Path) -> int:
    """How many bytes were copied."""
    with Repository.open(root) as repo:
        return repo.storage.backup(place).copied


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "repo"
    with Repository.init(made) as repo:
        for step in range(3):
            repo.commit(state_for("one", step), path="one.safetensors", deploy="prod")
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


# -- what it is of -------------------------------------------------------------------------------


@pytest.mark.parametrize("commits, rounds", [(6, 3), pytest.param(150, 60, marks=pytest.mark.long)])
def test_backups_of_a_repository_in_use(
    tmp_path: Path, place: Path, commits: int, rounds: int
) -> None:
    root = tmp_path / "repo"
    with Repository.init(root) as repo:
        repo.commit(state_for("first", 0))
    mover = subprocess.Popen([sys.executable, "-m", "tests.maintenance.test_backup", str(root)])
    children = [start(root, name, commits) for name in ("one", "two")]
    try:
        done, moved = 0, False
        while done < rounds or not moved:
            done += 1
            assert mover.poll() is None, "maintenance failed"
            with Repository.open(root) as repo:
                acknowledged = {entry.id for entry in repo.log()}
                moved = any(each.entry.operation == "repack" for each in repo.operations())
            back_up_at_last(root, place)
            with Repository.open(place) as repo:
                assert repo.storage.fsck(full=True).problems == ()
                assert acknowledged <= {entry.id for entry in repo.log()}
        for child in children:
            child.communicate(timeout=120)
            assert child.returncode == 0
        assert mover.poll() is None, "maintenance failed"
    finally:
        mover.kill()
        mover.wait()
        for child in children:
            child.kill()
            child.wait()
    back_up(root, place)
    with Repository.open(root) as repo, Repository.open(place) as copy:
        assert [e.id for e in copy.log()] == [e.id for e in repo.log()]
        assert copy.storage.fsck(full=True).sound and repo.storage.fsck(full=True).sound
        assert len(list(copy.log())) == 1 + 2 * commits


def back_up_at_last(root: Path, place: Path) -> None:
    """Maintenance that moves every pack without a pause may come first again and again."""
    while True:
        try:
            back_up(root, place)
        except Busy:
            continue
        return


def test_it_has_everything_and_is_restored(tmp_path: Path, place: Path) -> None:
    root = tmp_path / "repo"
    with Repository.init(root) as repo:
        write_model(root / "m.safetensors", w=np.arange(9000, dtype=np.float32))
        made = repo.commit(root, deploy="prod")
        repo.checkout(made.id)  # a note for 'queries'
    (root / ".mvc" / "config.yaml").write_text("gc:\n  grace_days: 3.0\n")
    (root / ".mvc" / "tokens").write_text("[]\n")
    (root / ".mvc" / "tokens").chmod(0o600)
    back_up(root, place)
    names = {path.name for path in (place / ".mvc").iterdir()}
    assert names == {
        ".gitignore", "backup", "backup.lock", "config.yaml", "format", "journal", "packs",
        "queries", "tokens",
    }  # fmt: skip
    assert (place / ".mvc" / "tokens").stat().st_mode & 0o777 == 0o600
    restored = tmp_path / "restored"
    restore(place, restored)
    with Repository.open(restored) as repo:
        repo.checkout("HEAD", force=True, to=repo.root)
        assert repo.live("prod").commit == made.id
        assert repo.config.get("gc.grace_days") == 3.0
        repo.commit({"w": np.ones(3)}, path="other")
    found = tensors_of(restored / "m.safetensors")
    assert found["w"].tobytes() == np.arange(9000, dtype=np.float32).tobytes()
    assert not (restored / ".mvc" / "backup").exists()


def test_an_older_backup_is_brought_up_to_date(root: Path, place: Path) -> None:
    first = back_up(root, place)
    before = files_below(place / ".mvc" / "packs")
    assert back_up(root, place) < first  # the journal alone
    with Repository.open(root) as repo:
        repo.commit(state_for("one", 3), path="one.safetensors")
    back_up(root, place)
    after = files_below(place / ".mvc" / "packs")
    assert all(after[name].startswith(data) for name, data in before.items())
    with Repository.open(place) as repo:
        assert len(list(repo.log())) == 4 and repo.storage.fsck(full=True).sound


def test_it_follows_maintenance(root: Path, place: Path) -> None:
    """What a gc has deleted is deleted there, too; what was forgotten is gone."""
    back_up(root, place)
    move_everything(root)
    with Repository.open(place) as repo:
        assert len(list(repo.log())) == 3
    back_up(root, place)
    with Repository.open(root) as repo:
        repo.storage.forget("HEAD~1")
        repo.storage.gc(grace="0")
    back_up(root, place)
    assert files_below(place / ".mvc" / "packs") == files_below(root / ".mvc" / "packs")
    with Repository.open(place) as repo:
        assert len(list(repo.log())) == 3 and repo.storage.fsck(full=True).sound


def test_of_a_repository_without_a_version(tmp_path: Path, place: Path) -> None:
    with Repository.init(tmp_path / "empty") as repo:
        done = repo.storage.backup(place)
    assert (done.versions, done.operations) == (0, 1)
    with Repository.open(place) as repo:
        assert repo.head().branch == "main"


# -- killed ----------------------------------------------------------------------------------------


def calls_of(act: Callable[[FileSystem], object]) -> int:
    """How many calls it makes, in a file system that only counts."""
    counted = Counting()
    act(counted)
    return counted.calls


class Counting(WrappedFS):
    calls = 0

    def call(self, op, path, act, *detail):
        self.calls += 1
        return act()


def moments(calls: int, most: int) -> Sequence[int]:
    return range(1, calls + 1, max(1, calls // most))


SOME = pytest.mark.parametrize("most", [10, pytest.param(10_000, marks=pytest.mark.long)])


def open_and_back_up(root: Path, place: Path, fs: FileSystem) -> None:
    with open_quietly(root, fs=fs) as repo:
        backup(repo.handle.store, place)


@SOME
@pytest.mark.parametrize("what", ["first", "more", "moved"])
def test_a_backup_that_is_killed(what: str, most: int, root: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    if what != "first":
        back_up(root, older)
        with Repository.open(root) as repo:
            repo.commit(state_for("one", 3), path="one.safetensors")
    if what == "moved":
        move_everything(root)

    def copied(name: str) -> Path:
        place = tmp_path / name
        if older.exists():
            shutil.copytree(older, place)
        return place

    calls = calls_of(lambda fs: open_and_back_up(root, copied("counted"), fs))
    for moment in moments(calls, most):
        place = copied(f"at-{moment}")
        killed(
            lambda fs, place=place: open_and_back_up(root, place, fs),
            lambda number, _, __, moment=moment: number == moment,
        )
        if older.exists():
            with Repository.open(place) as repo:
                assert len(list(repo.log())) in {3, 4} and repo.storage.fsck(full=True).sound
        back_up(root, place)
        assert files_below(place / ".mvc" / "packs") == files_below(root / ".mvc" / "packs")
        with Repository.open(place) as repo:
            assert repo.storage.fsck(full=True).sound
        shutil.rmtree(place)


@SOME
def test_a_restore_that_is_killed(most: int, root: Path, place: Path, tmp_path: Path) -> None:
    back_up(root, place)
    calls = calls_of(lambda fs: restore(place, tmp_path / "counted", fs=fs))
    for moment in moments(calls, most):
        restored = tmp_path / f"at-{moment}"
        killed(
            lambda fs, restored=restored: restore(place, restored, fs=fs),
            lambda number, _, __, moment=moment: number == moment,
        )
        try:
            Repository.open(restored, discover=False).close()
        except MvcError as error:
            assert isinstance(error, NotARepository) or "complete" in error.message
            restore(place, restored)
        with Repository.open(restored, discover=False) as repo:
            assert len(list(repo.log())) == 3 and repo.storage.fsck(full=True).sound
        shutil.rmtree(restored)


# -- bytes that are wrong --------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_here_does_not_get_there(root: Path, place: Path) -> None:
    back_up(root, place)
    before = files_below(place / ".mvc")
    with Repository.open(root) as repo:
        repo.commit(state_for("one", 3), path="one.safetensors")
    pack = root / ".mvc" / "packs" / "00000001.pack"
    flip(pack, pack.stat().st_size - 3)
    with pytest.raises(DamagedData, match=r"00000001.pack is damaged at byte \d+"):
        back_up(root, place)
    after = files_below(place / ".mvc")
    assert after["journal"] == before["journal"]
    assert after["packs/00000001.pack"].startswith(before["packs/00000001.pack"])
    with Repository.open(place) as repo:
        assert repo.storage.fsck(full=True).sound and len(list(repo.log())) == 3


class Forgetful(WrappedFS):
    """A disk that writes other bytes into files of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def write(self, file: WrappedWriteFile, offset: int, views) -> int:
        data = bytearray(b"".join(views))
        if file.path.name == self.name:
            data[-1] ^= 1
        file.inner.write_at(offset, bytes(data))
        return len(data)


@pytest.mark.parametrize("name", ["00000001.pack", ".mvc-tmp-journal"])
def test_a_disk_that_writes_something_else(root: Path, place: Path, name: str) -> None:
    with pytest.raises(DamagedData, match="reads back with other bytes"):
        open_and_back_up(root, place, Forgetful(name))
    with pytest.raises(DamagedData, match="not complete"):
        Repository.open(place)
    back_up(root, place)
    with Repository.open(place) as repo:
        assert repo.storage.fsck(full=True).sound


def test_a_pack_that_is_gone_there_is_copied_again(root: Path, place: Path) -> None:
    back_up(root, place)
    (place / ".mvc" / "packs" / "00000001.pack").unlink()
    back_up(root, place)
    with Repository.open(place) as repo:
        assert repo.storage.fsck(full=True).sound


def test_a_damaged_journal_is_not_backed_up(root: Path, place: Path) -> None:
    with Repository.open(root) as repo:
        offset = [each.offset for each in repo.handle.store.fresh().entries()][2]
    journal = root / ".mvc" / "journal"
    data = bytearray(journal.read_bytes())
    data[offset : offset + 40] = bytes(40)
    half = data.find(b"mvJ1", offset + 40)
    data[half : half + 40] = bytes(40)
    journal.write_bytes(data)
    shutil.rmtree(root / ".mvc" / "index.lmdb")
    with pytest.raises(DamagedData):
        back_up(root, place)


def test_links_in_a_strangers_backup_lead_nowhere(root: Path, place: Path, tmp_path: Path) -> None:
    back_up(root, place)
    secret = tmp_path / "secret"
    secret.write_bytes(b"mvcpack1" + b"secret" * 100_000)
    for name in ("config.yaml", "tokens", "packs/00000001.pack"):
        (place / ".mvc" / name).unlink(missing_ok=True)
        (place / ".mvc" / name).symlink_to(secret)
    with pytest.raises(DamagedData):
        restore(place, tmp_path / "restored")
    with pytest.raises(DamagedData, match="not complete"):
        Repository.open(tmp_path / "restored")
    left = [path for path in (tmp_path / "restored").rglob("*") if path.is_symlink()]
    assert not left and not (tmp_path / "restored/.mvc/tokens").exists()


# -- what is not a backup --------------------------------------------------------------------------


def test_what_is_refused(root: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="the repository itself"):
        back_up(root, root)
    with pytest.raises(WrongUsage, match="store of a repository"):
        back_up(root, root / ".mvc" / "packs")
    other = tmp_path / "other"
    with Repository.init(other) as repo:
        repo.commit(state_for("two", 0))
    before = files_below(other)
    with pytest.raises(WouldOverwrite, match="has a repository that is not a backup"):
        back_up(root, other)
    with pytest.raises(AlreadyARepository):
        restore(root, other)
    assert files_below(other) == before
    back_up(other, place)
    with pytest.raises(WouldOverwrite, match="a backup of another repository"):
        back_up(root, place)
    with pytest.raises(NotARepository):
        restore(tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_backup_in_which_somebody_worked(root: Path, place: Path) -> None:
    back_up(root, place)
    with Repository.open(place) as repo:
        made = repo.commit(state_for("two", 0))
    with pytest.raises(WouldOverwrite, match="was changed after it was made"):
        back_up(root, place)
    with Repository.open(place) as repo:
        assert made.id in {entry.id for entry in repo.log()}


def test_a_backup_of_another_copy(root: Path, place: Path, tmp_path: Path) -> None:
    """Two copies of one repository go apart: what the backup has of one is not overwritten."""
    twin = tmp_path / "twin"
    shutil.copytree(root, twin)
    for folder, name in ((root, "here"), (twin, "there")):
        with Repository.open(folder) as repo:
            repo.commit(state_for(name, 9))
    back_up(root, place)
    with pytest.raises(DamagedData, match="differs from the repository's"):
        back_up(twin, place)
    with Repository.open(place) as repo:
        assert repo.storage.fsck(full=True).sound


@pytest.mark.parametrize("text", ["", "{", '{"identity": 3}', '{"identity": "", "x": 1}'])
def test_a_mark_that_says_nothing(root: Path, place: Path, text: str) -> None:
    back_up(root, place)
    (place / ".mvc" / "backup").write_text(text)
    with pytest.raises(DamagedData, match="does not name the repository"):
        back_up(root, place)


def test_two_at_once(root: Path, place: Path) -> None:
    back_up(root, place)
    with FileSystem().lock(place / ".mvc" / "backup.lock"), pytest.raises(Busy):
        back_up(root, place)


if __name__ == "__main__":
    while True:
        move_everything(Path(sys.argv[1]))
        time.sleep(0.2)
