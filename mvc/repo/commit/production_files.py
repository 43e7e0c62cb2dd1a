"""Writes the production weights of files, once the commit that stored them is durable.

A crash in between leaves the old file, and a version that can be checked out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mvc.adapters.opening import open_file
from mvc.errors import (
    IoFailed,
    MvcError,
    SourceChanged,
    UnknownPath,
    WouldOverwrite,
    WrongUsage,
)
from mvc.io.files import FileIdentity, FileSystem
from mvc.names import printable
from mvc.repo.checkout.checkout import fill_file
from mvc.repo.checkout.outputs import refuse_slash, refuse_store
from mvc.repo.commit.request import FileOptions
from mvc.repo.commit.result import CommitResult
from mvc.store.store import Store


def check_output(fs: FileSystem, files: int, read: FileOptions) -> None:
    """Raises unless the production weights of ``files`` have a place, and can be written there.

    Raises WrongUsage, UnknownPath, IoFailed, WouldOverwrite.
    """
    if read.output is None:
        if files and not read.in_place:
            raise WrongUsage(
                "a lossy pipeline makes production weights, and those are what is to be deployed",
                hint="say where they go: -o FILE, or --in-place",
            )
        return
    if read.in_place:
        raise WrongUsage("name one place for the production weights: a file, or in place")
    if files != 1:
        raise WrongUsage(
            f"the production weights of {files} files do not fit into one",
            hint="commit one file, or use --in-place",
        )
    refuse_slash(read.output)
    _check_place(fs, Path(read.output))


def write_production(
    store: Store,
    done: CommitResult,
    files: Mapping[str, FileIdentity | None],
    read: FileOptions,
) -> None:
    """Writes the production weights of ``files`` to ``read.output``, or in place of those files.

    ``files``: as they were before the commit. Each is recovered from the repository, so that it
    equals the stored version. Raises SourceChanged if one to be replaced was written to meanwhile.
    """
    fs, root, version = store.fs, store.root, done.id.short
    output = None if read.output is None else Path(read.output)
    for path, before in files.items():
        entry = done.entries[path]
        if output is None and not entry.tensors:
            continue
        target = root / path if output is None else output
        by_hand = f"'mvc checkout {version} {path} -o FILE'"
        if output is None and fs.stat(target) != before:
            raise SourceChanged(
                f"{path} was written again while it was being committed",
                hint=f"its production weights are in the commit: {by_hand}",
            )
        try:
            fs.replace_file(
                target,
                partial(fill_file, store.recovery, entry),
                mode=None,
                durable=True,
                within=None if output else root,
            )
        except MvcError as error:
            raise type(error)(
                f"version {version} is committed, but its production weights could not be "
                f"written: {error.message}",
                hint=f"{by_hand} writes it",
            ) from error


def _check_place(fs: FileSystem, output: Path) -> None:
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
        with open_file(fs, output, output.name) as file:
            model = file.parsed.format != "opaque"
        if not model:
            raise WouldOverwrite(
                f"{shown} exists and is no model file",
                hint="production weights replace a model file or none: name another place",
            )
