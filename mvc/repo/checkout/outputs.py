"""Checks paths to which mvc writes files for the user, such as the output of a checkout."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from mvc.errors import WrongUsage
from mvc.io.files import FileSystem
from mvc.names import SCRATCH, printable


def refuse_store(fs: FileSystem, output: Path) -> None:
    """Raises WrongUsage for a path inside the ``.mvc`` of any repository.

    Paths in ``.mvc/retraining`` are allowed. Symbolic links are followed. ``.MVC`` counts as
    ``.mvc``, because some file systems do not distinguish case.
    """
    identity = fs.stat(output)
    if identity is not None and identity.is_dir:
        real = fs.realpath(output)  # files are written into the folder that a link points to
    else:
        real = fs.realpath(output.parent) / output.name  # a link to a file is replaced by a file
    for folder in (real, *real.parents):
        inside = real.relative_to(folder).parts[:1]
        if (
            folder.name.lower() == ".mvc"
            and inside != (SCRATCH,)
            and fs.stat(folder / "journal") is not None
        ):
            raise WrongUsage(
                f"{printable(str(output))} is inside the store of a repository",
                hint="name a file outside of .mvc",
            )


def refuse_nameless(output: Path) -> None:
    """Raises WrongUsage for ``.``, ``..`` and ``/``, which cannot be replaced."""
    if output.name in {"", ".."}:
        raise WrongUsage(f"{output} cannot be replaced", hint="name a file or folder in it")


def names_folder(fs: FileSystem, output: str | PathLike[str]) -> bool:
    """Whether an output path means a folder.

    A path that ends in ``/`` means a folder. Otherwise, the path of an existing file or folder
    means this file or folder, and a new path means a folder if it has no suffix.
    """
    text, path = str(output), Path(output)
    identity = None if text.endswith("/") else fs.stat(path)
    if identity is not None:
        return identity.is_dir
    return text.endswith("/") or not path.suffix


def refuse_slash(output: str | PathLike[str]) -> None:
    """Raises WrongUsage for a path that ends in ``/``, because the caller writes one file."""
    if str(output).endswith("/"):
        raise WrongUsage(
            f"{printable(str(output))} names a folder, but one file is written",
            hint="name a file",
        )
