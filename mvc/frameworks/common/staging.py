"""What is not committed yet: files that wait in ``.mvc/staging``, and bytes for the parsers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from mvc.errors import InvalidName, IoFailed, WrongUsage
from mvc.io.files import TEMPORARY, WriteFile
from mvc.model.manifest import Manifest
from mvc.model.names import check_path
from mvc.repo.context import Context
from mvc.store.store import FOLDER

__all__ = ["Readable", "check_new_path", "is_path", "scratch", "staging_folder"]


class Readable(Struct, frozen=True):
    """A ``Source`` of the parsers for bytes that are no file of their own."""

    size: Callable[[], int]
    read: Callable[[int, int], bytes]
    """Takes an offset and a length."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


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


def scratch(context: Context) -> WriteFile:
    """A new file without a name: it disappears when it is closed or its process dies."""
    fs = context.store.fs
    folder = staging_folder(context)
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    file = fs.open_write(path, create=True, exclusive=True, within=folder)
    fs.unlink(path, missing_ok=True, within=folder)
    return file


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
