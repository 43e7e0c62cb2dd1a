"""File systems for tests: they count calls, let a call fail, or simulate a kill of the process.

Each wraps another file system. A wrapper passes all calls with a path to its method ``call``, and
all calls on open files to ``handle_call``, which by default passes them on to ``call``. Subclasses
override these two methods. A method that consists of several calls, such as ``write_atomic``,
passes each of these calls to them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from mvc.system import FileIdentity, FileSystem, Flushes, ReadFile, WriteFile, failure, sync_failure

T = TypeVar("T")


class WrappedReadFile(ReadFile):
    """A file open for reading. Passes each system call to the methods of ``fs``."""

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
    """A file open for writing. Passes each system call to the methods of ``fs``."""

    def __init__(self, fs: WrappedFS, inner: WriteFile) -> None:
        super().__init__(inner.path, -1, inner.position)
        self.fs, self.inner = fs, inner
        self.node = -1  # identifies the file, for wrappers that track files across renames

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
    """Passes every call to the file system ``inner``."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        self.inner = inner or FileSystem()

    # -- methods to override -----------------------------------------------------------

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        """Receives every call with a path. ``op``: the method's name. ``act()`` makes the call."""
        return act()

    def handle_call(self, file: Handle, op: str, act: Callable[[], T], *detail: Any) -> T:
        """Receives every call on an open file. ``op``: read, stat, write, truncate, set_mode or
        sync.
        """
        return self.call(op, file.path, act, *detail)

    def read(self, file: Handle, offset: int, length: int) -> bytes:
        detail = offset, length
        return self.handle_call(file, "read", lambda: file.inner.read(*detail), *detail)

    def read_into(self, file: WrappedReadFile, offset: int, view: memoryview) -> int:
        detail = offset, len(view)
        return self.handle_call(file, "read", lambda: file.inner.read_into(offset, view), *detail)

    def write(self, file: WrappedWriteFile, offset: int, views: Sequence[memoryview]) -> int:
        """Makes one system call. Returns how many bytes of ``views`` were written."""
        detail = offset, sum(map(len, views)), views
        self.handle_call(file, "write", lambda: file.inner.write_at(offset, views), *detail)
        return detail[1]

    # -- the file system ---------------------------------------------------------------

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        def act() -> ReadFile:
            return self.inner.open_read(path, follow=follow)

        return WrappedReadFile(self, self.call("open_read", path, act))

    def open_write(self, path: Path, *, create: bool = False, **options: Any) -> WriteFile:
        def act() -> WriteFile:
            return self.inner.open_write(path, create=create, **options)

        return WrappedWriteFile(self, self.call("open_write", path, act, create))

    def lock(self, path: Path, **options: Any) -> Any:
        return self.call("lock", path, lambda: self.inner.lock(path, **options))

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        return self.call("stat", path, lambda: self.inner.stat(path, follow=follow))

    def make_dir(self, path: Path, *args: bool, **options: Any) -> bool:
        return self.call("make_dir", path, lambda: self.inner.make_dir(path, *args, **options))

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        self.call("replace", dst, lambda: self.inner.replace(src, dst, within=within), src)

    def link(self, src: Path, dst: Path) -> None:
        self.call("link", dst, lambda: self.inner.link(src, dst), src)

    def unlink(self, path: Path, *args: bool, **options: Any) -> None:
        self.call("unlink", path, lambda: self.inner.unlink(path, *args, **options))

    def remove_dir(self, path: Path) -> None:
        self.call("remove_dir", path, lambda: self.inner.remove_dir(path))

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        self.call("sync_dir", path, lambda: self.inner.sync_dir(path, within=within))

    def realpath(self, path: Path) -> Path:
        return self.inner.realpath(path)

    def flushes(self) -> Flushes:
        return Flushes(at_once=0)

    def is_writable_dir(self, path: Path) -> bool:
        return self.inner.is_writable_dir(path)

    def is_network_filesystem(self, path: Path) -> bool:
        return self.inner.is_network_filesystem(path)

    # This method comes last, because its name hides the type ``list`` in the class.
    def list(self, path: Path) -> list[str]:
        return self.call("list", path, lambda: self.inner.list(path))


# -- failing -------------------------------------------------------------------------------------

Error = int | Literal["short"] | type[MemoryError]

# Maps an error to the calls that can fail with this error. Only these calls are counted. An error
# that is not listed can affect every call.
_STRIKES: dict[Error, frozenset[str]] = {
    errno.ENOSPC: frozenset(
        {"open_write", "write", "truncate", "sync", "make_dir", "link", "replace", "sync_dir"}
    ),
    errno.EMFILE: frozenset({"open_read", "open_write", "lock", "list", "sync_dir"}),
    "short": frozenset({"read", "write"}),
}
_STRIKES[errno.EDQUOT] = _STRIKES[errno.ENOSPC]
_STRIKES[errno.ENFILE] = _STRIKES[errno.EMFILE]

