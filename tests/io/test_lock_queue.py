"""Waiting for a lock: in the kernel's queue, without holding on to what comes too late."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mvc.errors import Busy
from mvc.io import files
from mvc.io.files import FileSystem


def test_whoever_waits_gets_it(tmp_path: Path) -> None:
    fs, path = FileSystem(), tmp_path / "lock"
    held = fs.lock(path)
    got: list[int] = []

    def wait(number: int) -> None:
        with fs.lock(path, timeout=30):
            got.append(number)

    waiting = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)  # by then they wait in the queue
    assert got == []
    held.release()
    for thread in waiting:
        thread.join(30)
    assert sorted(got) == list(range(8))


def test_what_comes_too_late_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "POLLED", 0.0)
    fs, path = FileSystem(), tmp_path / "lock"
    held = fs.lock(path)
    for _ in range(3):
        with pytest.raises(Busy):
            fs.lock(path, timeout=0.05)
    held.release()
    with fs.lock(path, timeout=30) as again:
        assert again.is_locked
        with pytest.raises(Busy):
            fs.lock(path, timeout=0.02)
    with fs.lock(path, timeout=30) as again:
        assert again.is_locked
