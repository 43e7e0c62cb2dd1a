"""A FileSystem around another one, where every call passes one place.

A twin overrides ``call`` (names) or ``handle_call`` (open files), and may wrap another
twin. Methods that combine others, such as ``write_atomic``, run in the outermost twin,
so that each of their steps is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mvc.io.files import FileIdentity, FileLock, FileSystem, ReadFile, WriteFile

T = TypeVar("T")


class WrappedReadFile(ReadFile):
    """Passes each system call of a reading handle through its file system."""

    def __init__(self, fs: WrappedFS, inner: ReadFile) -> None:
        super().__init__(inner.path, -1)
        self.fs, self.inner = fs, inner

    def close(self) -> None:
        self.inner.close()

    def _read(self, offset: int, length: int) -> bytes:
        return self.fs.read(self, offset, length)

    def _read_into(self, offset: int, view: memoryview) -> int:
        return self.fs.read_into(self, offset, view)

    def _stat(self) -> FileIdentity:
        return self.fs.handle_call(self, "stat", self.inner.identity)


class WrappedWriteFile(WriteFile):
    """Passes each system call of a writing handle through its file system."""

    def __init__(self, fs: WrappedFS, inner: WriteFile) -> None:
        super().__init__(inner.path, -1, inner.position)
        self.fs, self.inner = fs, inner
        self.node = -1  # which file it is, for twins that follow files beyond their names

    def close(self) -> None:
        self.inner.close()

    def _read(self, offset: int, length: int) -> bytes:
        return self.fs.read(self, offset, length)

    def _stat(self) -> FileIdentity:
        return self.fs.handle_call(self, "stat", self.inner.identity)

    def _write(self, offset: int, views: Sequence[memoryview]) -> int:
        return self.fs.write(self, offset, views)

    def _truncate(self, size: int) -> None:
        self.fs.handle_call(self, "truncate", lambda: self.inner.truncate(size), size)

    def _set_mode(self, mode: int) -> None:
        self.fs.handle_call(self, "set_mode", lambda: self.inner.set_mode(mode), mode)

    def _sync(self) -> None:
        self.fs.handle_call(self, "sync", self.inner.sync)


Handle = WrappedReadFile | WrappedWriteFile


class WrappedFS(FileSystem):
    """Passes everything on to ``inner``."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        self.inner = inner or FileSystem()

    # -- what twins override -----------------------------------------------------------

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        """Every call on names: ``op`` is the method's name, ``act`` does it."""
        return act()

    def handle_call(self, file: Handle, op: str, act: Callable[[], T], *detail: Any) -> T:
        """Every call on an open file: read, stat, write, truncate, set_mode, sync."""
        return self.call(op, file.path, act, *detail)

    def read(self, file: Handle, offset: int, length: int) -> bytes:
        return self.handle_call(
            file, "read", lambda: file.inner.read(offset, length), offset, length
        )

    def read_into(self, file: WrappedReadFile, offset: int, view: memoryview) -> int:
        return self.handle_call(
            file, "read", lambda: file.inner.read_into(offset, view), offset, len(view)
        )

    def write(self, file: WrappedWriteFile, offset: int, views: Sequence[memoryview]) -> int:
        """One system call: how many bytes of ``views`` were written."""
        size = sum(map(len, views))
        self.handle_call(
            file, "write", lambda: file.inner.write_at(offset, views), offset, size, views
        )
        return size

    # -- the file system ---------------------------------------------------------------

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        return WrappedReadFile(
            self, self.call("open_read", path, lambda: self.inner.open_read(path, follow=follow))
        )

    def open_write(
        self,
        path: Path,
        *,
        create: bool = False,
        exclusive: bool = False,
        mode: int = 0o666,
        within: Path | None = None,
    ) -> WriteFile:
        def act() -> WriteFile:
            return self.inner.open_write(
                path, create=create, exclusive=exclusive, mode=mode, within=within
            )

        return WrappedWriteFile(self, self.call("open_write", path, act, create))

    def lock(
        self,
        path: Path,
        *,
        shared: bool = False,
        timeout: float | None = None,
        block: bool = True,
    ) -> FileLock | None:
        def act() -> FileLock | None:
            return self.inner.lock(path, shared=shared, timeout=timeout, block=block)

        return self.call("lock", path, act)

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        return self.call("stat", path, lambda: self.inner.stat(path, follow=follow))

    def make_dir(self, path: Path, exist_ok: bool = False, *, within: Path | None = None) -> None:
        def act() -> None:
            self.inner.make_dir(path, exist_ok=exist_ok, within=within)

        self.call("make_dir", path, act)

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        self.call("replace", dst, lambda: self.inner.replace(src, dst, within=within), src)

    def link(self, src: Path, dst: Path) -> None:
        self.call("link", dst, lambda: self.inner.link(src, dst), src)

    def unlink(self, path: Path, missing_ok: bool = False, *, within: Path | None = None) -> None:
        def act() -> None:
            self.inner.unlink(path, missing_ok=missing_ok, within=within)

        self.call("unlink", path, act)

    def remove_dir(self, path: Path) -> None:
        self.call("remove_dir", path, lambda: self.inner.remove_dir(path))

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        self.call("sync_dir", path, lambda: self.inner.sync_dir(path, within=within))

    def realpath(self, path: Path) -> Path:
        return self.inner.realpath(path)

    def is_writable_dir(self, path: Path) -> bool:
        return self.inner.is_writable_dir(path)

    def is_network_filesystem(self, path: Path) -> bool:
        return self.inner.is_network_filesystem(path)

    # Last, because inside the class the name hides the type.
    def list(self, path: Path) -> list[str]:
        return self.call("list", path, lambda: self.inner.list(path))
