"""The real file system: names, whole files, and what the operating system refuses."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mvc.errors import IoFailed, MvcError, ReadOnly, StorageFull, SyncFailed
from mvc.io.files import TEMPORARY, FileSystem, WriteFile
from mvc.io.os_errors import translate


@pytest.fixture
def fs() -> FileSystem:
    return FileSystem()


def raising(code: int):
    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


# -- names -----------------------------------------------------------------------------


def test_stat_tells_kinds_apart_and_absence(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    (tmp_path / "l").symlink_to("f")
    (tmp_path / "dangling").symlink_to("nowhere")
    file, link, folder = (
        fs.stat(tmp_path / "f"),
        fs.stat(tmp_path / "l", follow=False),
        fs.stat(tmp_path),
    )
    assert file is not None and link is not None and folder is not None
    assert (file.is_file, file.is_dir, file.is_symlink, file.size) == (True, False, False, 4)
    assert (link.is_file, link.is_symlink) == (False, True)
    assert (folder.is_dir, folder.is_file) == (True, False)
    assert fs.stat(tmp_path / "l") == file
    assert fs.stat(tmp_path / "none") is None
    assert fs.stat(tmp_path / "f" / "below-a-file") is None
    assert fs.stat(tmp_path / "dangling") is None
    assert os.readlink(tmp_path / "l") == "f"
    assert fs.realpath(tmp_path / "l") == fs.realpath(tmp_path) / "f"


def test_list_is_sorted(fs: FileSystem, tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).touch()
    assert fs.list(tmp_path) == ["a", "b", "c"]
    with pytest.raises(IoFailed, match="none"):
        fs.list(tmp_path / "none")


def test_make_dir(fs: FileSystem, tmp_path: Path) -> None:
    fs.make_dir(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
    fs.make_dir(tmp_path / "a", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.make_dir(tmp_path / "a")
    with pytest.raises(IoFailed, match="No such file"):
        fs.make_dir(tmp_path / "x" / "y")
    (tmp_path / "f").touch()
    with pytest.raises(FileExistsError):
        fs.make_dir(tmp_path / "f", exist_ok=True)
    with pytest.raises(IoFailed, match="Not a directory"):
        fs.make_dir(tmp_path / "f" / "g")


def test_make_dirs(fs: FileSystem, tmp_path: Path) -> None:
    for _ in range(2):
        fs.make_dirs(tmp_path / "a" / "b" / "c")
        assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "f").touch()
    with pytest.raises(FileExistsError):
        fs.make_dirs(tmp_path / "f")
    with pytest.raises(IoFailed, match="Not a directory"):
        fs.make_dirs(tmp_path / "f" / "g" / "h")
    (tmp_path / "link").symlink_to("a")
    fs.make_dirs(tmp_path / "link" / "d")
    assert (tmp_path / "a" / "d").is_dir()
    for place in ("link", "link/e", "link/e/f"):
        with pytest.raises((IoFailed, FileExistsError)):
            fs.make_dirs(tmp_path / place, within=tmp_path)
    with pytest.raises(IoFailed, match="below"):
        fs.make_dirs(tmp_path / "outside", within=tmp_path / "a")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "a" / "e").exists()


def test_link_unlink_replace_remove(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        fs.link(tmp_path / "a", tmp_path / "b")
    fs.link(tmp_path / "a", tmp_path / "c")
    fs.replace(tmp_path / "a", tmp_path / "b")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"b": b"a", "c": b"a"}
    fs.unlink(tmp_path / "c")
    fs.unlink(tmp_path / "c", missing_ok=True)
    with pytest.raises(IoFailed, match="cannot delete"):
        fs.unlink(tmp_path / "c")
    with pytest.raises(IoFailed, match="cannot delete"):
        fs.remove_dir(tmp_path)
    fs.make_dir(tmp_path / "d")
    fs.remove_dir(tmp_path / "d")
    assert fs.list(tmp_path) == ["b"]


def test_only_regular_files_are_opened(fs: FileSystem, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("f")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(IoFailed):
            fs.open_read(path)
        with pytest.raises(IoFailed):
            fs.open_write(path)
    with pytest.raises(IoFailed, match="no such file"):
        fs.open_read(tmp_path / "none")
    with pytest.raises(IoFailed, match="cannot write"):
        fs.open_write(tmp_path / "none")
    fs.open_read(tmp_path / "link").close()
    for refused in (
        lambda: fs.open_read(tmp_path / "link", follow=False),
        lambda: fs.open_write(tmp_path / "link"),
    ):
        with pytest.raises(IoFailed) as caught:
            refused()
        assert "symbolic link" in (caught.value.hint or "")


def test_open_write_exclusive_and_mode(fs: FileSystem, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        fs.open_write(tmp_path / "a", create=True, exclusive=True).close()
        fs.open_write(tmp_path / "b", create=True, mode=0o444).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o440
    with pytest.raises(FileExistsError):
        fs.open_write(tmp_path / "a", create=True, exclusive=True)


def test_is_writable_dir(fs: FileSystem, tmp_path: Path) -> None:
    assert fs.is_writable_dir(tmp_path)
    (tmp_path / "f").touch()
    assert not fs.is_writable_dir(tmp_path / "f")
    assert not fs.is_writable_dir(tmp_path / "none")


# -- flushing folders ------------------------------------------------------------------


def test_sync_dir_tolerates_only_what_is_unsupported(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.sync_dir(tmp_path)
    for code in (errno.EINVAL, errno.ENOTSUP):
        monkeypatch.setattr(os, "fsync", raising(code))
        fs.sync_dir(tmp_path)
    for code in (errno.EIO, errno.ENOSPC, errno.EBADF):
        monkeypatch.setattr(os, "fsync", raising(code))
        with pytest.raises(SyncFailed, match=str(tmp_path)):
            fs.sync_dir(tmp_path)


# -- whole files -----------------------------------------------------------------------


def test_read_bytes_has_a_limit(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert fs.read_bytes(tmp_path / "f", 5) == b"12345"
    with pytest.raises(IoFailed, match="longer than the maximum of 4 bytes"):
        fs.read_bytes(tmp_path / "f", 4)


def test_write_atomic_flushes_file_then_name(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fsync", "fdatasync", "replace"):
        real = getattr(os, name)

        def note(*args: object, name: str = name, real=real, **options: object) -> None:
            steps.append(name)
            real(*args, **options)

        monkeypatch.setattr(os, name, note)
    fs.write_atomic(tmp_path / "f", b"data")
    assert steps == ["fdatasync", "replace", "fsync"]
    steps.clear()
    fs.replace_file(tmp_path / "f", lambda f: f.write(b"x"), mode=None, durable=False)
    assert steps == ["replace"]
    assert fs.list(tmp_path) == ["f"]


def test_replace_file_keeps_or_sets_the_mode(fs: FileSystem, tmp_path: Path) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((tmp_path / name).stat().st_mode)

    old = os.umask(0o022)
    try:
        fs.write_atomic(tmp_path / "new", b"")
        (tmp_path / "kept").touch()
        (tmp_path / "kept").chmod(0o4701)
        fs.write_atomic(tmp_path / "kept", b"")
        fs.write_atomic(tmp_path / "set", b"", mode=0o666)
    finally:
        os.umask(old)
    assert (mode("new"), mode("kept"), mode("set")) == (0o644, 0o701, 0o666)


def test_private_content_is_never_readable_by_others(fs: FileSystem, tmp_path: Path) -> None:
    seen: list[int] = []

    def writer(file: WriteFile) -> None:
        seen.append(file.identity().permissions)
        file.write(b"secret")

    fs.replace_file(tmp_path / "f", writer, mode=0o600, durable=False)
    assert seen == [0o600]


def test_replace_file_replaces_a_link_and_refuses_what_is_no_file(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "target").write_bytes(b"untouched")
    (tmp_path / "link").symlink_to("target")
    fs.write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"untouched"
    assert not (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(IoFailed, match="not a"):
            fs.write_atomic(tmp_path / name, b"")
    assert fs.list(tmp_path) == ["fifo", "link", "target"]


def test_names_of_any_legal_length_are_replaced(fs: FileSystem, tmp_path: Path) -> None:
    fs.write_atomic(tmp_path / ("n" * 255), b"data")
    assert fs.list(tmp_path) == ["n" * 255]


@pytest.mark.parametrize("step", ["pwritev", "fsync", "replace", "fchmod"])
def test_no_temporary_file_stays_behind_a_failure(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, step, raising(errno.ENOSPC))
    with pytest.raises(SyncFailed if step == "fsync" else StorageFull):
        fs.write_atomic(tmp_path / "f", b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"f": b"old"}


def test_no_temporary_file_stays_behind_an_interruption(fs: FileSystem, tmp_path: Path) -> None:
    def writer(file: WriteFile) -> None:
        assert [name for name in fs.list(tmp_path) if name.startswith(TEMPORARY)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.replace_file(tmp_path / "f", writer, mode=None, durable=True)
    assert fs.list(tmp_path) == []


def test_the_first_failure_is_reported_not_that_of_cleaning_up(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", raising(errno.ENOSPC))
    monkeypatch.setattr(os, "unlink", raising(errno.EIO))
    with pytest.raises(StorageFull):
        fs.write_atomic(tmp_path / "f", b"new")


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "action", "expected"),
    [
        (errno.ENOSPC, "write", StorageFull),
        (errno.EDQUOT, "write", StorageFull),
        (errno.EROFS, "write", ReadOnly),
        (errno.EROFS, "lock", ReadOnly),
        (errno.EACCES, "write", ReadOnly),
        (errno.EPERM, "delete", ReadOnly),
        (errno.EACCES, "read", IoFailed),
        (errno.EACCES, "list", IoFailed),
        (errno.EFBIG, "write", IoFailed),
        (errno.EIO, "read", IoFailed),
        (errno.EMFILE, "read", IoFailed),
        (errno.ENAMETOOLONG, "write", IoFailed),
        (errno.ENOENT, "read", IoFailed),
    ],
)
def test_os_errors_become_typed_errors_that_name_the_path(
    code: int, action: str, expected: type[MvcError]
) -> None:
    cause = OSError(code, os.strerror(code))
    with pytest.raises(IoFailed) as caught, translate(Path("/some/file"), action):
        raise cause
    assert type(caught.value) is expected
    assert "/some/file" in str(caught.value)
    assert caught.value.__cause__ is cause
    if expected is not IoFailed or code in (errno.EFBIG, errno.EIO, errno.EMFILE):
        assert caught.value.hint


def test_other_errors_pass_translate() -> None:
    for error in (MemoryError(), FileExistsError(errno.EEXIST, "x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), translate(Path("/x"), "write"):
            raise error
    with pytest.raises(IoFailed, match="timed out"), translate(Path("/x"), "read"):
        raise OSError("timed out")


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder of this process's user, who is not root while the block runs."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            folder.chmod(0o755)
            os.seteuid(user)


def test_a_read_only_folder_is_reported_as_such(fs: FileSystem) -> None:
    with as_nobody() as folder:
        assert fs.is_writable_dir(folder)
        fs.write_atomic(folder / "present", b"data", mode=0o444)
        folder.chmod(0o555)
        assert not fs.is_writable_dir(folder)
        for refused in (
            lambda: fs.write_atomic(folder / "f", b""),
            lambda: fs.open_write(folder / "present"),
            lambda: fs.unlink(folder / "present"),
            lambda: fs.make_dir(folder / "d"),
            lambda: fs.lock(folder / "lock"),
        ):
            with pytest.raises(ReadOnly, match="Permission denied"):
                refused()
        with fs.lock(folder / "present", shared=True):
            assert fs.read_bytes(folder / "present", 10) == b"data"


def test_a_current_folder_that_is_gone(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fs.cwd() == fs.realpath(Path())
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path / "d")
    (tmp_path / "d").rmdir()
    with pytest.raises(IoFailed, match="No such file"):
        fs.cwd()
    os.chdir(tmp_path)


def test_a_temporary_file_that_another_process_tidies_up(tmp_path: Path) -> None:
    """gc deletes temporary files that nobody has locked; writing begins again."""

    class TidiedUp(FileSystem):
        left = 2

        def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
            if self.left:
                self.left -= 1
                src.unlink()
            super().replace(src, dst, within=within)

    fs = TidiedUp()
    fs.write_atomic(tmp_path / "format", b"new")
    assert (tmp_path / "format").read_bytes() == b"new"
    fs.left = 9
    with pytest.raises(IoFailed):
        fs.write_atomic(tmp_path / "format", b"newer")
    assert (tmp_path / "format").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["format"]
