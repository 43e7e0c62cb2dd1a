"""The folder of the index: a small file names the current environment.

``index.lmdb/current`` contains the name of a sub-folder with one LMDB environment (a data file and
a lock file). A rebuilt index is a new environment in a new sub-folder. Then ``current`` gets the
new name, and the old sub-folder is deleted. A process that has the old environment open can
continue to use it: deleted files stay readable, and processes with the same lock file open still
exclude each other. The data file of an environment is never replaced: LMDB would read the
transaction counter for the new file from the old lock file, and a process could read an outdated
state unnoticed.

LMDB allows a process to open a file only once. So all users in a process share one environment, and
a child process opens the file again after a fork. An environment is identified by device and inode
of its data file. So two paths to one repository lead to one environment, and a replaced data file
is a new environment.
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
_LONGEST = 64  # bytes of ``current`` that are read
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
    """The identity of an environment's data file. None if it is missing or not safe to open.

    LMDB maps its files for writing. If the folder or a file is a link, LMDB could change a file of
    another owner.
    """
    place = fs.stat(environment, follow=False)
    lock = fs.stat(environment / LOCK, follow=False)
    data = fs.stat(environment / DATA, follow=False)
    if place is None or not place.is_dir or (lock is not None and not lock.is_file):
        return None
    return data if data is not None and data.is_file else None


def make(fs: FileSystem, folder: Path) -> Path:
    """An empty sub-folder for a new environment, which is in use only after ``switch``."""
    fs.make_dir(folder, exist_ok=True)
    environment = folder / os.urandom(8).hex()
    fs.make_dir(environment)
    return environment


def switch(fs: FileSystem, folder: Path, environment: Path) -> None:
    """Makes ``environment`` the current one and deletes all other environments.

    Call it under the lock on ``BUILDING``, so that no environment is deleted while another process
    builds it.
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
        with suppress(MvcError):  # data first, so that no process adds a second lock file
            for name in (DATA, LOCK):
                fs.unlink(environment / name, missing_ok=True)
        fs.remove_dir(environment)


def _key(identity: FileIdentity) -> _Key:
    # The pid: a child process must not use its parent's environment.
    return os.getpid(), identity.device, identity.inode


class Lent:
    """One use of an open index. ``release`` ends the use.

    The end of the last use closes the index.
    """

    def __init__(self, fs: FileSystem, environment: Path, index: Index, key: _Key) -> None:
        self.index = index
        self.environment = environment
        self._fs = fs
        self._key = key

    def is_in_place(self) -> bool:
        """Whether the environment's folder still has the data file that is open."""
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
    """The current index in ``folder``, which all users in the process share.

    Raises DamagedData if there is no index, or if its file is no intact LMDB file.
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
    """A new, empty index, which becomes current only by ``switch``."""
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
