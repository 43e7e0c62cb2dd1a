"""A file system whose N-th call fails (SQLite's fail-at-N method).

A test runs an operation with N = 1, 2, 3... until a run meets no failure: then every
call of the operation has failed once, and each time the outcome was checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from mvc.io.files import FileSystem
from mvc.io.os_errors import failure, sync_failure
from tests.faults.wrapped import Handle, WrappedFS, WrappedReadFile, WrappedWriteFile

T = TypeVar("T")

Error = int | Literal["short"] | type[MemoryError]

# Where an error can strike; calls it cannot strike are not counted. Others strike anywhere.
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
    """Counts calls; the ``fail_at``-th (from 1) fails, with ``persistent`` all from there on.

    ``error`` is an errno, MemoryError, or "short": the system call then transfers half of
    what it was given, which is no failure and must go unnoticed. A write that fails with an
    errno has put half of its bytes into the file before, as a full disk does. ``calls``
    is the number of calls so far that the error could have struck, ``failures`` how
    many it did. With ``fail_at=0`` nothing fails. ``within``: a folder outside of which nothing
    fails, nor counts.
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
        if self._due(op, file.path):
            raise self._raw()  # the handle makes it an mvc error, as it would the system's
        return act()

    def read(self, file: Handle, offset: int, length: int) -> bytes:
        if self.error == "short" and self._due("read", file.path):
            length = (length + 1) // 2
        elif self.error != "short":
            return super().read(file, offset, length)
        return file.inner.read(offset, length)

    def read_into(self, file: WrappedReadFile, offset: int, view: memoryview) -> int:
        if self.error == "short" and self._due("read", file.path):
            view = view[: (len(view) + 1) // 2]
        elif self.error != "short":
            return super().read_into(file, offset, view)
        return file.inner.read_into(offset, view)

    def write(self, file: WrappedWriteFile, offset: int, views: Sequence[memoryview]) -> int:
        size = sum(map(len, views))
        if not self._due("write", file.path):
            file.inner.write_at(offset, views)
            return size
        half = b"".join(views)[: (size + 1) // 2]
        if self.error != "short":
            half = half[: size // 2]
        if self.error is not MemoryError and half:
            file.inner.write_at(offset, half)
        if self.error != "short":
            raise self._raw()
        return len(half)

    def _due(self, op: str, path: Path) -> bool:
        """Counts the call; whether it fails."""
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
