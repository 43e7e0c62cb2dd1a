"""Paths of a version to come."""

from __future__ import annotations

from mvc.api import Manifest
from mvc.errors import InvalidName, UnknownPath, WrongUsage
from mvc.names import check_path


class NoSuchFile(UnknownPath, FileNotFoundError):
    """There is no file of this path. A FileNotFoundError, as frameworks expect."""


def is_path(text: object) -> bool:
    """Whether this can be a path of a version."""
    try:
        return bool(check_path(str(text)))
    except InvalidName:
        return False


def check_new_path(manifest: Manifest, path: str) -> None:
    """Raises WrongUsage if ``path`` is a folder of the version or below a file; InvalidName."""
    if not path:
        raise WrongUsage("a version is a folder", hint="name a path in it")
    check_path(path)
    for known in manifest.by_path:
        if known.startswith(f"{path}/"):
            raise WrongUsage(f"{path} is a folder of this version", hint="write to another name")
        if path.startswith(f"{known}/"):
            raise WrongUsage(f"{known} is a file of this version, and no folder for {path}")
