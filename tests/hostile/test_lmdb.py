"""T13: the index's database as other processes, forks, folders and engines leave it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.store.index import keys
from tests.counters import count
from tests.hostile.bounded import ROOT
from tests.lent_index import environment, open_index
from tests.store.repositories import CheckedHistory

FS = FileSystem()


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    made = CheckedHistory(tmp_path / "repo", 4)
    made.index()
    return made


def answers(history: CheckedHistory, *, fsck: bool = True) -> bool:
    """Whether everything is there; ``fsck`` sees keys that a test has made up, too."""
    with history.open() as repo:
        assert [e.id for e in repo.log()] == history.ids[::-1]
        assert repo.live("prod").commit == history.ids[-1]
        return history.wrong(repo) == [] and not (fsck and repo.storage.fsck().problems)


def test_the_map_grows_as_it_is_filled(
    history: CheckedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.store.index.index.FIRST_MAP", 1 << 16)
    with history.open() as repo:
        view = repo.handle.store.snapshot
        index = open_index(repo)
        assert index is not None
        before = environment(index).info()["map_size"]
        rng = np.random.default_rng(0)
        meta = index.meta(view.identity)
        fresh = [keys.BLOB + rng.bytes(40) for _ in range(20_000)]
        meta = index.extend(meta, fresh, meta.position)
        assert environment(index).info()["map_size"] > before
        found = {key for run in index.readers(meta) for key in run.scan(b"", b"\xff" * 50)}
        assert found >= set(fresh)
    assert answers(history, fsck=False)


CHILD = """
import os, sys
from mvc.api.repository import Repository
from mvc.store.index import keys
from tests.lent_index import environment, open_index
repo = Repository.open(sys.argv[1])
index = open_index(repo)
meta = index.meta(repo.handle.store.snapshot.identity)
environment(index).set_mapsize(256 << 20)
fresh = [keys.BLOB + os.urandom(40) for _ in range(60000)]
index.extend(meta, fresh, meta.position)
repo.close()
"""


def child(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def test_another_process_makes_the_map_larger(
    history: CheckedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mvc.store.index.index.FIRST_MAP", 1 << 20)
    with history.open() as repo:
        assert history.wrong(repo) == []
        other = child(CHILD, history.root)
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, out + err
        assert history.index_file.stat().st_size > 1 << 20
        open_index(repo).meta(repo.handle.store.snapshot.identity)
        history.add(repo)
        repo.handle.store.snapshot.index_tail(force=True)
        assert history.wrong(repo) == []
    assert answers(history, fsck=False)


READER = """
import sys, time
from mvc.api.repository import Repository
from tests.lent_index import environment, open_index
repo = Repository.open(sys.argv[1])
txn = environment(open_index(repo)).begin()
txn.get(b"meta")
print("reading", flush=True)
time.sleep(600)
"""


def test_killed_readers_pin_nothing(history: CheckedHistory) -> None:
    """A reader that is killed inside a transaction is cleared by whoever opens next."""
    others = [child(READER, history.root) for _ in range(3)]
    for other in others:
        assert other.stdout is not None and other.stdout.readline() == "reading\n"
    with history.open() as repo:
        assert environment(open_index(repo)).info()["num_readers"] >= 3
    for other in others:
        other.send_signal(signal.SIGKILL)
        other.communicate(timeout=30)
    with history.open() as repo:
        assert environment(open_index(repo)).reader_check() == 0, "opening has cleared them"
        listed = environment(open_index(repo)).readers().split()
        assert not {str(other.pid) for other in others} & set(listed)
        before = history.index_file.stat().st_size
        for _ in range(20):
            history.add(repo)
            repo.handle.store.snapshot.index_tail(force=True)
        assert history.index_file.stat().st_size < before + (4 << 20)
    assert answers(history)
    count("LMDB, killed readers", readers=3, pinned=0)


def test_a_forked_child_has_an_environment_of_its_own(history: CheckedHistory) -> None:
    with history.open() as repo:
        assert history.wrong(repo) == []
        mine = open_index(repo)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ids = [e.id for e in repo.log()]
                code = 0 if ids == history.ids[::-1] and open_index(repo) is not mine else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert open_index(repo) is mine
        history.add(repo)
        repo.handle.store.snapshot.index_tail(force=True)
    assert answers(history)


class ReadOnlyFS(FileSystem):
    """A folder that cannot be written, also for root."""

    def is_writable_dir(self, path: Path) -> bool:
        return False


@pytest.mark.parametrize("lock", [True, False])
def test_a_folder_that_cannot_be_written(history: CheckedHistory, lock: bool) -> None:
    """With and without the lock file: readers of a read-only folder make none."""
    folder = history.index_file.parent
    if not lock:
        (folder / "lock.mdb").unlink()
    before = {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (history.root / ".mvc").rglob("*")}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with Repository.open(history.root, fs=ReadOnlyFS()) as repo:
            assert not repo.handle.store.snapshot.writable
            assert [e.id for e in repo.log()] == history.ids[::-1]
            assert history.wrong(repo) == []
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert before == {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}


def test_an_index_without_its_lock_file_is_built_anew(history: CheckedHistory) -> None:
    before = history.index_file.parent
    (before / "lock.mdb").unlink()
    assert answers(history)
    after = history.index_file.parent
    assert after != before
    assert (after / "lock.mdb").exists()


@pytest.mark.parametrize("size", [0, 1, 100, 8192])
def test_a_lock_file_of_garbage(history: CheckedHistory, size: int) -> None:
    folder = history.index_file.parent
    (folder / "lock.mdb").write_bytes(b"\xee" * size)
    assert answers(history)


def other_engine(folder: Path) -> bool:
    """A database in the format of LMDB 1.0 in ``folder``; False if the package cannot."""
    try:
        env = lmdb.open(str(folder), lib_version=1, map_size=1 << 20)
        with env, env.begin(write=True) as txn:
            txn.put(b"meta", b"from the other engine")
    except (TypeError, lmdb.Error):
        return False
    return True


@pytest.mark.parametrize("version", ["engine", 2, 3, 999, 0, 0xFFFFFFFF])
def test_a_file_of_another_engine_is_made_anew(history: CheckedHistory, version: str | int) -> None:
    folder = history.index_file.parent
    if version == "engine":
        shutil.rmtree(folder)
        folder.mkdir()
        if not other_engine(folder):
            pytest.skip("this package of lmdb has one engine only")
    else:
        data = bytearray(history.index_file.read_bytes())
        for page in (0, 4096):
            data[page + 20 : page + 24] = int(version).to_bytes(4, "little")
        history.index_file.write_bytes(data)
    assert answers(history)
    with history.open() as repo:
        repo.handle.store.snapshot.index_tail(force=True)
        assert open_index(repo).meta(repo.handle.store.snapshot.identity).runs


def test_two_handles_of_one_process_share_the_environment(history: CheckedHistory) -> None:
    with history.open() as one, history.open() as two:
        assert open_index(one) is open_index(two)
        history.add(one)
        one.handle.store.snapshot.index_tail(force=True)
        assert [e.id for e in two.log()] == history.ids[::-1]


def test_the_engine_that_is_asked_for() -> None:
    """The file format that is written is the one every lmdb of the allowed versions reads."""
    assert lmdb.version()[:2] == (0, 9)
