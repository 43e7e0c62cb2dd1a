"""One open index per file and process, as LMDB demands; reopened after a fork."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from mvc.io.files import FileSystem
from mvc.store.index import Index

__all__ = ["forget", "lend", "release"]

_lock = threading.Lock()
_open: dict[tuple[int, str], tuple[Index, int]] = {}


def _key(folder: Path) -> tuple[int, str]:
    # A child process must not touch its parent's environment: the pid keeps them apart.
    return os.getpid(), str(folder)


def lend(fs: FileSystem, folder: Path, *, writable: bool) -> Index:
    """The process's index for ``folder``; give it back with ``release``."""
    with _lock:
        index, users = _open.get(_key(folder), (None, 0))
        if index is None:
            index = Index(fs, folder, writable=writable)
        _open[_key(folder)] = (index, users + 1)
        return index


def release(folder: Path, index: Index) -> None:
    """Ends one use of ``index``; the last one closes it."""
    with _lock:
        current, users = _open.get(_key(folder), (None, 0))
        if current is not index:
            return  # forgotten after damage, or left behind by a fork
        if users > 1:
            _open[_key(folder)] = (index, users - 1)
        else:
            del _open[_key(folder)]
            index.close()


def forget(folder: Path) -> None:
    """Closes a damaged index for every user of this process, so that it can be remade."""
    with _lock:
        index, _ = _open.pop(_key(folder), (None, 0))
        if index is not None:
            index.close()
