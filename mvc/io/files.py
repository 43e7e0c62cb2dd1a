"""The file system as mvc sees it: every access goes through a FileSystem (layer 1).

Tests replace the object by twins that record, fail or lose power, so nothing above
this package may reach the operating system in another way. The methods that combine
others (``read_bytes``, ``replace_file``, ``write_atomic``) use only public methods of
``self``; a twin need not replace them.

OSErrors become IoFailed, StorageFull or ReadOnly (``mvc.io.os_errors``). FileExistsError
passes from ``open_write(exclusive=True)``, ``link`` and ``make_dir``: the name is taken.

Locks are those that the kernel drops when their process ends (flock(2)). A lock belongs to
one opening of the file, so two locks exclude each other within a process as well. A forked
child lets go of its copy at once: the lock ends with the process that took it, not with the
last of its children.
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
"""How the names of temporary files begin; what a crash left of them may be deleted."""

SWAPPED = ".mvc-dir-"
"""How the names of folders begin that a symbolic link beside them leads to, one after the other."""

_TRIES = 3

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_GROUP_SHARES = stat.S_ISGID | stat.S_IWGRP
_BY_OTHERS = 0o066
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
LOCK_SECONDS = 60.0
"""Seconds for which a lock is waited for, unless the caller says otherwise."""

POLLED = 1.0
"""Seconds before its deadline from which a lock is polled for, and not queued for.

A queued thread that gave up would still get the lock briefly.
"""

_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.008  # seconds between two attempts


class FileLock(AbstractContextManager["FileLock"]):
    """A lock that is held until ``release``; as a context manager, until the block ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        _live.add(self)

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    @property
    def held(self) -> bool:
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


_live: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _abandon_all() -> None:
    """In a forked child: the parent's locks stay, only the copies of their descriptors go."""
    for lock in list(_live):
        descriptor, lock._fd = lock._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_abandon_all)


class SharedFolder(Struct, frozen=True):
    """A folder in which a group works: what is made in it gets its permissions, not the umask's."""

    path: Path
    mode: int

    @classmethod
    def at(cls, fs: FileSystem, path: Path) -> SharedFolder | None:
        """The folder at ``path``, if its group may write there and owns what is made there."""
        there = fs.stat(path)
        if there is None or not there.is_dir or there.mode & _GROUP_SHARES != _GROUP_SHARES:
            return None
        return cls(path, stat.S_IMODE(there.mode))

    def mode_of(self, path: Path, there: FileIdentity) -> int | None:
        """What mode a file or folder is to have; None if it has it, or is not ours to change."""
        if path == self.path or not path.is_relative_to(self.path) or there.owner != os.geteuid():
            return None
        wanted = self.mode if there.is_dir else self.mode & 0o666
        return None if stat.S_IMODE(there.mode) == wanted else wanted