_VERBS = {
    "open_read": "read",
    "open_write": "write",
    "lock": "lock",
    "stat": "inspect",
    "list": "list",
    "make_dir": "create",
    "link": "create",
    "replace": "replace",
    "unlink": "delete",
    "remove_dir": "delete",
}


class FailingFS(WrappedFS):
    """Counts calls, and lets call number ``fail_at`` (from 1; 0: none) fail.

    ``persistent``: whether all later calls fail, too. ``within``: count only calls below this
    folder. ``error``: an errno, MemoryError, or "short". A write that fails with an errno first
    writes half of its bytes, as on a full disk. With "short", no call fails: call ``fail_at``
    transfers only half of its bytes. ``calls``: the number of counted calls. ``failures``: the
    number of calls that failed or were short.
    """

    def __init__(
        self,
        inner: FileSystem | None = None,
        fail_at: int = 0,
        error: Error = errno.EIO,
        persistent: bool = False,
        within: Path | None = None,
    ) -> None:
        super().__init__(inner)
        self.within = within
        self.fail_at, self.error, self.persistent = fail_at, error, persistent
        self.calls = self.failures = 0

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        if self._due(op, path):
            self._fail(op, path)
        return act()

    def handle_call(self, file: Handle, op: str, act: Callable[[], T], *detail: Any) -> T:
        if self.error == "short" or not self._due(op, file.path):
            return act()
        if op == "write" and isinstance(file.inner, WriteFile) and self.error is not MemoryError:
            offset, size, views = detail
            file.inner.write_at(offset, b"".join(views)[: size // 2])
        raise self._raw()  # the open file converts this error into an mvc error

    def read(self, file: Handle, offset: int, length: int) -> bytes:
        return super().read(file, offset, self._transferred("read", file, length))

    def read_into(self, file: WrappedReadFile, offset: int, view: memoryview) -> int:
        return super().read_into(file, offset, view[: self._transferred("read", file, len(view))])

    def write(self, file: WrappedWriteFile, offset: int, views: Sequence[memoryview]) -> int:
        size = sum(map(len, views))
        length = self._transferred("write", file, size)
        part = views if length == size else [memoryview(b"".join(views))[:length]]
        return super().write(file, offset, part)

    def _transferred(self, op: str, file: Handle, length: int) -> int:
        """How many of ``length`` bytes the system call transfers."""
        is_short = self.error == "short" and self._due(op, file.path)
        return (length + 1) // 2 if is_short else length

    def _due(self, op: str, path: Path) -> bool:
        """Counts the call. Returns whether it fails."""
        if self.within is not None and not path.is_relative_to(self.within):
            return False
        strikes = _STRIKES.get(self.error)
        if strikes is not None and op not in strikes:
            return False
        self.calls += 1
        last = self.calls if self.persistent else self.fail_at
        due = 0 < self.fail_at <= self.calls <= last
        self.failures += due
        return due

    def _raw(self) -> BaseException:
        if isinstance(self.error, int):
            return OSError(self.error, os.strerror(self.error))
        return MemoryError("injected")

    def _fail(self, op: str, path: Path) -> None:
        raw = self._raw()
        if not isinstance(raw, OSError):
            raise raw
        if op == "sync_dir":
            raise sync_failure(path, raw) from raw
        raise failure(raw, path, _VERBS[op]) from raw


# -- not flushing --------------------------------------------------------------------------------


class UnsyncedFS(WrappedFS):
    """Does not flush files to disk, so that tests with thousands of writes are fast."""

    def handle_call(self, file: Handle, op: str, act: Callable[[], Any], *detail: Any) -> Any:
        return None if op == "sync" else super().handle_call(file, op, act, *detail)


# -- calling a function, and simulating a kill ---------------------------------------------------

Hook = Callable[[int, str, Path], object]
"""A function that receives the number of a call (from 1), the name of its method, and its path."""


class HookedFS(WrappedFS):
    """Calls ``hook`` before every call of the file system. ``calls`` counts these calls."""

    def __init__(self, hook: Hook, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.hook = hook
        self.calls = 0
        self._counting = threading.Lock()

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        with self._counting:
            self.calls += 1
            number = self.calls
        self.hook(number, op, path)
        return act()


class Killed(BaseException):
    """Raised by every call of a ``KilledFS`` after the simulated kill."""


class KilledFS(HookedFS):
    """Simulates a kill of the process before the first call for which ``when`` returns true.

    This call and all later calls raise Killed and have no effect, even in clean-up code. Locks can
    be released, because the kernel releases the locks of a killed process.
    """

    def __init__(self, when: Hook, inner: FileSystem | None = None) -> None:
        super().__init__(self._die, inner)
        self._when = when
        self._done: list[tuple[str, str]] = []
        self.dead = False

    def seen(self, op: str, name: str) -> bool:
        """Whether the method ``op`` was called before for a file with this name."""
        return (op, name) in self._done

    def _die(self, number: int, op: str, path: Path) -> None:
        self.dead = self.dead or bool(self._when(number, op, path))
        if self.dead:
            raise Killed
        self._done.append((op, path.name))
