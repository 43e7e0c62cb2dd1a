"""Private folders in ``.mvc`` for work that is no version yet."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from mvc.errors import IoFailed
from mvc.io.files import FileSystem
from mvc.store.store import Store


class Scratch(Struct, frozen=True):
    """A folder, and the file system by which its files get the permissions of the repository's."""

    fs: FileSystem
    folder: Path


def scratch(store: Store, name: str) -> Scratch:
    """``.mvc/NAME``, created if need be. Raises IoFailed if it is something else, as a link."""
    folder = store.folder / name
    try:
        store.fs.make_dir(folder, exist_ok=True, within=store.folder)
    except FileExistsError:
        raise IoFailed(f"{folder} is not a folder", hint="move away what stands there") from None
    return Scratch(store.fs, folder)
