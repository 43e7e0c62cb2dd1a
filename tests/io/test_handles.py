"""Open files: complete transfers, poisoned flushes."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import IoFailed, StorageFull, SyncFailed, WrongUsage
from mvc.io import handles
from mvc.io.files import FileSystem, ReadFile, WriteFile
from tests.index_files import open_files


@pytest.fixture
def fs() -> FileSystem:
    return FileSystem()


@pytest.fixture
def file(fs: FileSystem, tmp_path: Path) -> WriteFile:
    return fs.open_write(tmp_path / "f", create=True)


def test_write_appends_at_position_and_write_at_leaves_it(file: WriteFile) -> None:
    file.write(b"abc")
    file.write([b"de", bytearray(b"f"), memoryview(b"gh")[1:]])
    assert (file.position, file.size()) == (7, 7)
    file.write_at(1, b"XY")
    assert file.position == 7
    assert file.read(0, 100) == b"aXYdefh"
    file.truncate(3)
    file.write(b"!")
    assert file.read(0, 100) == b"aXY!"
    file.truncate(6)
    assert (file.position, file.read(0, 9)) == (6, b"aXY!\0\0")


def test_open_write_keeps_the_content_and_stands_at_its_end(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with fs.open_write(tmp_path / "f", create=True) as file:
        assert file.position == 5
        file.write(b"6")
    assert (tmp_path / "f").read_bytes() == b"123456"


def test_read_ends_where_the_file_ends(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with fs.open_read(tmp_path / "f") as file:
        assert file.size() == 10
        assert file.read(3, 4) == b"3456"
        assert file.read(8, 4) == b"89"
        assert file.read(8, 1 << 60) == b"89", "a forged length allocates nothing"
        assert file.read(11, 4) == file.read(1 << 50, 1 << 20) == b""
        buffer = bytearray(b"-" * 6)
        assert file.read_into(7, memoryview(buffer)) == 3
        assert buffer == b"789---"
        assert file.read_into(3, memoryview(b"")) == 0


def test_buffers_of_other_items_are_taken_as_bytes(file: WriteFile, fs: FileSystem) -> None:
    numbers = memoryview(bytearray(16)).cast("I", shape=[2, 2])
    numbers[1, 1] = 0x01020304
    file.write(numbers)
    back = memoryview(bytearray(16)).cast("d")
    with fs.open_read(file.path) as reader:
        assert reader.read_into(0, back) == 16
    assert back.tobytes() == numbers.tobytes()
    with pytest.raises(WrongUsage, match="contiguous"):
        file.write(memoryview(b"abcdef")[::2])


class _Broken:
    """System calls that are interrupted every other time and transfer few bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.calls, self.most = 0, most
        real_write, real_read, real_into = os.pwritev, os.pread, os.preadv

        def pwritev(fd: int, views: list[memoryview], offset: int) -> int:
            self._interrupt()
            return real_write(fd, [b"".join(views)[:most]], offset)

        def pread(fd: int, length: int, offset: int) -> bytes:
            self._interrupt()
            return real_read(fd, min(length, most), offset)

        def preadv(fd: int, views: list[memoryview], offset: int) -> int:
            self._interrupt()
            return real_into(fd, [views[0][:most]], offset)

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(os, "pread", pread)
        monkeypatch.setattr(os, "preadv", preadv)

    def _interrupt(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise InterruptedError(errno.EINTR, "interrupted")


def test_short_and_interrupted_calls_are_continued(
    fs: FileSystem, file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _Broken(monkeypatch, 7)
    parts = [os.urandom(n) for n in (0, 3, 20, 1, 0, 50)]
    file.write(parts)
    assert broken.calls == 2 * 11  # 74 bytes, seven at a time
    data = b"".join(parts)
    assert file.read(0, len(data)) == data
    with fs.open_read(file.path) as reader:
        assert reader.read(1, 60) == data[1:61]
        assert reader.read(70, 60) == data[70:]
        buffer = bytearray(len(data) + 5)
        assert reader.read_into(0, memoryview(buffer)) == len(data)
    assert bytes(buffer) == data + bytes(5)


@given(
    parts=st.lists(st.binary(max_size=40), max_size=12),
    most=st.integers(1, 64),
    vectors=st.integers(1, 4),
)
def test_batches_cover_every_byte_once(parts: list[bytes], most: int, vectors: int) -> None:
    real, batches = os.pwritev, list[list[int]]()

    def pwritev(fd: int, views: list[memoryview], offset: int) -> int:
        batches.append([len(view) for view in views])
        return real(fd, views, offset)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "MOST", most)
        patch.setattr(handles, "VECTORS", vectors)
        patch.setattr(os, "pwritev", pwritev)
        with FileSystem().open_write(Path(folder) / "f", create=True) as file:
            file.write(parts)
        assert (Path(folder) / "f").read_bytes() == b"".join(parts)
    assert sum(map(sum, batches)) == sum(map(len, parts))
    for batch in batches:
        assert 0 < sum(batch) <= most
        assert len(batch) <= vectors


def test_more_buffers_than_one_call_takes(file: WriteFile) -> None:
    file.write([bytes([i % 251]) for i in range(3000)])
    assert file.read(0, 4000) == bytes(i % 251 for i in range(3000))


def test_systems_without_vectored_calls(
    fs: FileSystem, file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pwritev", "preadv", "fdatasync"):
        monkeypatch.delattr(os, name)
    file.write([b"abc", b"def"])
    file.sync()
    buffer = bytearray(8)
    with fs.open_read(file.path) as reader:
        assert reader.read_into(0, memoryview(buffer)) == 6
    assert buffer == b"abcdef\0\0"


def test_a_write_that_makes_no_progress_fails(
    file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(IoFailed, match="cannot write"):
        file.write(b"x")
    assert file.position == 0


def test_a_full_disk_is_named_and_position_stays(
    file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    file.write(b"abc")
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageFull, match=str(file.path)) as caught:
        file.write(b"def")
    assert "free some space" in (caught.value.hint or "")
    assert file.position == 3


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
def test_large_writes_begin_to_be_flushed_at_once(
    file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def refuse(_: int, *advice: int) -> None:
        begun.append(advice)
        raise OSError(errno.ESPIPE, "a file system that takes no advice")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    file.write(b"x")
    file.write([bytes(4 << 20), b"y"])
    assert begun == []
    file.write_at(4 << 20, bytes(6 << 20))
    file.write_at(1, b"z")
    file.write_at(10 << 20, bytes(8 << 20))
    assert begun == [
        (at << 20, size << 20, os.POSIX_FADV_DONTNEED) for at, size in ((0, 10), (10, 8))
    ]
    assert file.size() == 18 << 20


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_poisons_the_handle(
    file: WriteFile, fs: FileSystem, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(code, "injected")

    file.write(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(SyncFailed, match="cannot flush"):
            file.sync()
    later = [
        file.sync,
        file.size,
        file.identity,
        lambda: file.write(b"y"),
        lambda: file.write(b""),
        lambda: file.write_at(0, b"y"),
        lambda: file.truncate(0),
        lambda: file.set_mode(0o600),
        lambda: file.read(0, 1),
    ]
    for call in later:
        with pytest.raises(SyncFailed, match="earlier flush"):
            call()
    file.close()
    with fs.open_write(file.path) as again:
        again.sync()


def test_a_changed_mode_is_flushed_with_the_metadata(
    file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: called.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: called.append("fdatasync"))
    file.sync()
    file.set_mode(0o640)
    file.sync()
    file.sync()
    assert called == ["fdatasync", "fsync", "fdatasync"]
    assert file.identity().permissions == 0o640


def test_the_strong_flush_of_macos_falls_back_where_it_is_unknown(
    file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    commands: list[int] = []

    def fcntl_call(_: int, command: int) -> None:
        commands.append(command)
        if code:
            raise OSError(code, "injected")

    monkeypatch.setattr(os, "fsync", flushed.append)
    monkeypatch.setattr(fcntl, "fcntl", fcntl_call)
    monkeypatch.setattr(sys, "platform", "darwin")
    code = 0
    file.sync()
    assert (flushed, commands) == ([], [getattr(fcntl, "F_FULLFSYNC", 51)])
    code = errno.ENOTSUP
    file.sync()
    assert len(flushed) == 1
    code = errno.EIO
    with pytest.raises(SyncFailed):
        file.sync()
    assert len(flushed) == 1


def test_a_closed_file_says_so(file: WriteFile) -> None:
    file.write(b"x")
    file.close()
    file.close()
    for call in (lambda: file.read(0, 1), lambda: file.write(b"y"), file.size):
        with pytest.raises(IoFailed, match="Bad file descriptor"):
            call()


def test_a_handle_nobody_holds_is_closed(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    held = fs.open_read(tmp_path / "f")
    assert tmp_path / "f" in open_files()
    del held
    assert tmp_path / "f" not in open_files()


def test_descriptors_do_not_reach_other_programs(file: WriteFile, fs: FileSystem) -> None:
    with fs.open_read(file.path):
        assert open_files().count(file.path) == 2
        code = "from tests.index_files import open_files; print(*open_files(), sep='\\n')"
        theirs = subprocess.check_output([sys.executable, "-c", code], close_fds=False, text=True)
    assert str(file.path) not in theirs.splitlines()


def test_identity_follows_the_open_file_not_the_name(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with fs.open_read(tmp_path / "f") as file:
        before = file.identity()
        assert before == fs.stat(tmp_path / "f")
        fs.write_atomic(tmp_path / "f", b"newer")
        assert file.read(0, 10) == b"old"
        assert file.identity().inode == before.inode
        assert fs.stat(tmp_path / "f") != before


def test_one_handle_serves_many_threads(fs: FileSystem, tmp_path: Path) -> None:
    data = os.urandom(1 << 18)
    (tmp_path / "f").write_bytes(data)
    wrong: list[int] = []

    def work(file: ReadFile, seed: int) -> None:
        for i in range(300):
            at = (seed * 7919 + i * 104729) % len(data)
            if file.read(at, 1000) != data[at : at + 1000]:
                wrong.append(at)

    with fs.open_read(tmp_path / "f") as file:
        threads = [threading.Thread(target=work, args=(file, s)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
