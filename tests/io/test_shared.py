"""Shared memory: one mapping for all, for one user, until it is deleted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mvc.errors import IoFailed
from mvc.io.shared import SharedMemory


def test_what_one_writes_the_other_reads(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    with SharedMemory.create(path, 3_000_000) as mine:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert mine.size == 3_000_000 and not any(mine.view[:100])
        other = SharedMemory.open(path)
        assert other is not None and other.view.readonly
        mine.view[-3:] = b"abc"
        assert bytes(other.view[-3:]) == b"abc"
        with pytest.raises(FileExistsError):
            SharedMemory.create(path, 10)
        assert other.linked
        path.unlink()
        assert not other.linked and not mine.linked
        mine.view[:3] = b"xyz"
        assert bytes(other.view[:3]) == b"xyz"
        other.close()
        other.close()
    assert SharedMemory.open(path) is None


def test_after_fork(tmp_path: Path) -> None:
    with SharedMemory.create(tmp_path / "shared", 8192) as memory:
        child = os.fork()
        if not child:
            memory.view[5] = 7
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.view[5] == 7


def test_what_is_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "empty").touch()
    assert SharedMemory.open(tmp_path / "empty") is None
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(IoFailed):
        SharedMemory.open(tmp_path / "link")
    with pytest.raises(IoFailed):
        SharedMemory.create(tmp_path / "no/such", 10)
    SharedMemory.create(tmp_path / "mine", 10).close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(IoFailed, match="another user"):
        SharedMemory.open(tmp_path / "mine")
    assert len(os.listdir("/proc/self/fd")) == before
