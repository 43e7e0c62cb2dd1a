"""Writes a version outside the working folder: to a file, a folder or a stream.

HEAD and the working folder do not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import WouldOverwrite, WrongUsage
from mvc.ids import CommitId
from mvc.io.files import TEMPORARY, FileSystem
from mvc.io.replacement import make_folder, removing_if_failed
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.checkout import delta_folder
from mvc.repo.checkout.checkout import Changes, Restored, apply, chosen
from mvc.repo.checkout.outputs import names_folder, refuse_store
from mvc.repo.checkout.swapped import SwappedFolder
from mvc.repo.content.contents import ReadPart
from mvc.repo.interrupted import checking_out
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import head_if_known
from mvc.repo.worktree.worktree import is_control_folder
from mvc.store.store import Store
from mvc.text import listed, printable
from mvc.types import PathName, Progress

_CHUNK = 1 << 20


class WriteOptions(Struct, frozen=True, kw_only=True):
    """Options of ``Repository.checkout`` for writing files."""

    force: bool = False
    everything: bool = False
    atomic_dir: bool = False
    delete: bool = False
    delta_from: CommitId | None = None
    progress: Progress | None = None


def export(
    store: Store,
    commit: CommitId,
    paths: Sequence[str],
    to: PathName,
    options: WriteOptions,
    *,
    derived: Manifest | None = None,
    parts: Mapping[bytes, ReadPart] = MappingProxyType({}),
) -> Restored:
    """Writes a version to a folder or a file. ``names_folder`` decides whether ``to`` is a folder.

    With neither ``paths`` nor ``everything``, training states (files with optimizer states) are
    omitted. ``options.delta_from``: write only the changes since this version. ``derived``: write
    these files instead of the files of ``commit``. ``parts``: maps the id of a content (tensor
    data) of ``derived`` to the function that computes the content.
    """
    force, delete, progress = options.force, options.delete, options.progress
    fs, output = store.fs, Path(to)
    as_folder = names_folder(fs, to)
    refuse_store(fs, output)
    with checking_out(store, output):
        manifest = manifests.of_commit(store, commit) if derived is None else derived
        entries, left_out = chosen(manifest, paths, options.everything)
        if delete and paths:
            raise WrongUsage("delete needs the whole version: do not name paths")
        branch = head_if_known(store.fresh()).branch
        restored = Restored(commit, (), (), (), branch=branch, moved_head=False, left_out=left_out)
        if options.delta_from is not None:
            if options.everything or options.atomic_dir or delete:
                raise WrongUsage(
                    "delta_from does not combine with everything, atomic_dir and delete"
                )
            base = chosen(manifests.of_commit(store, options.delta_from), paths)[0]
            check_available(store, options.delta_from, base)
            check_available(store, commit, entries)
            changed, files = delta_folder.compared(entries, base)
            metadata = delta_folder.metadata(output.name, commit.hex(), options.delta_from.hex())
            shards = delta_folder.writers(store.recovery, changed, metadata)
            with _new_folder(fs, output, force) as new:
                changes = Changes(None, new, files)
                apply(store, changes, further=shards, progress=progress, planned=False)
            return replace(
                restored, written=tuple(str(output / name) for name in (*files, *shards))
            )
        if options.atomic_dir:
            make_folder(fs, output.parent)
            swapped = SwappedFolder(fs, output)
            with swapped.next(commit.short, force=force) as new:
                changes = Changes(commit, new, {e.path: e for e in entries})
                apply(store, changes, progress=progress, planned=False)
                swapped.lead_to(new.name)
            return replace(restored, written=tuple(str(output / e.path) for e in entries))
        identity = fs.stat(output)
        is_dir = identity is not None and identity.is_dir
        if not (as_folder or delete):
            folder, named = output.parent, {output.name: _only(entries, printable(str(output)))}
        elif identity is not None and not is_dir:
            raise WrongUsage(
                f"{printable(str(output))} is a file, not a folder",
                hint="name a folder, or a file with a suffix",
            )
        else:
            folder, named = output, {entry.path: entry for entry in entries}
        _refuse_existing(fs, [folder / name for name in named], force)
        extra = _extra(store, output, entries, force) if delete and is_dir else []
        with removing_if_failed(fs) as created:
            make_folder(fs, folder, created=created)
            real = fs.realpath(folder)
            changes = Changes(commit, real, named, extra)
            deleted = apply(
                store, changes, progress=progress, planned=derived is None, copied=parts
            )
        _remove_emptied(fs, real, deleted)
        return replace(
            restored,
            written=tuple(str(folder / name) for name in named),
            deleted=tuple(str(folder / name) for name in deleted),
        )


def export_to(
    store: Store,
    commit: CommitId,
    paths: Sequence[str],
    stream: BinaryIO,
    options: WriteOptions,
) -> Restored:
    """Writes one file to an open binary stream, after all bytes of the file were verified.

    The file is first written to a temporary folder. Without ``paths``, training states are omitted.
    Raises WrongUsage if not exactly one file remains, or if the stream is not writable in binary
    mode.
    """
    if options != WriteOptions(force=options.force, progress=options.progress):
        raise WrongUsage("a stream receives one file: of the options, only force and progress work")
    try:
        stream.write(b"")
    except (AttributeError, TypeError, ValueError) as error:  # a text stream, closed, or read-only
        raise WrongUsage(
            f"the output is not a writable binary stream: {error}",
            hint="pass a path, or a stream opened with mode 'wb'",
        ) from None
    entries, left_out = chosen(manifests.of_commit(store, commit), paths)
    entry = _only(entries, "a stream")
    fs = store.fs
    with fs.temporary_folder() as folder:
        changes = Changes(commit, folder, {"file": entry})
        apply(store, changes, progress=options.progress, planned=False)
        with fs.open_read(folder / "file") as file:
            for start in range(0, entry.size, _CHUNK):
                stream.write(file.read(start, min(_CHUNK, entry.size - start)))
    branch = head_if_known(store.fresh()).branch
    return Restored(
        commit, (entry.path,), (), (), branch=branch, moved_head=False, left_out=left_out
    )


def _only(entries: Sequence[FileEntry], output: str) -> FileEntry:
    """The only entry. Raises WrongUsage if there are several or none."""
    if len(entries) != 1:
        names = ", ".join(printable(e.path) for e in entries[:10])
        raise WrongUsage(
            f"{output} receives one file, but {len(entries)} match",
            hint=f"name one of {names}, or a folder that ends in /" if entries else None,
        )
    return entries[0]


def _refuse_existing(fs: FileSystem, paths: Sequence[Path], force: bool) -> None:
    existing = [] if force else [str(p) for p in paths if fs.stat(p) is not None]
    if existing:
        raise WouldOverwrite(f"{existing[0]} exists already", hint="add -f to replace it")


# -- deleting other files -------------------------------------------------------------


def _extra(store: Store, output: Path, entries: Sequence[FileEntry], force: bool) -> list[str]:
    """The files and links below ``output`` that are not among ``entries``.

    Raises WrongUsage if the folder contains a repository. Without ``force``, raises WouldOverwrite
    if the result is not empty.
    """
    fs, real = store.fs, store.fs.realpath(output)
    wanted = {e.path for e in entries}
    extra = [name for name in _files_below(fs, real) if name not in wanted]
    if extra and not force:
        raise WouldOverwrite(
            f"{listed([printable(str(output / name)) for name in extra], 1)} would be deleted",
            hint="add -f to delete files that the version lacks",
        )
    return extra


def _files_below(fs: FileSystem, folder: Path) -> list[str]:
    """All files and links below a folder, except temporary files and version control folders."""
    names, waiting = [], [""]
    while waiting:
        at = waiting.pop()
        for entry in fs.list(folder / at):
            name = f"{at}/{entry}" if at else entry
            identity = fs.stat(folder / name, follow=False)
            if entry.lower() == ".mvc":
                raise WrongUsage(
                    f"{printable(str(folder / at))} contains a repository: deleting is refused",
                    hint="use a separate folder for the version",
                )
            skipped = entry.startswith(TEMPORARY) or is_control_folder(fs, folder / name)
            if identity is None or skipped:
                continue
            if identity.is_dir:
                waiting.append(name)
            else:
                names.append(name)
    return sorted(names)


def _remove_emptied(fs: FileSystem, folder: Path, deleted: Sequence[str]) -> None:
    parents = {p for name in deleted for p in (folder / name).parents if p.is_relative_to(folder)}
    for parent in sorted(parents - {folder}, reverse=True):
        if not fs.list(parent):
            fs.remove_dir(parent)


# -- a folder with a delta -------------------------------------------------------------


@contextmanager
def _new_folder(fs: FileSystem, output: Path, force: bool) -> Iterator[Path]:
    """A ``with`` block that yields a new folder, and renames the folder to ``output`` at its end.

    Raises WouldOverwrite if ``output`` exists. With ``force``, replaces a folder ``output`` that
    contains a delta.
    """
    real = fs.realpath(output)
    exists = fs.stat(real) is not None
    if exists and not (force and delta_folder.is_delta(fs, real)):
        raise WouldOverwrite(
            f"{printable(str(output))} exists already",
            hint="-f replaces only a folder that contains a delta",
        )
    with removing_if_failed(fs) as created:
        new = real.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
        make_folder(fs, new, created=created)
        yield new
        if exists:
            fs.replace(real, new.with_suffix(".old"))
            fs.remove_tree(new.with_suffix(".old"))
        fs.replace(new, real)
    fs.sync_dir(real.parent)
