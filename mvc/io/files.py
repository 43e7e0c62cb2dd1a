"""The file system as mvc uses it: every access is a method of a FileSystem.

Tests replace the FileSystem by test doubles, which record calls, fail, or simulate a power loss. So
code outside this package must not access files in any other way. Some methods (``read_bytes``,
``replace_file``, ``write_atomic``) call only public methods of ``self``, so that a test double need
not replace them.

An OSError becomes IoFailed, StorageFull or ReadOnly (``mvc.io.os_errors``). If a name exists,
``open_write(exclusive=True)``, ``link`` and ``make_dir`` raise FileExistsError.

Locks use flock(2). A lock ends when the process that acquired the lock ends, even if child
processes are still running. Two exclusive locks on a file exclude each other even within a process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import overload

from msgspec import Struct

from mvc.errors import Busy, IoFailed, MvcError
from mvc.io import mounts
from mvc.io.flushes import Flushes
from mvc.io.handles import LARGE, FileIdentity, ReadFile, WriteFile
from mvc.io.lock_holder import lock_holder
from mvc.io.os_errors import sync_failure, translate, under_name, was_missing
from mvc.io.patience import Patience, warn
from mvc.types import Bytes

__all__ = [
    "LOCK_SECONDS",
    "SWAPPED",
    "TEMPORARY",
    "FileIdentity",
    "FileLock",
    "FileSystem",
    "ReadFile",
    "WriteFile",
    "translate",
]

TEMPORARY = ".mvc-tmp-"
"""Prefix of the names of temporary files. A temporary file that a crash has left may be deleted."""

SWAPPED = ".mvc-dir-"
"""Prefix of the names of folders to which ``mvc.repo.checkout.swapped`` switches a symbolic link.

The link is in the same parent folder as these folders, and points to the newest folder.
"""

_TRIES = 3

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_GROUP_SHARES = stat.S_ISGID | stat.S_IWGRP
_BY_OTHERS = 0o066
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCKED = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
LOCK_SECONDS = 60.0
"""Default seconds to wait for a lock."""

POLLED = 1.0
"""If at most this many seconds are left until the deadline, a lock is tried every few ms.

If more time is left, a thread waits for the lock in the kernel's queue. Such a thread cannot be
stopped. After a time-out, it may still acquire the lock for a moment.
"""

_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.008  # seconds between two attempts


class FileLock(AbstractContextManager["FileLock"]):
    """A lock on a file. It ends with ``release``, or at the end of the ``with`` block."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        _live.add(self)

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    @property
    def is_locked(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Unlocks; has no effect a second time."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            try:
                # Closing the descriptor would not end the lock if a child process has a copy of
                # the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)


_live: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _abandon_all() -> None:
    """Runs in a child process after a fork. Closes the copies of the parent's locks.

    The locks of the parent remain.
    """
    for lock in list(_live):
        descriptor, lock._fd = lock._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_abandon_all)


class SharedFolder(Struct, frozen=True):
    """A folder in which the users of a Unix group may write.

    New files in the folder get the permissions of the folder. The umask is ignored.
    """

    path: Path
    mode: int

    @classmethod
    def at(cls, fs: FileSystem, path: Path) -> SharedFolder | None:
        """The folder at ``path``.

        None if the group of the folder may not write in the folder, or does not own new files in
        the folder (setgid bit).
        """
        folder = fs.stat(path)
        if folder is None or not folder.is_dir or folder.mode & _GROUP_SHARES != _GROUP_SHARES:
            return None
        return cls(path, stat.S_IMODE(folder.mode))

    def mode_of(self, path: Path, file: FileIdentity) -> int | None:
        """The mode to set for the file or folder at ``path``.

        None if its mode is right, if another user owns it, or if it is outside the shared folder.
        """
        if path == self.path or not path.is_relative_to(self.path) or file.owner != os.geteuid():
            return None
        wanted = self.mode if file.is_dir else self.mode & 0o666
        return None if stat.S_IMODE(file.mode) == wanted else wanted


