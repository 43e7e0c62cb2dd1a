"""Checks of paths for new versions."""

from __future__ import annotations

from mvc.api import Manifest
from mvc.errors import InvalidName, UnknownPath, WrongUsage
from mvc.names import check_path


class NoSuchFile(UnknownPath, FileNotFoundError):
    """A missing file. Frameworks expect a FileNotFoundError for a missing file."""


def is_path(text: object) -> bool:
    """Whether ``text`` can be the path of a file in a version."""
    try:
        return bool(check_path(str(text)))
    except InvalidName:
        return False


def check_new_path(manifest: Manifest, path: str) -> None:
    """Checks the path of a new file in the version that has this manifest.

    Raises WrongUsage if ``path`` is a folder in the version, or if a parent folder of ``path`` is a
    file in the version. Raises InvalidName if ``path`` is not a valid path.
    """
    if not path:
        raise WrongUsage("the path is empty: a version is a folder", hint="name a file")
    check_path(path)
    for known in manifest.by_path:
        if known.startswith(f"{path}/"):
            raise WrongUsage(f"{path} is a folder in this version", hint="choose another path")
        if path.startswith(f"{known}/"):
            raise WrongUsage(
                f"{path} cannot be written: {known} is a file in this version",
                hint="choose another path",
            )
