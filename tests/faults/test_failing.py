"""The failing and the recording twin, on the operations that mvc.io composes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mvc.errors import IoFailed, MvcError, StorageFull, SyncFailed
from mvc.testing import FailingFS, FixedClock
from tests.faults.crashfs import CrashFS
from tests.faults.recording import RecordedCall, RecordingFS

OLD, NEW = b"o" * 1000, b"n" * 3000


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE, MemoryError])
def test_every_failure_of_an_atomic_write_leaves_old_or_new(
    tmp_path: Path, error: int | type[MemoryError], persistent: bool
) -> None:
    path = tmp_path / "a"
    for n in range(1, 100):
        path.write_bytes(OLD)
        fs = FailingFS(fail_at=n, error=error, persistent=persistent)
        try:
            fs.write_atomic(path, NEW)
        except (MvcError, MemoryError) as failed:
            assert isinstance(failed, MemoryError) == (error is MemoryError)
            assert fs.failures
            assert path.read_bytes() in (OLD, NEW)
            left = [p for p in tmp_path.iterdir() if p != path]
            # When nothing works any more, the temporary file cannot be removed either.
            assert not left or (persistent and error in (errno.EIO, MemoryError))
            for p in left:
                p.unlink()
        else:
            assert not fs.failures
            break
    else:
        pytest.fail("the loop never came to an end")
    assert n > 2
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("persistent", [False, True])
def test_short_transfers_go_unnoticed(tmp_path: Path, persistent: bool) -> None:
    for n in range(1, 6):
        fs = FailingFS(fail_at=n, error="short", persistent=persistent)
        fs.replace_file(
            tmp_path / "a", lambda f: f.write([b"ab", b"", b"cdefg"]), mode=None, durable=False
        )
        assert fs.read_bytes(tmp_path / "a", 100) == b"abcdefg"
        buffer = bytearray(7)
        with fs.open_read(tmp_path / "a") as file:
            assert file.read_into(0, memoryview(buffer)) == 7
        assert buffer == b"abcdefg"
    assert fs.calls > 3


def test_a_full_disk_takes_a_part_and_then_refuses(tmp_path: Path) -> None:
    fs = FailingFS(fail_at=2, error=errno.ENOSPC)
    with fs.open_write(tmp_path / "a", create=True) as file:
        with pytest.raises(StorageFull, match="no space left") as caught:
            file.write(b"12345678")
        assert caught.value.hint
        assert file.position == 0
        assert file.read(0, 100) == b"1234"
        file.write(b"87654321")
    assert (tmp_path / "a").read_bytes() == b"87654321"


def test_a_failed_sync_poisons_through_the_twin(tmp_path: Path) -> None:
    fs = FailingFS(fail_at=5)
    file = fs.open_write(tmp_path / "a", create=True)  # 1: open
    file.write(b"x")  # 2: write
    file.sync()  # 3: sync
    file.write(b"y")  # 4: write
    for _ in range(2):
        with pytest.raises(SyncFailed):
            file.sync()  # 5: fails
    with pytest.raises(SyncFailed):
        file.write(b"z")
    assert fs.calls == 5
    file.close()


def test_failures_of_name_calls_are_typed_and_name_the_path(tmp_path: Path) -> None:
    calls = [
        lambda fs: fs.open_read(tmp_path / "x"),
        lambda fs: fs.open_write(tmp_path / "x"),
        lambda fs: fs.stat(tmp_path / "x"),
        lambda fs: fs.list(tmp_path / "x"),
        lambda fs: fs.make_dir(tmp_path / "x"),
        lambda fs: fs.replace(tmp_path / "y", tmp_path / "x"),
        lambda fs: fs.link(tmp_path / "y", tmp_path / "x"),
        lambda fs: fs.unlink(tmp_path / "x"),
        lambda fs: fs.remove_dir(tmp_path / "x"),
        lambda fs: fs.lock(tmp_path / "x"),
        lambda fs: fs.sync_dir(tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(IoFailed, match=r"/x") as caught:
            call(FailingFS(fail_at=1, error=errno.EIO))
        assert "Input/output error" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_recording_lists_the_steps_of_an_atomic_write(tmp_path: Path) -> None:
    fs = RecordingFS()
    fs.write_atomic(tmp_path / "a", b"data", mode=0o600)
    assert fs.ops() == ["open_write", "set_mode", "write", "sync", "replace", "sync_dir"]
    assert fs.calls[2].detail == (0, 4)
    assert fs.calls[-1] == RecordedCall("sync_dir", tmp_path)
    fs.read_bytes(tmp_path / "a", 10)
    assert len(fs.calls) == 6


def test_twins_stack(tmp_path: Path) -> None:
    recording = RecordingFS(CrashFS(tmp_path))
    fs = FailingFS(recording, fail_at=2, error=errno.ENOSPC)
    with pytest.raises(StorageFull):
        fs.write_atomic(tmp_path / "a", b"data")
    assert recording.ops() == ["open_write", "write", "unlink"]
    assert list(tmp_path.iterdir()) == []


def test_fixed_clock_steps_and_is_set() -> None:
    clock = FixedClock(100, 5)
    assert [clock.now_ns(), clock.now_ns()] == [100, 105]
    clock.advance(-60)
    assert clock.now_ns() == 50
    assert clock.now_ns() == 55