class FileSystem:
    """The real file system. Threads may share one object.

    ``shared``: the repository's folder, if the users of a Unix group may write in this folder.

    The argument ``within`` of some methods is a folder above the path. Symbolic links below this
    folder are not followed, even if another process replaces a folder by a link during the call.
    """

    shared: SharedFolder | None = None

    def shared_by(self, folder: Path) -> FileSystem:
        """A file system that gives the group of ``folder`` access to new files in the folder.

        If the group may not write in the folder, returns ``self``.
        """
        if type(self) is not FileSystem or (shared := SharedFolder.at(self, folder)) is None:
            return self
        fs = FileSystem()
        fs.shared = shared
        return fs

    # -- open files --------------------------------------------------------------------

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        """Opens a regular file for reading. Raises IoFailed for anything else.

        ``follow=False`` refuses a symbolic link as the last part of the path.
        """
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        with translate(path, "read"):
            file = ReadFile(path, os.open(path, flags))
        _identify(file)
        return file

    def open_write(
        self,
        path: Path,
        *,
        create: bool = False,
        exclusive: bool = False,
        mode: int = 0o666,
        within: Path | None = None,
    ) -> WriteFile:
        """Opens a regular file for writing, and sets the offset ``position`` to the file's end.

        ``create`` creates a missing file. ``exclusive`` raises FileExistsError for an existing
        file. ``mode``: permissions of a new file, to which the umask of the process is applied. A
        symbolic link is refused.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= (os.O_CREAT if create else 0) | (os.O_EXCL if create and exclusive else 0)
        with translate(path, "write"), _reach(path, within) as (name, folder):
            file = self._written(path, os.open(name, flags, mode, dir_fd=folder))
        file.position = _identify(file).size
        if create and mode & _BY_OTHERS:
            self.share(path)
        return file

    def _written(self, path: Path, descriptor: int) -> WriteFile:
        return WriteFile(path, descriptor, 0)

    @overload
    def lock(self, path: Path, *, shared: bool = ..., timeout: float | None = ...) -> FileLock: ...
    @overload
    def lock(
        self, path: Path, *, shared: bool = ..., timeout: float | None = ..., block: bool
    ) -> FileLock | None: ...
    def lock(
        self,
        path: Path,
        *,
        shared: bool = False,
        timeout: float | None = None,
        block: bool = True,
    ) -> FileLock | None:
        """Acquires an advisory lock on a file. If the file is missing, it is created.

        Waits at most ``timeout`` seconds (LOCK_SECONDS if None), then raises Busy. After five
        seconds, a warning names the process that has the lock. With ``block=False``, does not wait,
        and returns None if the file is locked.
        """
        timeout = LOCK_SECONDS if timeout is None else timeout
        deadline = time.monotonic() + timeout
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            with translate(path, "lock"):
                descriptor = _open_lock(path)
                try:
                    _regular(path, FileIdentity.of(os.fstat(descriptor)))
                    if not _wait(descriptor, path, kind, deadline if block else None):
                        os.close(descriptor)
                        break
                    if _same(descriptor, path):
                        self.share(path)
                        return FileLock(path, descriptor)
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # the file was deleted or replaced during the wait
        if block:
            raise Busy(
                f"{lock_holder(path)} has been locking {path} for more than {timeout:g} s",
                hint="wait until the process has finished, then retry",
            )
        return None

    # -- names -------------------------------------------------------------------------

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        """The identity of the file at ``path``. None if the file or a link's target is missing."""
        with translate(path, "inspect"):
            try:
                return FileIdentity.of(os.stat(path, follow_symlinks=follow))
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:  # a cycle of links
                    return None
                raise

    def list(self, path: Path) -> list[str]:
        """The names in the folder ``path``, sorted."""
        with translate(path, "list"):
            return sorted(os.listdir(path))

    def make_dir(self, path: Path, exist_ok: bool = False, *, within: Path | None = None) -> bool:
        """Creates a folder in an existing folder. The new name is durable only after ``sync_dir``.

        With ``exist_ok``, returns False if the folder exists.
        """
        with translate(path, "create"), _reach(path, within) as (name, folder):
            try:
                os.mkdir(name, dir_fd=folder)
                self.share(path)
            except FileExistsError:
                follow = within is None or path == within
                existing = os.stat(name, dir_fd=folder, follow_symlinks=follow)
                if not exist_ok or not FileIdentity.of(existing).is_dir:
                    raise
                return False
        return True

    def set_mode(self, path: Path, mode: int) -> None:
        """Sets exactly these permission bits of a file or a folder."""
        with translate(path, "change the mode of"):
            os.chmod(path, mode)

    def share(self, path: Path) -> None:
        """Gives the group access to a new file, if the file is in the shared folder."""
        if self.shared is None or (file := self.stat(path, follow=False)) is None:
            return
        if not file.is_symlink and (mode := self.shared.mode_of(path, file)) is not None:
            self.set_mode(path, mode)

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        """Renames ``src`` to ``dst``. An existing file ``dst`` is replaced in one step.

        With ``within``, ``src`` must be below the folder of ``dst``.
        """
        with translate(dst, "replace"), _reach(dst, within) as (name, folder):
            old: str | Path = src
            if folder is not None:
                old = src.name if src.parent == dst.parent else src.relative_to(dst.parent)
            os.replace(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def link(self, src: Path, dst: Path) -> None:
        """Creates a hard link to ``src``. Raises FileExistsError if ``dst`` exists."""
        with translate(dst, "create"):
            os.link(src, dst)

    def symlink(self, target: str, path: Path) -> None:
        """Creates a symbolic link to ``target``. Raises FileExistsError if ``path`` exists."""
        with translate(path, "create"):
            os.symlink(target, path)

    def read_link(self, path: Path) -> str | None:
        """The target of a symbolic link, unresolved; None if ``path`` is no link."""
        identity = self.stat(path, follow=False)
        if identity is None or not identity.is_symlink:
            return None
        with translate(path, "read"):
            return os.readlink(path)

    def unlink(self, path: Path, missing_ok: bool = False, *, within: Path | None = None) -> None:
        with translate(path, "delete"):
            try:
                with _reach(path, within) as (name, folder):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_dir(self, path: Path) -> None:
        with translate(path, "delete"):
            os.rmdir(path)

    def remove_tree(self, path: Path) -> None:
        """Deletes a folder and its content. Follows no symbolic link."""
        import shutil  # late: slow to import

        with translate(path, "delete"):
            shutil.rmtree(path)

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """A new folder for temporary files, deleted with its files when the block ends.

        The variable TMPDIR chooses its parent folder.
        """
        import tempfile  # late: slow to import

        with translate(Path("TMPDIR"), "write"):
            folder = tempfile.TemporaryDirectory(prefix="mvc-", ignore_cleanup_errors=True)
        with folder as path:
            yield self.realpath(Path(path))

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        """Makes the names in a folder durable. Raises SyncFailed if the flush fails.

        Has no effect if the file system cannot flush folders.
        """
        with translate(path, "read"), _reach(path, within) as (name, folder):
            links = 0 if folder is None else os.O_NOFOLLOW
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | links, dir_fd=folder)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise sync_failure(path, error) from error
        finally:
            os.close(descriptor)

    def realpath(self, path: Path) -> Path:
        """``path`` as an absolute path without symbolic links. The path need not exist."""
        with translate(path, "inspect"):
            return Path(os.path.realpath(path))

    def cwd(self) -> Path:
        with translate(Path(), "inspect"):
            return Path.cwd()

    def is_writable_dir(self, path: Path) -> bool:
        """Whether files can be created in ``path``; False if it is no folder."""
        effective = os.access in os.supports_effective_ids
        access = os.access(path, os.W_OK | os.X_OK, effective_ids=effective)
        return access and os.path.isdir(path)

    def free_bytes(self, path: Path) -> int:
        """Bytes that this user can still write to the file system of a folder."""
        with translate(path, "inspect"):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def read_ahead(self, paths: Sequence[Path]) -> None:
        """Starts to read files into the page cache, in another thread."""
        threading.Thread(target=_read_ahead, args=(paths,), daemon=True).start()

    def is_network_filesystem(self, path: Path) -> bool:
        """Whether other hosts may share the file system of ``path``."""
        return mounts.is_network(mounts.type_of(path))

    # -- several steps -----------------------------------------------------------------

    def make_dirs(
        self,
        path: Path,
        *,
        within: Path | None = None,
        created: MutableSequence[Path] | None = None,
    ) -> None:
        """Creates a folder and its missing parents; an existing folder is no error.

        On return, the names of all created folders are durable. Appends the created folders to
        ``created``, the outermost first. Raises FileExistsError if ``path`` is a file.
        """
        absent = []
        for place in (path, *path.parents):
            if self.stat(place) is not None:
                break
            absent.append(place)
        for place in [*absent[:0:-1], path]:
            inside = within if place == path else _below(place, within)
            if self.make_dir(place, exist_ok=True, within=inside) and created is not None:
                created.append(place)
        for place in absent:
            if place.parent != place:
                self.sync_dir(place.parent, within=_below(place.parent, within))

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """The content of a file. Raises IoFailed if it is longer than ``limit`` bytes."""
        with self.open_read(path) as file:
            data = b"" if (long := file.size() > limit) else file.read(0, limit + 1)
        if long or len(data) > limit:
            raise IoFailed(f"{path} is longer than the maximum of {limit} bytes")
        return data

    def write_atomic(self, path: Path, data: Bytes, *, mode: int | None = None) -> None:
        """Replaces the content of ``path`` by ``data``, durably and in one step.

        Tries again if another process deletes the temporary file.
        """
        for left in reversed(range(_TRIES)):
            try:
                self.replace_file(path, lambda file: file.write(data), mode=mode, durable=True)
                break
            except IoFailed as error:
                if not left or not was_missing(error) or self.stat(path.parent) is None:
                    raise

    def flushes(self) -> Flushes:
        """An object that flushes files of this file system in parallel, for ``write_beside``."""
        return Flushes()

    def replace_file(
        self,
        path: Path,
        writer: Callable[[WriteFile], None],
        *,
        mode: int | None,
        durable: bool,
        within: Path | None = None,
    ) -> None:
        """Replaces the content of ``path`` in one step by the output of ``writer``.

        Readers see the whole old content or the whole new content. With ``durable``, this is true
        even after a power loss. If ``mode`` is None, the permissions of an existing file do not
        change, and the umask applies to a new file. A symbolic link at ``path`` is replaced, not
        its target. Other hard links to the old file still have the old content.
        """
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}"
        beside = path.with_name(temporary)
        try:
            self.write_beside(path, temporary, writer, mode=mode, durable=durable, within=within)
            self.replace(beside, path, within=within)
        except BaseException:
            with suppress(MvcError):
                self.unlink(beside, missing_ok=True, within=within)
            raise
        if durable:
            self.sync_dir(path.parent, within=within)

    def write_beside(
        self,
        path: Path,
        temporary: str,
        writer: Callable[[WriteFile], None],
        *,
        mode: int | None = None,
        durable: bool = True,
        within: Path | None = None,
        flushes: Flushes | None = None,
    ) -> None:
        """Writes a new file named ``temporary`` in the folder of ``path``.

        The caller then renames this file to ``path``, or deletes this file if anything failed.
        ``mode`` and ``durable`` mean the same as for ``replace_file``. With ``flushes``, the file
        is durable only when the ``with`` block of ``flushes`` ends.
        """
        present = self.stat(path, follow=False)
        if present is not None and not present.is_symlink:
            _regular(path, present)
            mode = self._replaced_mode(path, present) if mode is None else mode
        private = 0o666 if mode is None else mode  # never wider than the final mode
        beside = path.with_name(temporary)
        try:
            with ExitStack() as opened:
                file = opened.enter_context(
                    self.open_write(
                        beside, create=True, exclusive=True, mode=private, within=within
                    )
                )
                if mode is not None:
                    file.set_mode(mode)
                writer(file)
                if flushes is not None:
                    opened.pop_all()
                    flushes.add(file, path)
                elif durable:
                    file.sync()
        except IoFailed as error:  # the message must not show the temporary name
            raise under_name(error, beside, path) from error.__cause__

    def _replaced_mode(self, path: Path, present: FileIdentity) -> int | None:
        """The mode for a file that replaces ``present``. None means the mode of a new file."""
        private = not present.permissions & _BY_OTHERS
        shared = self.shared is not None and path.is_relative_to(self.shared.path)
        return None if shared and not private else present.permissions


