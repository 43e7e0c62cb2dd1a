"""What is not committed yet: the folder ``.mvc/staging``, and paths of a version to come."""

from __future__ import annotations

from pathlib import Path

from mvc.api import Manifest
from mvc.errors import InvalidName, IoFailed, UnknownPath, WrongUsage
from mvc.names import FOLDER, check_path
from mvc.repo.context import Context


class NoSuchFile(UnknownPath, FileNotFoundError):
    """There is no file of this path. A FileNotFoundError, as frameworks expect."""


def staging_folder(context: Context) -> Path:
    """``.mvc/staging``, created if need be. Raises IoFailed if it is something else, as a link."""
    own = context.root / FOLDER
    try:
        context.store.fs.make_dir(own / "staging", exist_ok=True, within=own)
    except FileExistsError:
        raise IoFailed(
            f"{own / 'staging'} is not a folder", hint="move away what stands there"
        ) from None
    return own / "staging"


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
