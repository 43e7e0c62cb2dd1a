"""Removes new folders again if what they were made for fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.errors import MvcError
from mvc.io.files import FileSystem

__all__ = ["remove_if_failed"]


@contextmanager
def remove_if_failed(fs: FileSystem, path: Path) -> Iterator[None]:
    """If the block fails, removes the empty folders that it made at and above ``path``.

    Folders with files stay. The block's own error is raised.
    """
    missing = [place for place in (path, *path.parents) if fs.stat(place) is None]
    try:
        yield
    except BaseException:
        try:
            if missing:
                _remove_empty(fs, path)
            for place in (p for p in missing[1:] if fs.stat(p) is not None):
                if fs.list(place):
                    break
                fs.remove_dir(place)
        except MvcError:
            pass  # the block's error says more
        raise


def _remove_empty(fs: FileSystem, folder: Path) -> None:
    """Removes a folder and its subfolders, except those with files in them."""
    identity = fs.stat(folder, follow=False)
    if identity is None or not identity.is_dir:
        return
    for name in fs.list(folder):
        _remove_empty(fs, folder / name)
    if not fs.list(folder):
        fs.remove_dir(folder)
