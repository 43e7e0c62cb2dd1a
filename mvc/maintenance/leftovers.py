"""Folders in which versions are made again, below ``.mvc/retraining``.

Each has a lock beside it while its process lives. Without one it is left over from a killed
process, and deleted by whoever comes next. Only what ``work_folder`` names so is touched, and
nothing behind a symbolic link.
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
    """A new folder, deleted at the end of the block; in a repository that cannot be written, where
    the system keeps temporary files.

    Raises DamagedData if something else than a folder, as a symbolic link, has the parent's name.
    """
    fs, parent = store.fs, store.folder / SCRATCH
    if not store.writable:
        with fs.temporary_folder() as folder:
            yield folder
        return
    clear_leftovers(store)
    there = fs.stat(parent, follow=False)
    if there is not None and not there.is_dir:
        raise DamagedData(
            f"{parent} is no folder",
            hint="delete it: it is needed while a version is trained again",
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
    """Deletes the folders that no living process works in."""
    fs, parent = store.fs, store.folder / SCRATCH
    there = fs.stat(parent, follow=False)
    if there is None or not there.is_dir:
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
        there = fs.stat(folder, follow=False)
        if there is not None and there.is_dir:  # anything else is not of mvc; a pipe would hang
            fs.remove_tree(folder)
        fs.unlink(folder.with_suffix(_LOCK), missing_ok=True)
