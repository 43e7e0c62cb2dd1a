"""The file system as mvc sees it: every access goes through a FileSystem (layer 1).

Tests replace the object by twins that record, fail or lose power, so nothing above
this package may reach the operating system in another way. The methods that combine
others (``read_bytes``, ``replace_file``, ``write_atomic``) use only public methods of
``self``; a twin need not replace them.

OSErrors become IoFailed, StorageFull or ReadOnly (``mvc.io.failure``). FileExistsError
passes from ``open_write(exclusive=True)``, ``link`` and ``make_dir``: the name is taken.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, overload

from mvc.errors import IoFailed, MvcError
from mvc.io import locks, mounts
from mvc.io.beneath import reach
from mvc.io.failure import sync_failure, translate
from mvc.io.handles import FileIdentity, ReadFile, WriteFile
from mvc.io.locks import FileLock
from mvc.types import Bytes

__all__ = [
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

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class FileSystem:
    """The real file system. Holds nothing; one object may serve all threads.

    Where a method takes ``within``, a folder above the path, no symbolic link below that
    folder is followed, whatever is swapped for whatever meanwhile (``mvc.io.beneath``).
    """

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
        with translate(path, "write"), reach(path, within) as (name, folder):
            file = WriteFile(path, os.open(name, flags, mode, dir_fd=folder), 0)
        file.position = _identify(file).size
        return file

    @overload
    def lock(self, path: Path, *, shared: bool = ..., timeout: float | None = ...) -> FileLock: ...
    @overload
    def lock(
        self, path: Path, *, shared: bool = ..., timeout: float | None = ..., block: Literal[True]
    ) -> FileLock: ...
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

        Waits ``timeout`` seconds (for ever if None), then raises Busy; with
        ``block=False`` it does not wait and returns None. It ends with the process, and
        excludes other locks of the same process too.
        """
        return locks.take(path, shared=shared, timeout=timeout, block=block)

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

    def make_dir(self, path: Path, exist_ok: bool = False, *, within: Path | None = None) -> None:
        """Makes a folder in one that is there; its name is not durable yet."""
        with translate(path, "create"), reach(path, within) as (name, folder):
            try:
                os.mkdir(name, dir_fd=folder)
            except FileExistsError:
                follow = within is None or path == within
                there = os.stat(name, dir_fd=folder, follow_symlinks=follow)
                if not exist_ok or not FileIdentity.of(there).is_dir:
                    raise

    def replace(self, src: Path, dst: Path, *, within: Path | None = None) -> None:
        """Renames ``src`` to ``dst``, taking the place of a file there in one step.

        With ``within`` both must stand in one folder.
        """
        with translate(dst, "replace"), reach(dst, within) as (name, folder):
            old = src if folder is None else src.relative_to(dst.parent)
            os.replace(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def link(self, src: Path, dst: Path) -> None:
        """A second name for the file ``src``; FileExistsError if ``dst`` is taken."""
        with translate(dst, "create"):
            os.link(src, dst)

    def unlink(self, path: Path, missing_ok: bool = False, *, within: Path | None = None) -> None:
        """Takes a file's name away."""
        with translate(path, "delete"):
            try:
                with reach(path, within) as (name, folder):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_dir(self, path: Path) -> None:
        """Removes an empty folder."""
        with translate(path, "delete"):
            os.rmdir(path)

    def sync_dir(self, path: Path, *, within: Path | None = None) -> None:
        """Returns when the names in a folder are durable.

        Silent where the file system cannot flush folders, SyncFailed where it fails to.
        """
        with translate(path, "read"), reach(path, within) as (name, folder):
            links = 0 if folder is None else os.O_NOFOLLOW
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | links, dir_fd=folder)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise sync_failure(path, error) from error
        finally:
            os.close(descriptor)

    def read_link(self, path: Path) -> str:
        """What a symbolic link says, unresolved."""
        with translate(path, "read"):
            return os.readlink(path)

    def realpath(self, path: Path) -> Path:
        """``path`` absolute and without symbolic links; what is absent is kept as named."""
        with translate(path, "inspect"):
            return Path(os.path.realpath(path))

    def cwd(self) -> Path:
        """The current folder, absolute."""
        with translate(Path(), "inspect"):
            return Path.cwd()

    def is_writable_dir(self, path: Path) -> bool:
        """Whether files can be made in ``path``; false if it is no folder."""
        effective = os.access in os.supports_effective_ids
        access = os.access(path, os.W_OK | os.X_OK, effective_ids=effective)
        return access and os.path.isdir(path)

    def filesystem_type(self, path: Path) -> str:
        """The type of the file system under ``path``, such as ``ext4``; empty where unknown."""
        return mounts.type_of(path)

    def is_network_filesystem(self, path: Path) -> bool:
        """Whether other hosts may share the file system under ``path``."""
        return mounts.is_network(self.filesystem_type(path))

    # -- several steps -----------------------------------------------------------------

    def make_dirs(self, path: Path, *, within: Path | None = None) -> None:
        """Makes a folder and those above it that are absent; a folder that is there is fine.

        When it returns, the names of all folders that were absent are durable. FileExistsError
        if something else has the name.
        """
        absent = []
        for place in (path, *path.parents):
            if self.stat(place) is not None:
                break
            absent.append(place)
        for place in absent[:0:-1]:
            self.make_dir(place, exist_ok=True, within=_below(place, within))
        self.make_dir(path, exist_ok=True, within=within)
        for place in absent:
            if place.parent != place:
                self.sync_dir(place.parent, within=_below(place.parent, within))

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """All of a file; IoFailed if it is longer than ``limit`` bytes."""
        with self.open_read(path) as file:
            data = file.read(0, limit + 1)
        if len(data) > limit:
            raise IoFailed(f"{path} is longer than the {limit} bytes that are expected there")
        return data

    def write_atomic(self, path: Path, data: Bytes, *, mode: int | None = None) -> None:
        """Makes ``data`` the content of ``path``, durably: after a crash it is old or new."""
        self.replace_file(path, lambda file: file.write(data), mode=mode, durable=True)

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
        present = self.stat(path, follow=False)
        if present is not None and not present.is_symlink:
            _regular(path, present)
            mode = present.permissions if mode is None else mode
        temporary = path.parent / f"{TEMPORARY}{os.urandom(8).hex()}"
        try:
            private = 0o666 if mode is None else mode  # never wider than it ends up
            with self.open_write(
                temporary, create=True, exclusive=True, mode=private, within=within
            ) as file:
                if mode is not None:
                    file.set_mode(mode)
                writer(file)
                if durable:
                    file.sync()
            self.replace(temporary, path, within=within)
        except BaseException:
            with suppress(MvcError):
                self.unlink(temporary, missing_ok=True, within=within)
            raise
        if durable:
            self.sync_dir(path.parent, within=within)


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
