"""Checks output paths: nothing is written into a store, nor over a file that is no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mvc.errors import IoFailed, UnknownPath, WouldOverwrite, WrongUsage
from mvc.io.files import FileSystem
from mvc.model.names import printable
from mvc.repo.commit.request import Change
from mvc.repo.content.sources import open_file
from mvc.repo.context import Context

__all__ = ["check_places", "refuse_store"]


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


def check_places(
    context: Context,
    changes: Sequence[Change],
    output: Path | None,
    *,
    in_place: bool,
) -> None:
    """Raises unless production files have a place to be written to, and can be written there.

    Raises WrongUsage, UnknownPath, IoFailed, WouldOverwrite.
    """
    files = sum(change.open is not None for change in changes)
    if not files and output is None:
        return
    if output is not None and in_place:
        raise WrongUsage("name one place for the production weights: a file, or in place")
    if output is None and not in_place:
        raise WrongUsage(
            "a lossy pipeline makes production weights, and those are what is to be deployed",
            hint="say where they go: -o FILE, or --in-place",
        )
    if output is not None and files != 1:
        raise WrongUsage(
            f"the production weights of {files} files do not fit into one",
            hint="commit one file, or use --in-place",
        )
    if output is not None:
        _check_output(context.store.fs, output)


def _check_output(fs: FileSystem, output: Path) -> None:
    """Production weights may replace a model file, but no other file."""
    refuse_store(fs, output)
    shown = printable(str(output))
    identity = fs.stat(output)
    if identity is not None and not identity.is_file:
        raise WrongUsage(f"{shown} is no file", hint="name a file for the production weights")
    into = f"{printable(str(output.parent))} to write {printable(output.name)} into"
    folder = fs.stat(output.parent)
    if folder is None or not folder.is_dir:
        raise UnknownPath(f"there is no folder {into}", hint="make it first; nothing was committed")
    if not fs.is_writable_dir(output.parent):
        raise IoFailed(
            f"there is no permission for {into}", hint="name another place; nothing was committed"
        )
    if identity is not None and identity.size:
        with open_file(fs, output, output.name) as parsed:
            model = parsed.format != "opaque"
        if not model:
            raise WouldOverwrite(
                f"{shown} exists and is no model file",
                hint="production weights replace a model file or none: name another place",
            )
