"""Private folders in ``.mvc`` for unfinished work."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from mvc.errors import IoFailed
from mvc.io.files import FileSystem
from mvc.store.store import Store


class Scratch(Struct, frozen=True):
    """A folder, and a file system that gives new files the permissions of the repository."""

    fs: FileSystem
    folder: Path


def scratch(store: Store, name: str) -> Scratch:
    """The folder ``.mvc/NAME``, created if missing. Raises IoFailed if ``.mvc/NAME`` is a file."""
    folder = store.folder / name
    try:
        store.fs.make_dir(folder, exist_ok=True, within=store.folder)
    except FileExistsError:
        raise IoFailed(f"{folder} is not a folder", hint="move it away") from None
    return Scratch(store.fs, folder)
