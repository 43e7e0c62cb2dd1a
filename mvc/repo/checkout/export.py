"""Writes a version elsewhere: to a file, into a folder that may be served, or to a stream.

HEAD and the working tree stay as they are.
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
    """How ``Repository.checkout`` writes files."""

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
    """Writes to a folder, which exists or whose name ends in ``/`` or has no suffix, or to a file.

    Without ``paths`` and ``everything``, training states beside their models are left out. With
    ``delta_from``, the folder gets what changed since that version (``delta_folder``). The files
    are those of ``commit``, or those of ``derived``, whose contents among ``parts`` are computed.
    """
    force, delete, progress = options.force, options.delete, options.progress
    fs, output = store.fs, Path(to)
    as_folder = names_folder(fs, to)
    refuse_store(fs, output)
    with checking_out(store, output):
        manifest = manifests.of_commit(store, commit) if derived is None else derived
        entries, left_out = chosen(manifest, paths, options.everything)
        if delete and paths:
            raise WrongUsage("delete is for a whole version: name no paths with it")
        branch = head_if_known(store.fresh()).branch
        done = Restored(commit, (), (), (), branch=branch, moved_head=False, left_out=left_out)
        if options.delta_from is not None:
            if options.everything or options.atomic_dir or delete:
                raise WrongUsage("delta_from goes without everything, atomic_dir and delete")
            base = chosen(manifests.of_commit(store, options.delta_from), paths)[0]
            check_available(store, options.delta_from, base)
            check_available(store, commit, entries)
            changed, files = delta_folder.compared(entries, base)
            said = delta_folder.metadata(output.name, commit.hex(), options.delta_from.hex())
            shards = delta_folder.writers(store.recovery, changed, said)
            with _new_folder(fs, output, force) as new:
                changes = Changes(None, new, files)
                apply(store, changes, further=shards, progress=progress, planned=False)
            return replace(done, written=tuple(str(output / name) for name in (*files, *shards)))
        if options.atomic_dir:
            make_folder(fs, output.parent)
            swapped = SwappedFolder(fs, output)
            with swapped.next(commit.short, force=force) as new:
                changes = Changes(commit, new, {e.path: e for e in entries})
                apply(store, changes, progress=progress, planned=False)
                swapped.lead_to(new.name)
            return replace(done, written=tuple(str(output / e.path) for e in entries))
        identity = fs.stat(output)
        is_dir = identity is not None and identity.is_dir
        if not (as_folder or delete):
            folder, named = output.parent, {output.name: _only(entries, printable(str(output)))}
        elif identity is not None and not is_dir:
            raise WrongUsage(
                f"{printable(str(output))} is a file, and not a folder to write into",
                hint="name a folder that is not there yet, or a file with a suffix",
            )
        else:
            folder, named = output, {entry.path: entry for entry in entries}
        _refuse_taken(fs, [folder / name for name in named], force)
        extra = _extra(store, output, entries, force) if delete and is_dir else []
        with removing_if_failed(fs) as made:
            make_folder(fs, folder, created=made)
            real = fs.realpath(folder)
            changes = Changes(commit, real, named, extra)
            deleted = apply(
                store, changes, progress=progress, planned=derived is None, copied=parts
            )
        _remove_emptied(fs, real, deleted)
        return replace(
            done,
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
    """Writes one file to an open binary stream, once all of its bytes are verified.

    It is first written to a temporary file. Raises WrongUsage unless ``paths`` (or the version, its
    training states left out) name exactly one file, and for what takes no bytes.
    """
    if options != WriteOptions(force=options.force, progress=options.progress):
        raise WrongUsage("a stream takes one file")
    try:
        stream.write(b"")
    except (AttributeError, TypeError, ValueError) as error:  # text, closed, only for reading
        raise WrongUsage(
            f"the output takes no bytes: {error}",
            hint="pass a path, or a stream that is open for writing bytes",
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
    """The entry that is written to an output for one file."""
    if len(entries) != 1:
        names = ", ".join(printable(e.path) for e in entries[:10])
        raise WrongUsage(
            f"{output} takes one file, but {len(entries)} are to be written",
            hint=f"name one of {names}, or a folder that ends in /" if entries else None,
        )
    return entries[0]


def _refuse_taken(fs: FileSystem, places: Sequence[Path], force: bool) -> None:
    taken = [] if force else [str(p) for p in places if fs.stat(p) is not None]
    if taken:
        raise WouldOverwrite(f"{taken[0]} exists already", hint="add -f to replace it")


# -- deleting what the version lacks ---------------------------------------------------


def _extra(store: Store, output: Path, entries: Sequence[FileEntry], force: bool) -> list[str]:
    """The files and links below ``output`` that are not ``entries``.

    Raises WrongUsage for a folder with a repository in it, WouldOverwrite without ``force``.
    """
    fs, real = store.fs, store.fs.realpath(output)
    wanted = {e.path for e in entries}
    found = [name for name in _files_below(fs, real) if name not in wanted]
    if found and not force:
        raise WouldOverwrite(
            f"{listed([printable(str(output / name)) for name in found], 1)} would be deleted",
            hint="add -f to delete what the version lacks",
        )
    return found


def _files_below(fs: FileSystem, folder: Path) -> list[str]:
    """Names of all files and links; folders of version control and temporary files are skipped."""
    found, waiting = [], [""]
    while waiting:
        at = waiting.pop()
        for entry in fs.list(folder / at):
            name = f"{at}/{entry}" if at else entry
            identity = fs.stat(folder / name, follow=False)
            if entry.lower() == ".mvc":
                raise WrongUsage(
                    f"{printable(str(folder / at))} holds a repository: nothing is deleted there",
                    hint="name a folder of its own for the version",
                )
            passed = entry.startswith(TEMPORARY) or is_control_folder(fs, folder / name)
            if identity is None or passed:
                continue
            if identity.is_dir:
                waiting.append(name)
            else:
                found.append(name)
    return sorted(found)


def _remove_emptied(fs: FileSystem, folder: Path, deleted: Sequence[str]) -> None:
    parents = {p for name in deleted for p in (folder / name).parents if p.is_relative_to(folder)}
    for parent in sorted(parents - {folder}, reverse=True):
        if not fs.list(parent):
            fs.remove_dir(parent)


# -- a folder that says what changed ---------------------------------------------------


@contextmanager
def _new_folder(fs: FileSystem, output: Path, force: bool) -> Iterator[Path]:
    """A new folder that gets the name ``output`` at the end of the block.

    Raises WouldOverwrite for what stands there; with ``force`` a delta is replaced.
    """
    place = fs.realpath(output)
    taken = fs.stat(place) is not None
    if taken and not (force and delta_folder.is_delta(fs, place)):
        raise WouldOverwrite(
            f"{printable(str(output))} exists already",
            hint="-f replaces a folder with a delta, and nothing else",
        )
    with removing_if_failed(fs) as made:
        new = place.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
        make_folder(fs, new, created=made)
        yield new
        if taken:
            fs.replace(place, new.with_suffix(".old"))
            fs.remove_tree(new.with_suffix(".old"))
        fs.replace(new, place)
    fs.sync_dir(place.parent)
