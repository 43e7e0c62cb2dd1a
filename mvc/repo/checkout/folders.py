"""Folders that are made on the way to a file, and taken back if it is not written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.errors import MvcError
from mvc.io.files import FileSystem

__all__ = ["taken_back"]


@contextmanager
def taken_back(fs: FileSystem, path: Path) -> Iterator[None]:
    """If the block fails, empty folders are removed at and above ``path`` that it has made.

    What holds a file stays; the block's own error is the one that is raised.
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
            pass  # the first error says more
        raise


def _remove_empty(fs: FileSystem, folder: Path) -> None:
    """Removes a folder and those below it as far as no file stands in them."""
    identity = fs.stat(folder, follow=False)
    if identity is None or not identity.is_dir:
        return
    for name in fs.list(folder):
        _remove_empty(fs, folder / name)
    if not fs.list(folder):
        fs.remove_dir(folder)
