"""The folder ``index.lmdb``, which contains the index of a repository: an LMDB database.

An *environment* is a folder with the two files of an LMDB database: data and lock. It is a
sub-folder of ``index.lmdb``. The file ``current`` contains the name of the environment in use. To
rebuild the index, mvc creates a new environment, writes its name to ``current``, and deletes the
old environment. A process that has opened the old environment can continue to use the deleted
files. mvc never replaces only the data file of an environment, because LMDB would combine the new
data file with the old lock file.

LMDB allows a process to open a database only once. So all users in a process share one open index,
and a child process opens the database again after a fork. The open indexes are found by the device
and inode of their data files, because two paths can lead to one repository.
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
BUILDING = "building"  # locked by the process that builds the index
DATA, LOCK = "data.mdb", "lock.mdb"
_NAME = re.compile(r"[0-9a-f]{16}")
_LONGEST = 64  # maximum number of bytes of ``current``
_TRIES = 8

_Key = tuple[int, int, int]
_lock = threading.Lock()
_open: dict[_Key, tuple[Index, int]] = {}


def current(fs: FileSystem, folder: Path) -> Path | None:
    """The sub-folder of the current environment.

    None if the file ``current`` is missing or invalid.
    """
    path = folder / CURRENT
    identity = fs.stat(path, follow=False)
    if identity is None or not identity.is_file or identity.size > _LONGEST:
        return None
    try:
        name = fs.read_bytes(path, _LONGEST).decode("ascii", "replace").strip()
    except MvcError:
        return None  # another process has just replaced or deleted the file
    return folder / name if _NAME.fullmatch(name) else None


def data_identity(fs: FileSystem, environment: Path) -> FileIdentity | None:
    """The identity (such as device and inode) of an environment's data file.

    None if the data file is missing, or if the folder or a file in it is a symbolic link. Through
    such a link, LMDB could write to any file.
    """
    place = fs.stat(environment, follow=False)
    lock = fs.stat(environment / LOCK, follow=False)
    data = fs.stat(environment / DATA, follow=False)
    if place is None or not place.is_dir or (lock is not None and not lock.is_file):
        return None
    return data if data is not None and data.is_file else None


def make(fs: FileSystem, folder: Path) -> Path:
    """Creates an empty folder for a new environment. ``switch`` makes the environment current."""
    fs.make_dir(folder, exist_ok=True)
    environment = folder / os.urandom(8).hex()
    fs.make_dir(environment)
    return environment


def switch(fs: FileSystem, folder: Path, environment: Path) -> None:
    """Makes ``environment`` the current environment, and deletes all other environments.

    The caller must have locked ``BUILDING``. Otherwise ``switch`` could delete an environment that
    another process is building.
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
        with suppress(MvcError):  # data first: no process opens an environment without data
            for name in (DATA, LOCK):
                fs.unlink(environment / name, missing_ok=True)
        fs.remove_dir(environment)


def _key(identity: FileIdentity) -> _Key:
    # The pid: a child process must not use its parent's environment.
    return os.getpid(), identity.device, identity.inode


class Lent:
    """One use of an open index. ``release`` ends the use.

    When the last use of an index ends, the index is closed.
    """

    def __init__(self, fs: FileSystem, environment: Path, index: Index, key: _Key) -> None:
        self.index = index
        self.environment = environment
        self._fs = fs
        self._key = key

    def is_in_place(self) -> bool:
        """Whether the open data file is still in the folder of the environment."""
        identity = self._fs.stat(self.environment / DATA, follow=False)
        return identity is not None and _key(identity) == self._key

    def is_same_file(self, other: Lent) -> bool:
        """Whether ``other`` is a use of the same data file."""
        return self._key == other._key

    def release(self) -> None:
        """Ends this use. In a child process after a fork, does nothing."""
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
    """The current index in ``folder``. All users in the process share one open index.

    Raises DamagedData if the index is missing or damaged.
    """
    for _ in range(_TRIES):
        environment = current(fs, folder)
        identity = None if environment is None else data_identity(fs, environment)
        if environment is None or identity is None:
            raise DamagedData("the index is missing")
        with _lock:
            lent = _lend(fs, environment, _key(identity), writable=writable)
            if lent is not None:
                return lent
    raise DamagedData("other processes replace the index repeatedly")


def create(fs: FileSystem, folder: Path) -> Lent:
    """Creates an empty index in a new environment. ``switch`` makes the environment current."""
    environment = make(fs, folder)
    with _lock:
        index = Index(fs, environment, writable=True, create=True)
        identity = data_identity(fs, environment)
        if identity is None:
            index.close()
            raise DamagedData("another process has deleted the new index")
        _open[_key(identity)] = (index, 1)
        return Lent(fs, environment, index, _key(identity))


def _lend(fs: FileSystem, environment: Path, key: _Key, *, writable: bool) -> Lent | None:
    """Opens the index, or shares it if it is open in this process.

    None if another process replaced the file while it was being opened.
    """
    index, users = _open.get(key, (None, 0))
    if index is None:
        index = Index(fs, environment, writable=writable)
        identity = data_identity(fs, environment)
        if identity is None or _key(identity) != key:
            index.close()
            return None
    _open[key] = (index, users + 1)
    return Lent(fs, environment, index, key)