class FileSystem:
    """The real file system. Holds nothing but ``shared``; one object may serve all threads.

    ``shared``: the repository's folder, if a group works in it (``shared_by``).

    Where a method takes ``within``, a folder above the path, no symbolic link below that
    folder is followed, whatever is swapped for whatever meanwhile (``_reach``).
    """

    shared: SharedFolder | None = None

    def shared_by(self, folder: Path) -> FileSystem:
        """One that keeps what it makes in ``folder`` open to its group, if that may write there."""
        if type(self) is not FileSystem or (shared := SharedFolder.at(self, folder)) is None:
            return self
        fs = FileSystem()
        fs.shared = shared
        return fs

    # -- open files --------------------------------------------------------------------

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        """A regular file to read; IoFailed for anything else.

        ``follow=False`` refuses a symbolic link in the last place of the path.
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
        """A regular file to change; what it holds stays, ``position`` is its end.

        ``create`` makes an absent file, ``exclusive`` raises FileExistsError for a
        present one. ``mode`` is what the process's umask leaves of it. A symbolic link
        is refused.
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
        """An advisory lock on a file, which is created where it is absent.

        Waits ``timeout`` seconds (LOCK_SECONDS if None), warns after five who holds it, and at
        last raises Busy; with ``block=False`` it does not wait and returns None. It ends with
        the process, and excludes other locks of the same process too.
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
                os.close(descriptor)  # the file was deleted or replaced while we waited
        if block:
            raise Busy(
                f"{lock_holder(path)} holds {path} for more than {timeout:g} s",
                hint="wait until it is done, then run it again",
            )
        return None

    # -- names -------------------------------------------------------------------------

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        """What stands at ``path``; None if nothing does, or a link there that leads nowhere."""
        with translate(path, "inspect"):
            try:
                return FileIdentity.of(os.stat(path, follow_symlinks=follow))
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:  # links that lead to one another
                    return None
                raise

    def list(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""
        with translate(path, "list"):
            return sorted(os.listdir(path))

    def make_dir(self, path: Path, exist_ok: bool = False, *, within: Path | None = None) -> bool:
        """Makes a folder in one that exists; its name is not durable yet.

        False: the folder existed already, and ``exist_ok`` permits that.
        """
        with translate(path, "create"), _reach(path, within) as (name, folder):
            try:
                os.mkdir(name, dir_fd=folder)
                self.share(path)
            except FileExistsError:
                follow = within is None or path == within
                there = os.stat(name, dir_fd=folder, follow_symlinks=follow)
                if not exist_ok or not FileIdentity.of(there).is_dir:
                    raise
                return False
        return True

    def set_mode(self, path: Path, mode: int) -> None:
        """Gives a file or a folder exactly these permission bits."""
        with translate(path, "change the mode of"):
            os.chmod(path, mode)

    def share(self, path: Path) -> None:
        """Opens what was made in the shared folder to its group; elsewhere nothing changes."""
        if self.shared is None or (there := self.stat(path, follow=False)) is None:
            return
        if not there.is_symlink and (mode := self.shared.mode_of(path, there)) is not None:
            self.set_mode(path, mode)

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        """Renames ``src`` to ``dst``, taking the place of a file there in one step.

        With ``within`` both must stand in one folder.
        """
        with translate(dst, "replace"), _reach(dst, within) as (name, folder):
            old: str | Path = src
            if folder is not None:
                old = src.name if src.parent == dst.parent else src.relative_to(dst.parent)
            os.replace(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def link(self, src: Path, dst: Path) -> None:
        """A second name for the file ``src``; FileExistsError if ``dst`` is taken."""
        with translate(dst, "create"):
            os.link(src, dst)

    def symlink(self, target: str, path: Path) -> None:
        """Makes a symbolic link to ``target``; FileExistsError if ``path`` is taken."""
        with translate(path, "create"):
            os.symlink(target, path)

    def read_link(self, path: Path) -> str | None:
        """Where a symbolic link leads, as it is written there; None if ``path`` is none."""
        identity = self.stat(path, follow=False)
        if identity is None or not identity.is_symlink:
            return None
        with translate(path, "read"):
            return os.readlink(path)

    def unlink(self, path: Path, missing_ok: bool = False, *, within: Path | None = None) -> None:
        """Takes a file's name away."""
        with translate(path, "delete"):
            try:
                with _reach(path, within) as (name, folder):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_dir(self, path: Path) -> None:
        """Removes an empty folder."""
        with translate(path, "delete"):
            os.rmdir(path)

    def remove_tree(self, path: Path) -> None:
        """Deletes a folder and all that is in it. Follows no symbolic link."""
        import shutil  # slow to import, and rarely needed

        with translate(path, "delete"):
            shutil.rmtree(path)

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """A new folder where the system keeps temporary files, deleted with its files at the end.

        The variable TMPDIR names another place.
        """
        import tempfile  # slow to import, and rarely needed

        with translate(Path("TMPDIR"), "write"):
            folder = tempfile.TemporaryDirectory(prefix="mvc-", ignore_cleanup_errors=True)
        with folder as path:
            yield self.realpath(Path(path))

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        """Returns when the names in a folder are durable.

        Silent where the file system cannot flush folders, SyncFailed where it fails to.
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
        """``path`` absolute and without symbolic links; what is absent is kept as named."""
        with translate(path, "inspect"):
            return Path(os.path.realpath(path))

    def cwd(self) -> Path:
        with translate(Path(), "inspect"):
            return Path.cwd()

    def is_writable_dir(self, path: Path) -> bool:
        """Whether files can be made in ``path``; false if it is no folder."""
        effective = os.access in os.supports_effective_ids
        access = os.access(path, os.W_OK | os.X_OK, effective_ids=effective)
        return access and os.path.isdir(path)

    def free_bytes(self, path: Path) -> int:
        """Bytes that this user can still write to the file system of a folder."""
        with translate(path, "inspect"):
            found = os.statvfs(path)
            return found.f_bavail * found.f_frsize

    def read_ahead(self, paths: Sequence[Path]) -> None:
        """Has the system read files into its cache, beside whatever is done meanwhile."""
        threading.Thread(target=_read_ahead, args=(paths,), daemon=True).start()

    def is_network_filesystem(self, path: Path) -> bool:
        """Whether other hosts may share the file system under ``path``."""
        return mounts.is_network(mounts.type_of(path))

    # -- several steps -----------------------------------------------------------------

    def make_dirs(
        self, path: Path, *, within: Path | None = None, made: MutableSequence[Path] | None = None
    ) -> None:
        """Makes a folder and those above it that are absent; one that exists already is fine.

        When it returns, the names of all folders that were absent are durable. ``made`` gets the
        folders that this call made itself, outermost first. FileExistsError if something else
        has the name.
        """
        absent = []
        for place in (path, *path.parents):
            if self.stat(place) is not None:
                break
            absent.append(place)
        for place in [*absent[:0:-1], path]:
            inside = within if place == path else _below(place, within)
            if self.make_dir(place, exist_ok=True, within=inside) and made is not None:
                made.append(place)
        for place in absent:
            if place.parent != place:
                self.sync_dir(place.parent, within=_below(place.parent, within))

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """All of a file; IoFailed if it is longer than ``limit`` bytes."""
        with self.open_read(path) as file:
            data = b"" if (long := file.size() > limit) else file.read(0, limit + 1)
        if long or len(data) > limit:
            raise IoFailed(f"{path} is longer than the {limit} bytes that are expected there")
        return data

    def write_atomic(self, path: Path, data: Bytes, *, mode: int | None = None) -> None:
        """Makes ``data`` the content of ``path``, durably: after a crash it is old or new.

        Begins again where another process that tidies up has deleted the temporary file.
        """
        for left in reversed(range(_TRIES)):
            try:
                self.replace_file(path, lambda file: file.write(data), mode=mode, durable=True)
                break
            except IoFailed as error:
                if not left or not was_missing(error) or self.stat(path.parent) is None:
                    raise

    def flushes(self) -> Flushes:
        """Flushes of files of this file system that overlap (``write_beside``)."""
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
        """Makes what ``writer`` writes the content of ``path``, in one step.

        Readers see the old or the new file, never a part; ``durable`` extends that to
        power loss. ``mode`` None keeps the permissions of the file that is there, or
        those the umask gives. If anything fails, the temporary file is removed. A
        symbolic link at ``path`` is itself replaced, not what it points to, and a hard
        link keeps its content under its other names.
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
        """Writes a new file ``temporary`` in the folder of ``path``, ready to be renamed to it.

        As for ``replace_file``; if anything fails, the caller deletes the temporary file. With
        ``flushes`` it is durable when their block ends.
        """
        present = self.stat(path, follow=False)
        if present is not None and not present.is_symlink:
            _regular(path, present)
            mode = self._kept_mode(path, present) if mode is None else mode
        private = 0o666 if mode is None else mode  # never wider than it ends up
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
        except IoFailed as error:  # nobody knows the temporary name
            raise under_name(error, beside, path) from error.__cause__

    def _kept_mode(self, path: Path, present: FileIdentity) -> int | None:
        """The mode of what replaces a file; None for that of a new one."""
        private = not present.permissions & _BY_OTHERS
        shared = self.shared is not None and path.is_relative_to(self.shared.path)
        return None if shared and not private else present.permissions


