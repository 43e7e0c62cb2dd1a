"""Locks that the kernel drops when their process ends (layer 1; source: flock(2)).

A lock belongs to one opening of the file, so two locks exclude each other within a
process as well. A forked child lets go of its copy at once: the lock ends with the
process that took it, not with the last of its children.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from mvc.errors import Busy
from mvc.io.failure import translate

__all__ = ["FileLock", "take"]

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_SHORT = (
    1.0  # seconds of polling only: a queued thread that gave up would still get the lock briefly
)
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.008  # seconds between two attempts


class FileLock:
    """A lock that is held until ``release``; as a context manager, until the block ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        _live.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    @property
    def held(self) -> bool:
        """Whether it is held by this process."""
        return self._fd >= 0

    def release(self) -> None:
        """Lets go; a second time does nothing."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            try:
                # Unlocking reaches copies of the descriptor that closing would not.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def _abandon(self) -> None:
        """In a forked child: the parent's lock stays, only the copy goes."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


_live: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _abandon_all() -> None:
    for lock in list(_live):
        lock._abandon()


os.register_at_fork(after_in_child=_abandon_all)


def take(path: Path, *, shared: bool, timeout: float | None, block: bool) -> FileLock | None:
    """The lock on ``path``, or None if it is held and ``block`` is false.

    Waits ``timeout`` seconds (for ever if None), then raises Busy. Creates the file
    where it is absent and the folder can be written.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        with translate(path, "lock"):
            descriptor = _open(path)
            try:
                if not _wait(descriptor, kind, deadline, block):
                    os.close(descriptor)
                    break
                if _same(descriptor, path):
                    return FileLock(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the file was deleted or replaced while we waited
    if block:
        raise Busy(
            f"another process holds {path} for more than {timeout:g} s",
            hint="wait until it is done, then run it again",
        )
    return None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise error from None


def _wait(descriptor: int, kind: int, deadline: float | None, block: bool) -> bool:
    """Whether the lock was got."""
    if block and deadline is None:
        fcntl.flock(descriptor, kind)
        return True
    pause = _FIRST_WAIT
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                raise
        else:
            return True
        left = 0.0 if deadline is None else deadline - time.monotonic()
        if not block or left <= 0:
            return False
        if pause > _LONGEST_WAIT and left > _SHORT:
            return _queue(descriptor, kind, left)
        time.sleep(min(pause, left))
        pause = min(2 * pause, 2 * _LONGEST_WAIT)


def _queue(descriptor: int, kind: int, seconds: float) -> bool:
    """Waits in the kernel's queue, which is first come, first served; True if the lock was got.

    A thread waits, because flock knows no time limit. If it gets the lock too late, the
    caller has closed the descriptor, and the lock is gone with the thread's copy of it.
    """
    got = threading.Event()
    own = os.dup(descriptor)  # the number of the other may be another file's by then

    def wait() -> None:
        try:
            with suppress(OSError):
                fcntl.flock(own, kind)
                got.set()
        finally:
            os.close(own)

    threading.Thread(target=wait, name="mvc-lock", daemon=True).start()
    return got.wait(seconds)


def _same(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the locked file: a lock on a deleted file is useless."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
