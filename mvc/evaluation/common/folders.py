"""The size of a folder, and its removal."""

from __future__ import annotations

from pathlib import Path

from mvc.io.files import FileSystem

__all__ = ["bytes_in", "remove"]


def bytes_in(fs: FileSystem, folder: Path) -> int:
    """Total length in bytes of all files below a folder."""
    total = 0
    for name in fs.list(folder):
        path = folder / name
        found = fs.stat(path, follow=False)
        if found is not None:
            total += bytes_in(fs, path) if found.is_dir else found.size
    return total


def remove(fs: FileSystem, folder: Path) -> None:
    """Removes a folder and everything in it; does nothing if it does not exist."""
    found = fs.stat(folder, follow=False)
    if found is None:
        return
    if not found.is_dir:
        fs.unlink(folder)
        return
    for name in fs.list(folder):
        remove(fs, folder / name)
    fs.remove_dir(folder)
