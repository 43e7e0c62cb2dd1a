"""Flushes that overlap: each file is durable when the block ends, and few are open at a time."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mvc.errors import SyncFailed
from mvc.io.files import FileSystem
from mvc.io.flushes import FLUSHES


def open_below(folder: Path) -> int:
    """How many files in the folder this process has open."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    return count


class SlowDisk:
    """Stands in for ``os.fdatasync``; ``fail`` is the file, by its place, whose flush fails."""

    def __init__(self, folder: Path, fail: int = -1) -> None:
        self._folder = folder
        self.flushed: list[str] = []
        self.at_once = self.most = self.begun = self.open = 0
        self._fail, self._lock = fail, threading.Lock()

    def __call__(self, descriptor: int) -> None:
        with self._lock:
            self.at_once, self.begun = self.at_once + 1, self.begun + 1
            self.most = max(self.most, self.at_once)
            self.open = max(self.open, open_below(self._folder))
            fails = self.begun - 1 == self._fail
        time.sleep(0.005)
        with self._lock:
            self.at_once -= 1
            if fails:
                raise OSError(errno.EIO, "broken")
            self.flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)


def write_all(folder: Path, count: int) -> None:
    fs = FileSystem()
    with fs.flushes() as flushes:
        for i in range(count):
            path, text = folder / f"file{i}", f"{i}".encode()
            fs.write_beside(path, f"new{i}", lambda f, t=text: f.write(t), flushes=flushes)


def test_files_are_flushed_at_a_time_and_all_before_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(tmp_path)
    monkeypatch.setattr("os.fdatasync", disk)
    write_all(tmp_path, 200)
    assert sorted(disk.flushed) == sorted(f"new{i}" for i in range(200))
    assert disk.at_once == 0
    assert 1 < disk.most <= FLUSHES + 1
    assert disk.open < 3 * FLUSHES
    assert open_below(tmp_path) == 0
    assert {(tmp_path / f"new{i}").read_text() for i in range(200)} == {*map(str, range(200))}


def test_a_single_file_takes_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda _: threads.append(threading.get_ident()))
    write_all(tmp_path, 1)
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("fail", [0, 7, 99])
def test_the_error_of_any_flush_is_raised_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: int
) -> None:
    monkeypatch.setattr("os.fdatasync", SlowDisk(tmp_path, fail))
    with pytest.raises(SyncFailed, match=r"cannot flush .*/file[0-9]+ to disk"):
        write_all(tmp_path, 100)
    assert open_below(tmp_path) == 0


def test_nothing_is_flushed_once_the_block_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, fs = SlowDisk(tmp_path), FileSystem()
    monkeypatch.setattr("os.fdatasync", disk)
    with pytest.raises(KeyError), fs.flushes() as flushes:
        fs.write_beside(tmp_path / "a", "b", lambda f: f.write(b"x"), flushes=flushes)
        raise KeyError
    assert not disk.flushed
    assert open_below(tmp_path) == 0
