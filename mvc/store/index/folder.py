"""The folder of the index: a small file names the current environment.

``index.lmdb/current`` holds the name of a sub-folder with one LMDB environment. A rebuilt
index is a new environment in a new sub-folder; ``current`` is switched to it and the old
sub-folder is deleted. A process that still has the old environment open finishes with it: a
deleted file stays readable, and its lock file excludes just those who have it open as well.
No file is ever replaced under a live lock: old and new environments would share the lock
file's transaction counter, and a process could fall back to an older snapshot unnoticed.

A process has one open environment per file, as LMDB demands; it is opened again after a fork.
Environments are identified by device and inode of their data file: a repository that is
reached by two names has one environment, and a file that replaced another is another one.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from mvc.errors import DamagedData, MvcError
from mvc.io.files import FileIdentity, FileSystem
from mvc.store.index.index import Index

CURRENT = "current"
BUILDING = "building"  # the process that indexes for all holds the lock on this file
DATA, LOCK = "data.mdb", "lock.mdb"
_NAME = re.compile(r"[0-9a-f]{16}")
_LONGEST = 64  # bytes of ``current`` that are looked at
_TRIES = 8

_Key = tuple[int, int, int]
_lock = threading.Lock()
_open: dict[_Key, tuple[Index, int]] = {}


def current(fs: FileSystem, folder: Path) -> Path | None:
    """The current environment, or None where ``current`` is absent or names none."""
    path = folder / CURRENT
    identity = fs.stat(path, follow=False)
    if identity is None or not identity.is_file or identity.size > _LONGEST:
        return None
    try:
        name = fs.read_bytes(path, _LONGEST).decode("ascii", "replace").strip()
    except MvcError:
        return None  # it was replaced or deleted a moment ago
    return folder / name if _NAME.fullmatch(name) else None


def data_identity(fs: FileSystem, environment: Path) -> FileIdentity | None:
    """The identity of the environment's data file; None if it or its folder is no real one.

    A link could make LMDB, which maps what it opens, change a file of another owner.
    """
    place = fs.stat(environment, follow=False)
    lock = fs.stat(environment / LOCK, follow=False)
    data = fs.stat(environment / DATA, follow=False)
    if place is None or not place.is_dir or (lock is not None and not lock.is_file):
        return None
    return data if data is not None and data.is_file else None


def make(fs: FileSystem, folder: Path) -> Path:
    """An empty sub-folder for a new environment; it is not used before ``switch``."""
    fs.make_dir(folder, exist_ok=True)
    environment = folder / os.urandom(8).hex()
    fs.make_dir(environment)
    return environment


def switch(fs: FileSystem, folder: Path, environment: Path) -> None:
    """Makes ``environment`` the current one and deletes all others.

    Call it under the lock on ``BUILDING``: an environment that another process is building
    must not be deleted.
    """
    fs.write_atomic(folder / CURRENT, environment.name.encode() + b"\n")
    for name in fs.list(folder):
        if name != environment.name and _NAME.fullmatch(name):
            _delete(fs, folder / name)


def _delete(fs: FileSystem, environment: Path) -> None:
    with suppress(MvcError):
        identity = fs.stat(environment, follow=False)
        if identity is not None and not identity.is_dir:
            fs.unlink(environment, missing_ok=True)
            return
        with suppress(MvcError):  # data first: a new lock beside old data would not exclude users
            for name in (DATA, LOCK):
                fs.unlink(environment / name, missing_ok=True)
        fs.remove_dir(environment)


def _key(identity: FileIdentity) -> _Key:
    # A child process must not touch its parent's environment: the pid keeps them apart.
    return os.getpid(), identity.device, identity.inode


class Lent:
    """One use of an open index; ``release`` ends it, and the last one closes the index."""

    def __init__(self, fs: FileSystem, environment: Path, index: Index, key: _Key) -> None:
        self.index = index
        self.environment = environment
        self._fs = fs
        self._key = key

    def is_in_place(self) -> bool:
        """Whether the file that is open still stands where it was found."""
        there = self._fs.stat(self.environment / DATA, follow=False)
        return there is not None and _key(there) == self._key

    def is_same_file(self, other: Lent) -> bool:
        """Whether both are uses of one file."""
        return self._key == other._key

    def release(self) -> None:
        """Ends this use; after a fork, the parent's environment is left alone."""
        with _lock:
            index, users = _open.get(self._key, (None, 0))
            if index is not self.index or self._key[0] != os.getpid():
                return
            if users > 1:
                _open[self._key] = (index, users - 1)
            else:
                del _open[self._key]
                index.close()


def lend(fs: FileSystem, folder: Path, *, writable: bool) -> Lent:
    """The current index in ``folder``; a process opens it only once.

    Raises DamagedData if there is none or its file cannot be an intact LMDB file.
    """
    for _ in range(_TRIES):
        environment = current(fs, folder)
        there = None if environment is None else data_identity(fs, environment)
        if environment is None or there is None:
            raise DamagedData("there is no index")
        with _lock:
            lent = _lend(fs, environment, _key(there), writable=writable)
            if lent is not None:
                return lent
    raise DamagedData("the index is replaced again and again")


def create(fs: FileSystem, folder: Path) -> Lent:
    """A new, empty index, which is current only after ``switch``."""
    environment = make(fs, folder)
    with _lock:
        index = Index(fs, environment, writable=True, create=True)
        there = data_identity(fs, environment)
        if there is None:
            index.close()
            raise DamagedData("a new index was deleted at once")
        _open[_key(there)] = (index, 1)
        return Lent(fs, environment, index, _key(there))


def _lend(fs: FileSystem, environment: Path, key: _Key, *, writable: bool) -> Lent | None:
    """None if another file took its place while it was opened."""
    index, users = _open.get(key, (None, 0))
    if index is None:
        index = Index(fs, environment, writable=writable)
        there = data_identity(fs, environment)
        if there is None or _key(there) != key:
            index.close()
            return None
    _open[key] = (index, users + 1)
    return Lent(fs, environment, index, key)