def _read_ahead(paths: Sequence[Path]) -> None:
    with suppress(OSError, AttributeError):  # it is advice, which not all systems take
        for path in paths:
            with path.open("rb", buffering=0) as file:
                for start in range(0, file.seek(0, os.SEEK_END), LARGE):
                    os.posix_fadvise(file.fileno(), start, LARGE, os.POSIX_FADV_WILLNEED)


class LateFlushes(FileSystem):
    """Flushes nothing before ``flush``, for what a power loss may take as a whole until then."""

    def _written(self, path: Path, descriptor: int) -> WriteFile:
        return _Unflushed(path, descriptor, 0)

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        """Leaves it to ``flush``."""

    @staticmethod
    def flush(folder: Path) -> None:
        """Makes everything in a folder durable. Follows no symbolic link."""
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
        """Leaves it to ``LateFlushes.flush``."""


def _below(path: Path, within: Path | None) -> Path | None:
    """``within`` for what lies below it; nothing is asked of ``within`` and what lies above."""
    return None if within is None or within.is_relative_to(path) else within


def _identify(file: ReadFile | WriteFile) -> FileIdentity:
    """What was opened; closes it again if it is not a regular file."""
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
        raise IoFailed(f"{path} is not a regular file", hint="devices and pipes are not read")


@contextmanager
def _reach(path: Path, within: Path | None) -> Iterator[tuple[str, int | None]]:
    """(name, descriptor of its folder) to act on ``path``, for functions with ``dir_fd``.

    A check of the folders on the way proves nothing about the moment of use: one of them may
    be swapped for a link in between. So each is opened inside the one before it, a link is
    refused by the kernel at that moment, and the call acts on the last one's descriptor
    (openat(2), O_NOFOLLOW).

    Without ``within`` the path itself and None. Else ``path`` lies below ``within``, and
    IoFailed is raised if a symbolic link stands between the two; ``within`` itself may be
    reached by any way.
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
        raise IoFailed(f"{path} does not lie below {within}")
    return parts


def _enter(descriptor: int, folder: str, shown: Path) -> int:
    """The descriptor of a folder inside another one, which is closed."""
    try:
        inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(descriptor, folder):
            raise IoFailed(
                f"{shown} is a symbolic link: nothing is written through it",
                hint="replace the link by a folder",
            ) from error
        raise
    os.close(descriptor)
    return inner


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return True  # it was one when it was opened


def _open_lock(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK  # without the latter, a pipe would wait for a writer
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
    """Whether the lock was got; without a deadline it is not waited for."""
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
        if left <= 0:
            return False
        if pause > _LONGEST_WAIT and left > POLLED:
            return _queue(descriptor, path, kind, left)
        time.sleep(min(pause, left))
        pause = min(2 * pause, 2 * _LONGEST_WAIT)


def _queue(descriptor: int, path: Path, kind: int, seconds: float) -> bool:
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
    patience = Patience(seconds, lambda s: warn(f"{path}, which {lock_holder(path)} holds", s))
    return patience.await_(got.wait)


def _same(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the locked file: a lock on a deleted file is useless."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