def _read_ahead(paths: Sequence[Path]) -> None:
    with suppress(OSError, AttributeError):  # advice that some systems do not support
        for path in paths:
            with path.open("rb", buffering=0) as file:
                for start in range(0, file.seek(0, os.SEEK_END), LARGE):
                    os.posix_fadvise(file.fileno(), start, LARGE, os.POSIX_FADV_WILLNEED)


class LateFlushes(FileSystem):
    """A file system that flushes only in ``flush``. Before, a power loss may destroy new files."""

    def _written(self, path: Path, descriptor: int) -> WriteFile:
        return _Unflushed(path, descriptor, 0)

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        """Does nothing. ``flush`` makes the names in all folders durable."""

    @staticmethod
    def flush(folder: Path) -> None:
        """Makes everything in ``folder`` durable. Follows no symbolic link."""
        fs = FileSystem()
        with fs.flushes() as flushes:
            for name in fs.list(folder):
                path = folder / name
                identity = fs.stat(path, follow=False)
                if identity is not None and identity.is_dir:
                    LateFlushes.flush(path)
                elif identity is not None and identity.is_file:
                    flushes.add(fs.open_write(path), path)
        fs.sync_dir(folder)


class _Unflushed(WriteFile):
    def _sync(self) -> None:
        """Does nothing. ``LateFlushes.flush`` flushes the file."""


