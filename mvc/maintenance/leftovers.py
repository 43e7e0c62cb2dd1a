"""Temporary folders below ``.mvc/retraining``, in which mvc trains a version again.

Each folder has a lock file, which is locked while a process uses the folder. If a process was
killed, its lock file is not locked any more. Then the next call of ``work_folder``, or the next gc,
deletes the folder. Other folders are not deleted, and symbolic links are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mvc.errors import DamagedData, MvcError
from mvc.io.files import FileSystem
from mvc.names import SCRATCH
from mvc.store.store import Store

_LOCK = ".lock"
_NAME = re.compile(r"[0-9a-f]{16}")


@contextmanager
def work_folder(store: Store) -> Iterator[Path]:
    """Creates a folder and deletes it at the end of the block.

    In a read-only repository the folder is made in the system's folder for temporary files. Raises
    DamagedData if ``.mvc/retraining`` is not a folder but, for example, a symbolic link.
    """
    fs, parent = store.fs, store.folder / SCRATCH
    if not store.writable:
        with fs.temporary_folder() as folder:
            yield folder
        return
    clear_leftovers(store)
    info = fs.stat(parent, follow=False)
    if info is not None and not info.is_dir:
        raise DamagedData(
            f"{parent} is not a folder",
            hint="delete it: mvc needs this name to retrain a version",
        )
    fs.make_dirs(parent)
    folder = parent / os.urandom(8).hex()
    with fs.lock(folder.with_suffix(_LOCK)):
        try:
            fs.make_dir(folder)
            yield folder
        finally:
            _delete(fs, folder)


def clear_leftovers(store: Store) -> None:
    """Deletes the folders of processes that were killed."""
    fs, parent = store.fs, store.folder / SCRATCH
    info = fs.stat(parent, follow=False)
    if info is None or not info.is_dir:
        return
    names = {name.removesuffix(_LOCK) for name in fs.list(parent)}
    for name in filter(_NAME.fullmatch, names):
        with suppress(MvcError):
            lock = fs.lock(parent / (name + _LOCK), block=False)
            if lock is not None:
                with lock:
                    _delete(fs, parent / name)


def _delete(fs: FileSystem, folder: Path) -> None:
    with suppress(MvcError):
        info = fs.stat(folder, follow=False)
        if info is not None and info.is_dir:  # other files with such a name are not deleted
            fs.remove_tree(folder)
        fs.unlink(folder.with_suffix(_LOCK), missing_ok=True)
