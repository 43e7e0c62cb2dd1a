"""Writes production weights to disk, after the commit that stored them.

A lossy pipeline computes production weights: weights near the trained weights, chosen so that they
need less space. If the process crashes between the commit and the write, the version is complete,
but the file on disk has its old content.
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
    """Checks before a commit that its production weights can be written.

    ``files``: the number of files with production weights. Raises WrongUsage, UnknownPath,
    IoFailed, WouldOverwrite.
    """
    if read.output is None:
        if files and not read.in_place:
            raise WrongUsage(
                "a lossy pipeline produces production weights, which need an output",
                hint="name it with -o FILE, or replace the file with --in-place",
            )
        return
    if read.in_place:
        raise WrongUsage("production weights go to a file or in place, not both")
    if files != 1:
        raise WrongUsage(
            f"the output can have the production weights of one file, not of {files} files",
            hint="commit one file, or use --in-place",
        )
    refuse_slash(read.output)
    _check_writable(fs, Path(read.output))


def write_production(
    store: Store,
    result: CommitResult,
    files: Mapping[str, FileIdentity | None],
    read: FileOptions,
) -> None:
    """Writes the production weights of ``files`` to ``read.output``, or replaces ``files``.

    ``files`` maps the path of each file to the file's identity (size, times, inode) before the
    commit. The written weights are decoded from the repository. Raises SourceChanged if a file to
    replace has changed since.
    """
    fs, root, version = store.fs, store.root, result.id.short
    output = None if read.output is None else Path(read.output)
    for path, before in files.items():
        entry = result.entries[path]
        if output is None and not entry.tensors:
            continue
        target = root / path if output is None else output
        by_hand = f"'mvc checkout {version} {path} -o FILE'"
        if output is None and fs.stat(target) != before:
            raise SourceChanged(
                f"{path} changed during the commit",
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
                f"committed version {version}, but could not write its production weights: "
                f"{error.message}",
                hint=f"{by_hand} writes these weights",
            ) from error


def _check_writable(fs: FileSystem, output: Path) -> None:
    """Raises an error unless ``output`` is a model file, an empty file or a new file."""
    refuse_store(fs, output)
    shown = printable(str(output))
    identity = fs.stat(output)
    if identity is not None and not identity.is_file:
        raise WrongUsage(f"{shown} is not a file", hint="name a file for the production weights")
    into = f"{printable(str(output.parent))} to write {printable(output.name)} into"
    folder = fs.stat(output.parent)
    if folder is None or not folder.is_dir:
        raise UnknownPath(
            f"there is no folder {into}", hint="create it first; nothing was committed"
        )
    if not fs.is_writable_dir(output.parent):
        raise IoFailed(
            f"no permission for {into}", hint="name another output; nothing was committed"
        )
    if identity is not None and identity.size:
        with open_file(fs, output, output.name) as file:
            model = file.parsed.format != "opaque"
        if not model:
            raise WouldOverwrite(
                f"{shown} exists and is not a model file",
                hint="production weights replace only model files: name another output",
            )
