"""Large writes past the system's cache: the bytes are right, whatever the file system takes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import IoFailed, MvcError, StorageFull
from mvc.io.files import FileSystem, WriteFile
from mvc.io.handles import LARGE, PAGE, aligned
from mvc.testing import FailingFS
from tests.faults.crashfs import CrashFS
from tests.index_files import open_files

OLD = b"old" * 1000
SIZE = LARGE + 3 * PAGE
ALIGNMENTS = [
    (0, SIZE),
    (0, SIZE + 1),
    (1, SIZE),
    (PAGE - 1, SIZE + 1),
    (PAGE, SIZE - 5),
    (777, SIZE - 777),
    (5 * PAGE + 3, LARGE),
]


def data_for(offset: int, size: int = SIZE, shift: int = 0) -> memoryview:
    """Bytes that lie in memory as far from a page's border as ``offset``, and ``shift``."""
    at = (offset + shift) % PAGE
    view = aligned(2 * PAGE + size)[at : at + size]
    view[:] = Random(offset).randbytes(size)
    return view


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


class Disk:
    """Counts the bytes that are written directly; ``answer`` may say how many, or raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct = self.calls = 0
        self.answer: Callable[[int], int] = lambda size: size
        real = os.pwrite

        def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
            if not is_direct(descriptor):
                return real(descriptor, data, offset)
            self.calls += 1
            count = self.answer(len(data))
            written = real(descriptor, data[: count // PAGE * PAGE], offset)
            self.direct += written
            return written

        monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    try:
        descriptor = os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        os.pwrite(descriptor, aligned(PAGE), 0)
        os.close(descriptor)
    except (AttributeError, OSError):
        pytest.skip("the file system of the tests takes no direct writes")
    (tmp_path / "probe").unlink()
    return Disk(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> WriteFile:
    return FileSystem().open_write(tmp_path / "f", create=True)


def written(file: WriteFile, offset: int, data: memoryview) -> bool:
    """Whether the file holds the data, zeros before it and nothing after it."""
    file.write_at(offset, data)
    return file.path.read_bytes() == bytes(offset) + data


@pytest.mark.parametrize(("offset", "size"), ALIGNMENTS)
def test_whole_pages_are_written_directly(
    disk: Disk, file: WriteFile, offset: int, size: int
) -> None:
    assert written(file, offset, data_for(offset, size))
    assert size - 2 * PAGE < disk.direct <= size
    assert disk.calls == 1
    file.sync()
    assert file.size() == offset + size


@given(
    sizes=st.lists(st.integers(1, 3 * LARGE), min_size=1, max_size=4),
    start=st.integers(0, 3 * PAGE),
    shift=st.integers(0, 2),
)
def test_writes_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], start: int, shift: int
) -> None:
    expected = bytes(start)
    path = tmp_path_factory.mktemp("direct") / "f"
    with FileSystem().open_write(path, create=True) as file:
        for size in sizes:
            data = data_for(len(expected), size, shift)
            file.write_at(len(expected), data)
            expected += data
    assert path.read_bytes() == expected
    path.unlink()


@pytest.mark.parametrize(
    "data", [data_for(0, LARGE - PAGE), data_for(0, SIZE, shift=8), bytes(SIZE)], ids=len
)
def test_other_writes_go_through_the_cache(disk: Disk, file: WriteFile, data: memoryview) -> None:
    assert written(file, 0, data)
    assert disk.calls == 0


def test_what_was_written_before_and_after_stays(disk: Disk, file: WriteFile) -> None:
    file.write(b"a" * (SIZE + 2 * PAGE))
    data = data_for(100)
    file.write_at(100, data)
    file.write_at(50, b"b" * 100)
    file.write_at(SIZE, b"c" * 200)
    expected = bytearray(b"a" * (SIZE + 2 * PAGE))
    expected[100 : 100 + SIZE] = data
    expected[50:150], expected[SIZE : SIZE + 200] = b"b" * 100, b"c" * 200
    assert file.read(0, 2 * SIZE) == expected
    assert disk.direct
    file.truncate(SIZE // 2 + 1)
    assert file.path.read_bytes() == expected[: SIZE // 2 + 1]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_direct_writes_is_not_asked_again(
    disk: Disk, file: WriteFile, code: int
) -> None:
    def refuse(_: int) -> int:
        raise OSError(code, "refused")

    disk.answer = refuse
    assert written(file, 3, data_for(3))
    file.write_at(0, data_for(0))
    assert disk.calls == 1
    assert open_files().count(file.path) == 1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOENT, errno.EACCES])
def test_a_file_that_cannot_be_opened_so_is_written_all_the_same(
    disk: Disk, file: WriteFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opened = list[str]()

    def refuse(path: str, *_: object) -> int:
        opened.append(path)
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "open", refuse)
    assert not disk.calls
    file.write_at(3, data_for(3))
    file.write_at(3, data_for(3))
    monkeypatch.undo()
    assert file.path.read_bytes() == bytes(3) + data_for(3)
    assert len(opened) == 1


@pytest.mark.parametrize("system", ["tmpfs", "without O_DIRECT"])
def test_systems_without_direct_writes(
    system: str, file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "tmpfs":
        path = Path("/dev/shm") / f"mvc-test-{os.getpid()}"
        if not path.parent.is_dir():
            pytest.skip("no /dev/shm here")
        with FileSystem().open_write(path, create=True) as there:
            path.unlink()
            there.write_at(9, data_for(9))
            assert there.read(0, 2 * SIZE) == bytes(9) + data_for(9)
    else:
        monkeypatch.setattr("mvc.io.handles.O_DIRECT", 0)
        assert written(file, 9, data_for(9))


@pytest.mark.parametrize("kind", ["nfs4", "fuse.gcsfuse"])
def test_a_file_system_that_hosts_share_is_written_through_the_cache(
    disk: Disk, file: WriteFile, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("mvc.io.mounts.type_of", lambda _: kind)
    assert written(file, 9, data_for(9))
    assert disk.calls == 0


def test_short_writes_are_continued(disk: Disk, file: WriteFile) -> None:
    disk.answer = lambda size: min(size, 5 * PAGE)
    assert written(file, 10, data_for(10, 2 * SIZE))
    assert disk.calls > LARGE // (5 * PAGE)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, StorageFull), (errno.EIO, IoFailed), (errno.EFBIG, IoFailed)]
)
def test_an_error_in_the_middle_is_raised(
    disk: Disk, file: WriteFile, code: int, error: type[MvcError]
) -> None:
    def fail(size: int) -> int:
        if disk.calls > 1:
            raise OSError(code, "injected")
        return size // 2

    disk.answer = fail
    file.write(b"x")
    with pytest.raises(error, match=str(file.path)):
        file.write(data_for(1, 4 * SIZE))
    assert file.position == 1
    assert disk.calls == 2


def test_both_descriptors_are_closed_with_the_file(disk: Disk, file: WriteFile) -> None:
    file.write(data_for(0))
    assert open_files().count(file.path) == 2
    file.close()
    file.close()
    assert file.path not in open_files()
    assert disk.calls == 1


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, "short", MemoryError])
def test_every_failure_leaves_the_old_file_or_the_new_one(
    disk: Disk, tmp_path: Path, error: int
) -> None:
    path, data = tmp_path / "a", data_for(100)

    def write(file: WriteFile) -> None:
        file.write_at(100, data[: len(data) // 2])
        file.write_at(100 + len(data) // 2, data[len(data) // 2 :])

    data = data_for(100, 2 * SIZE)
    new = bytes(100) + data
    for n in range(1, 100):
        path.write_bytes(OLD)
        fs, disk.direct = FailingFS(fail_at=n, error=error), 0
        try:
            fs.replace_file(path, write, mode=None, durable=True)
        except (MvcError, MemoryError):
            assert path.read_bytes() in (OLD, new)
            assert list(tmp_path.iterdir()) == [path]
        else:
            assert path.read_bytes() == new
            assert disk.direct
            if not fs.failures:
                break
    else:
        pytest.fail("the loop never came to an end")
    assert n > 2


def test_a_crash_takes_nothing_that_was_flushed(disk: Disk, tmp_path: Path) -> None:
    root, data, rng = tmp_path / "root", data_for(100), Random(1)
    root.mkdir()
    (root / "a").write_bytes(OLD)
    fs, seen = CrashFS(root), set[bytes]()
    fs.replace_file(root / "a", lambda f: f.write_at(100, data), mode=None, durable=True)
    assert disk.direct
    for point in range(fs.crash_points() + 1):
        for i in range(5):
            fs.image(point, rng, dest := tmp_path / f"{point}.{i}")
            seen.add((dest / "a").read_bytes())
    assert seen == {OLD, bytes(100) + data}
    torn = CrashFS(root, ignore=lambda op, _: op == "sync")
    torn.replace_file(root / "a", lambda f: f.write_at(7, data_for(7)), mode=None, durable=True)
    found = set[bytes]()
    for i in range(20):
        torn.image(torn.crash_points(), rng, dest := tmp_path / f"torn{i}")
        found.add((dest / "a").read_bytes())
    assert found - {bytes(100) + data, bytes(7) + data_for(7)}, "the double sees direct writes"
