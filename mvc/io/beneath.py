"""Reaching a name below a folder without following symbolic links (layer 1).

A check of the folders on the way proves nothing about the moment of use: one of them
may be swapped for a link in between. So each is opened inside the one before it, a
link is refused by the kernel at that moment, and the call acts on the last one's
descriptor (openat(2), O_NOFOLLOW).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mvc.errors import IoFailed
from mvc.io.failure import translate

__all__ = ["reach"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def reach(path: Path, within: Path | None) -> Iterator[tuple[str, int | None]]:
    """(name, descriptor of its folder) to act on ``path``, for functions with ``dir_fd``.

    Without ``within`` the path itself and None. Else ``path`` lies below ``within``, and
    IoFailed is raised if a symbolic link stands between the two; ``within`` itself may be
    reached by any way.
    """
    if within is None or path == within:
        yield os.fspath(path), None
        return
    *folders, name = _parts(path, within)
    with translate(within, "read"):
        descriptor = os.open(within, _FOLDER)
    try:
        for i, folder in enumerate(folders):
            descriptor = _enter(descriptor, folder, within.joinpath(*folders[: i + 1]))
        yield name, descriptor
    finally:
        os.close(descriptor)


def _parts(path: Path, within: Path) -> tuple[str, ...]:
    parts = path.relative_to(within).parts if path.is_relative_to(within) else ("..",)
    if ".." in parts:
        raise IoFailed(f"{path} does not lie below {within}")
    return parts


def _enter(descriptor: int, folder: str, shown: Path) -> int:
    """The descriptor of a folder inside another one, which is closed."""
    try:
        inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(descriptor, folder):
            raise IoFailed(
                f"{shown} is a symbolic link: nothing is written through it",
                hint="replace the link by a folder",
            ) from error
        raise
    os.close(descriptor)
    return inner


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return True  # it was one when it was opened
