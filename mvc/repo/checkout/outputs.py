"""Nothing is written into a store."""

from __future__ import annotations

from pathlib import Path

from mvc.errors import WrongUsage
from mvc.io.files import FileSystem
from mvc.model.names import printable


def refuse_store(fs: FileSystem, output: Path) -> None:
    """Raises WrongUsage for a path inside the ``.mvc`` of any repository.

    Symbolic links are followed. Case is ignored, because some file systems ignore it.
    """
    identity = fs.stat(output)
    if identity is not None and identity.is_dir:
        real = fs.realpath(output)  # what is written would lie in it
    else:
        real = fs.realpath(output.parent) / output.name  # a link itself is replaced
    for place in (real, *real.parents):
        if place.name.lower() == ".mvc" and fs.stat(place / "journal") is not None:
            raise WrongUsage(
                f"{printable(str(output))} lies in the store of a repository",
                hint="name a file outside of .mvc",
            )
