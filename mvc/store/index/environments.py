"""One open LMDB environment per file and process, as LMDB demands; reopened after a fork.

Environments are identified by device and inode of their data file: a repository that is
reached by two names has one environment, and a file that replaced another is another one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from mvc.errors import DamagedData
from mvc.io.files import FileIdentity, FileSystem
from mvc.store.index import folder as index_folder
from mvc.store.index.index import Index

__all__ = ["Lent", "create", "lend"]

_Key = tuple[int, int, int]

_lock = threading.Lock()
_open: dict[_Key, tuple[Index, int]] = {}
_TRIES = 8


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
        there = self._fs.stat(self.environment / index_folder.DATA, follow=False)
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
        environment = index_folder.current(fs, folder)
        there = None if environment is None else index_folder.data_identity(fs, environment)
        if environment is None or there is None:
            raise DamagedData("there is no index")
        with _lock:
            lent = _lend(fs, environment, _key(there), writable=writable)
            if lent is not None:
                return lent
    raise DamagedData("the index is replaced again and again")


def create(fs: FileSystem, folder: Path) -> Lent:
    """A new, empty index, which is current only after ``index_folder.switch``."""
    environment = index_folder.make(fs, folder)
    with _lock:
        index = Index(fs, environment, writable=True, create=True)
        there = index_folder.data_identity(fs, environment)
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
        there = index_folder.data_identity(fs, environment)
        if there is None or _key(there) != key:
            index.close()
            return None
    _open[key] = (index, users + 1)
    return Lent(fs, environment, index, key)