def _below(path: Path, within: Path | None) -> Path | None:
    """Returns ``within`` if ``path`` is outside or below this folder.

    If ``path`` is ``within`` or a folder above ``within``, returns None, which means no
    restriction.
    """
    return None if within is None or within.is_relative_to(path) else within


def _identify(file: ReadFile | WriteFile) -> FileIdentity:
    """The identity of the open file. Closes the file if it is not a regular file."""
    try:
        identity = file.identity()
        _regular(file.path, identity)
    except BaseException:
        file.close()
        raise
    return identity


def _regular(path: Path, identity: FileIdentity) -> None:
    if identity.is_dir:
        raise IoFailed(f"{path} is a folder, not a file")
    if not identity.is_file:
        raise IoFailed(f"{path} is not a regular file", hint="devices and pipes cannot be used")


@contextmanager
def _reach(path: Path, within: Path | None) -> Iterator[tuple[str, int | None]]:
    """Yields a name and the descriptor of its folder, for functions with ``dir_fd``.

    Without ``within``, or for ``within`` itself, yields (path, None). Otherwise raises IoFailed if
    ``path`` is not below ``within``, or if a part of the path below ``within`` is a symbolic link.
    Opens each folder relative to its parent with O_NOFOLLOW (openat(2)), because another process
    may replace a folder by a link at any time.
    """
    if within is None or path == within:
        yield os.fspath(path), None
        return
    *folders, name = _parts(path, within)
    with translate(within, "read"):
        descriptor = os.open(within, _FOLDER)
    try:
        for i, folder in enumerate(folders):
            descriptor = _enter(descriptor, folder, within.joinpath(*folders[: i + 1]))
        yield name, descriptor
    finally:
        os.close(descriptor)


