"""The folder of the index: a small file names the current environment.

``index.lmdb/current`` holds the name of a sub-folder with one LMDB environment. A rebuilt
index is a new environment in a new sub-folder; ``current`` is switched to it and the old
sub-folder is deleted. A process that still has the old environment open finishes with it: a
deleted file stays readable, and its lock file excludes just those who have it open as well.
No file is ever replaced under a live lock: old and new environments would share the lock
file's transaction counter, and a process could fall back to an older snapshot unnoticed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from mvc.errors import MvcError
from mvc.io.files import FileIdentity, FileSystem

__all__ = ["BUILDING", "CURRENT", "DATA", "current", "data_identity", "make", "switch"]

CURRENT = "current"
BUILDING = "building"  # the process that indexes for all holds the lock on this file
DATA, LOCK = "data.mdb", "lock.mdb"
_NAME = re.compile(r"[0-9a-f]{16}")
_LONGEST = 64  # bytes of ``current`` that are looked at


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
    _delete_files(fs, folder)  # earlier versions kept their only environment here


def _delete(fs: FileSystem, environment: Path) -> None:
    with suppress(MvcError):
        identity = fs.stat(environment, follow=False)
        if identity is not None and not identity.is_dir:
            fs.unlink(environment, missing_ok=True)
            return
        _delete_files(fs, environment)
        fs.remove_dir(environment)


def _delete_files(fs: FileSystem, environment: Path) -> None:
    """Deletes the data first: a new lock file beside old data would not exclude its users."""
    with suppress(MvcError):
        for name in (DATA, LOCK):
            fs.unlink(environment / name, missing_ok=True)
