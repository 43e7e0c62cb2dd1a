"""Where files are written: what the name of a place means, and that it is in no store."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from mvc.errors import WrongUsage
from mvc.io.files import FileSystem
from mvc.names import SCRATCH, printable


def refuse_store(fs: FileSystem, output: Path) -> None:
    """Raises WrongUsage for a path inside the ``.mvc`` of any repository, but a scratch folder.

    Symbolic links are followed. Case is ignored, because some file systems ignore it.
    """
    identity = fs.stat(output)
    if identity is not None and identity.is_dir:
        real = fs.realpath(output)  # what is written would lie in it
    else:
        real = fs.realpath(output.parent) / output.name  # a link itself is replaced
    for place in (real, *real.parents):
        inside = real.relative_to(place).parts[:1]
        if (
            place.name.lower() == ".mvc"
            and inside != (SCRATCH,)
            and fs.stat(place / "journal") is not None
        ):
            raise WrongUsage(
                f"{printable(str(output))} lies in the store of a repository",
                hint="name a file outside of .mvc",
            )


def refuse_nameless(output: Path) -> None:
    """Raises WrongUsage for ``.``, ``..`` and ``/``, beside which nothing can be written."""
    if output.name in {"", ".."}:
        raise WrongUsage(f"{output} has no name of its own", hint="name a place in it")


def names_folder(fs: FileSystem, output: str | PathLike[str]) -> bool:
    """Whether an output means a folder: its name ends in ``/`` or has no suffix.

    What is there already stays what it is.
    """
    text, place = str(output), Path(output)
    identity = None if text.endswith("/") else fs.stat(place)
    if identity is not None:
        return identity.is_dir
    return text.endswith("/") or not place.suffix


def refuse_slash(output: str | PathLike[str]) -> None:
    """Raises WrongUsage for a name that ends in ``/``, where only a file can be written."""
    if str(output).endswith("/"):
        raise WrongUsage(
            f"{printable(str(output))} names a folder, and one file is to be written",
            hint="name a file",
        )