def _parts(path: Path, within: Path) -> tuple[str, ...]:
    above, parts = within.parts, path.parts
    parts, inside = parts[len(above) :], parts[: len(above)] == above
    if not inside or ".." in parts:
        raise IoFailed(f"{path} is not below {within}")
    return parts


def _enter(descriptor: int, folder: str, shown: Path) -> int:
    """Opens ``folder`` in the folder with this descriptor, and closes the descriptor."""
    try:
        inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(descriptor, folder):
            raise IoFailed(
                f"{shown} is a symbolic link, and mvc does not write through links",
                hint="replace the link by a folder",
            ) from error
        raise
    os.close(descriptor)
    return inner


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return True  # the link was deleted after the caller failed to open it


def _open_lock(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: a pipe would wait for a writer
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        try:
            return os.open(path, os.O_RDONLY | flags)
        except FileNotFoundError:
            raise error from None


def _wait(descriptor: int, path: Path, kind: int, deadline: float | None) -> bool:
    """Waits until the lock is acquired or ``deadline`` has passed.

    Without a deadline, does not wait. Returns whether the lock is acquired.
    """
    pause = _FIRST_WAIT
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKED:
                raise
        else:
            return True
        left = 0.0 if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return False
        if pause > _LONGEST_WAIT and left > POLLED:
            return _queue(descriptor, path, kind, left)
        time.sleep(min(pause, left))
        pause = min(2 * pause, 2 * _LONGEST_WAIT)


def _queue(descriptor: int, path: Path, kind: int, seconds: float) -> bool:
    """Waits for the lock in the kernel's queue. Returns whether the lock is acquired in time.

    A new thread waits, because flock(2) has no time limit. If this thread acquires the lock too
    late, it closes its descriptor, and the lock ends.
    """
    got = threading.Event()
    # After a time-out the caller closes its descriptor, and the number may get another file.
    own = os.dup(descriptor)

    def wait() -> None:
        try:
            with suppress(OSError):
                fcntl.flock(own, kind)
                got.set()
        finally:
            os.close(own)

    threading.Thread(target=wait, name="mvc-lock", daemon=True).start()
    patience = Patience(seconds, lambda s: warn(f"{path}, locked by {lock_holder(path)}", s))
    return patience.await_(got.wait)


def _same(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the locked file. A lock on a deleted file is useless."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
