"""Locks: between processes, within one, and after a death."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.errors import Busy, IoFailed, ReadOnly
from mvc.io.files import FileSystem
from mvc.io.patience import StillWaiting

_HOLDER = """
import sys, time
from pathlib import Path
from mvc.io.files import FileSystem
lock = FileSystem().lock(Path(sys.argv[1]), shared=sys.argv[2] == "shared")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def fs() -> FileSystem:
    return FileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


class Holders:
    """Starts processes that hold a lock until they are killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, kind: str = "exclusive") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(self.path), kind],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process


@pytest.fixture
def holders(path: Path) -> Iterator[Holders]:
    made = Holders(path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def test_another_process_is_kept_out_until_it_is_killed(
    fs: FileSystem, path: Path, holders: Holders
) -> None:
    holder = holders.start()
    assert fs.lock(path, block=False) is None
    assert fs.lock(path, shared=True, block=False) is None
    started = time.monotonic()
    with pytest.raises(Busy, match=str(path)):
        fs.lock(path, timeout=0.1)
    assert time.monotonic() - started >= 0.1
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = fs.lock(path, timeout=0)
    assert lock is not None and lock.is_locked


def test_a_process_that_holds_a_lock_for_too_long_is_named(
    fs: FileSystem, path: Path, holders: Holders
) -> None:
    holder = holders.start()
    holder.send_signal(signal.SIGSTOP)
    named = rf"process {holder.pid} \(.*\), which is stopped, has been locking {path} for more than"
    with pytest.raises(Busy, match=named):
        fs.lock(path, timeout=1.5)


@pytest.mark.long
def test_a_long_wait_is_said(fs: FileSystem, path: Path, holders: Holders) -> None:
    holder = holders.start()
    timer = threading.Timer(6.5, holder.kill)
    timer.start()
    with pytest.warns(StillWaiting, match=f"waiting for {path}, locked by process {holder.pid}"):
        fs.lock(path, timeout=20).release()


def test_shared_locks_share_and_keep_writers_out(
    fs: FileSystem, path: Path, holders: Holders
) -> None:
    holders.start("shared")
    with fs.lock(path, shared=True, block=False) as lock:
        assert lock.is_locked
        assert fs.lock(path, block=False) is None
    assert fs.lock(path, block=False) is None


def test_two_locks_of_one_process_exclude_each_other(fs: FileSystem, path: Path) -> None:
    with fs.lock(path) as first:
        assert fs.lock(path, block=False) is None
        assert first.path == path
    assert not first.is_locked
    first.release()
    second = fs.lock(path, block=False)
    assert second is not None
    second.release()


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_waiting_ends_when_the_lock_is_released(
    fs: FileSystem, path: Path, timeout: float | None
) -> None:
    lock = fs.lock(path)
    assert lock is not None
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    with fs.lock(path, timeout=timeout) as later:
        assert later.is_locked
        assert not lock.is_locked
    timer.join()


def test_a_lock_nobody_holds_any_more_is_released(fs: FileSystem, path: Path) -> None:
    fs.lock(path)
    assert fs.lock(path, block=False) is not None


def test_the_file_is_created_and_its_content_stays(fs: FileSystem, path: Path) -> None:
    with fs.lock(path):
        assert path.exists()
    path.write_bytes(b"content")
    with fs.lock(path):
        assert path.read_bytes() == b"content"


def test_a_file_deleted_while_waiting_is_not_locked(fs: FileSystem, path: Path) -> None:
    """Else two processes would each hold a lock, one on a file without a name."""
    old = fs.lock(path)
    assert old is not None
    found: list[bool] = []

    def wait() -> None:
        with fs.lock(path, timeout=10) as lock:
            found.append(lock.is_locked and fs.lock(path, block=False) is None)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    fs.unlink(path)
    old.release()
    thread.join()
    assert found == [True]


def test_a_forked_child_does_not_keep_the_lock(fs: FileSystem, path: Path) -> None:
    ready, done = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        lock = fs.lock(path)
        if os.fork() == 0:  # outlives its parent, as a data loader's worker does
            os.write(ready[1], b"1" if lock.is_locked else b"0")
            lock.release()
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"0"
        assert fs.lock(path, block=False) is None, "the child must not release it either"
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert fs.lock(path, block=False) is not None
    finally:
        os.write(done[1], b"x")
        for descriptor in (*ready, *done):
            os.close(descriptor)


@pytest.mark.parametrize("mode", [0o666, 0o444])
def test_a_pipe_is_no_lock_and_nobody_waits_for_it(
    fs: FileSystem, path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(path, mode)
    real = os.open

    def refuse(name: Path, flags: int, *rest: int, **folder: int) -> int:
        if mode == 0o444 and flags & os.O_RDWR:  # as for everybody but root
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, flags, *rest, **folder)

    monkeypatch.setattr(os, "open", refuse)
    for block in (True, False):
        with pytest.raises(IoFailed, match="is not a regular file"):
            fs.lock(path, block=block, timeout=1)


def test_a_file_that_may_only_be_read_is_locked_all_the_same(
    fs: FileSystem, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def read_only(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "read-only")
        return real(name, flags, mode)

    path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with fs.lock(path, shared=True) as lock:
            assert lock.is_locked
        path.unlink()
        with pytest.raises(ReadOnly, match="cannot lock"):
            fs.lock(path)


def test_a_file_system_without_locks_is_named(
    fs: FileSystem, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        for options in ({}, {"block": False}, {"timeout": 1.0}):
            with pytest.raises(IoFailed, match="cannot lock") as caught:
                fs.lock(path, **options)
            assert "local disk" in (caught.value.hint or "")
    if before:
        assert len(os.listdir("/proc/self/fd")) == before, "no descriptor leaks"


def test_contending_processes_count_without_a_loss(fs: FileSystem, path: Path) -> None:
    counter = path.with_name("counter")
    counter.write_text("0")
    program = (
        "import sys\nfrom pathlib import Path\nfrom mvc.io.files import FileSystem\n"
        "fs, lock, file = FileSystem(), Path(sys.argv[1]), Path(sys.argv[2])\n"
        "for _ in range(100):\n"
        "    with fs.lock(lock, timeout=50):\n"
        "        file.write_text(str(int(file.read_text()) + 1))\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", program, str(path), str(counter)]
    processes = [subprocess.Popen(command, cwd=root) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert counter.read_text() == "300"
