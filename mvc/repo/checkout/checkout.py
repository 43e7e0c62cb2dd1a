"""checkout, switch, rm: write a version's files, replaced together.

A file that no named version holds is uncommitted work. If any would be lost, nothing is written
without ``force``. Output elsewhere: ``mvc.repo.checkout.export``.
States in memory: ``mvc.repo.checkout.states``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.control_folders import is_foreign
from mvc.errors import (
    DamagedData,
    MvcError,
    StateForgotten,
    UnknownPath,
    UnknownRevision,
    WouldOverwrite,
)
from mvc.ids import CommitId
from mvc.io.files import WriteFile
from mvc.io.replacement import replacing
from mvc.limits import CHUNK
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import check_place, check_ref, printable
from mvc.repo.content.contents import write_file
from mvc.repo.context import PLANS, Context
from mvc.repo.history.log import Orphans, orphans
from mvc.repo.interrupted import checking_out, planned_move
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import HEAD, branches, head, remote_refs
from mvc.repo.lookup.revisions import Rev, resolve
from mvc.repo.recording import refuse_recorded
from mvc.repo.refs import advance, branch_change, move_head
from mvc.repo.worktree.identify import is_held
from mvc.repo.worktree.worktree import entry_of
from mvc.store.journal.entries import RefValue
from mvc.store.recovery.recover import Recovery
from mvc.types import Bytes, Progress

_PROBE = 64  # leading bytes; most chunks of weights are told from zeros by these


class Restored(Struct, frozen=True):
    """The paths written, deleted and left unchanged, and the branch of HEAD (None: detached).

    ``orphans``: versions that only the detached HEAD before the checkout led to. ``left_out``:
    training states of the version that were not written, because nobody asked for them.
    """

    commit: CommitId
    written: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    branch: str | None
    moved_head: bool
    orphans: Orphans | None = None
    left_out: tuple[str, ...] = ()


def select(manifest: Manifest, paths: Sequence[str]) -> list[FileEntry]:
    """The entries that ``paths`` (files or folders) name; all if no path is named.

    A path that is both names the file, ``path/`` the folder.
    """
    if not paths:
        return list(manifest.entries)
    chosen: dict[str, FileEntry] = {}
    for path in paths:
        if path in manifest.by_path:
            chosen[path] = manifest.by_path[path]
            continue
        inside = path.rstrip("/") + "/"
        found = {e.path: e for e in manifest.entries if path == "." or e.path.startswith(inside)}
        if not found and path != ".":
            raise UnknownPath(f"the version has no path {path}")
        chosen |= found
    return list(chosen.values())


def restore_all(
    context: Context,
    commit: CommitId,
    to: RefValue,
    *,
    create: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Writes all files of a version and moves HEAD to ``to``: a branch's name or a commit.

    With ``create``, ``to`` is a branch that the operation which moves HEAD makes as well.
    """
    with checking_out(context, context.root):
        before = head(context)
        here = before.branch if before.branch else before.commit
        if create and isinstance(to, str):
            branch_change(context, to, commit)  # refuses a name before any file is written
        made = commit if create else None
        done = _restore(
            context,
            before.commit,
            commit,
            force=force,
            progress=progress,
            then=planned_move(here, to, made=made) if here != to else None,
            move=lambda: move_head(context, to, made),
        )
        left = None
        if before.branch is None and before.commit is not None:
            left = orphans(context, before.commit, commit)
        return replace(
            done, branch=to if isinstance(to, str) else None, moved_head=True, orphans=left
        )


def fast_forward(
    context: Context, branch: str, commit: CommitId, *, progress: Progress | None = None
) -> Restored:
    """Moves the current branch to a later version and writes its files.

    Raises RefConflict if the branch has moved meanwhile, or a training records on it.
    """
    with checking_out(context, context.root):
        old = head(context).commit
        refuse_recorded(context, branch)
        done = _restore(
            context,
            old,
            commit,
            force=False,
            progress=progress,
            then=planned_move(old, commit, branch=branch),
            move=lambda: advance(context, {branch: (old, commit)}, "pull", note=branch),
        )
        return replace(done, branch=branch)


def _restore(
    context: Context,
    before: CommitId | None,
    commit: CommitId,
    *,
    force: bool,
    progress: Progress | None,
    then: Mapping[str, str] | None,
    move: Callable[[], object],
) -> Restored:
    """Writes all files of ``commit`` over those of ``before``.

    ``then`` says what ``move`` does, which is part of it; None for nothing.
    """
    context.check_worktree()
    if then is not None:
        context.store.require()
        context.store.now_ns()
    new = manifests.of_commit(context, commit)
    old = _present_version(context, before, force)
    gone = [e for e in old.entries if e.path not in new.by_path]
    writes, same = _to_write(context, old, new.entries, force)
    deletes = _to_delete(context, old, gone, force)
    named = {e.path: e for e in writes}
    deleted = write_files(
        context, commit, context.root, named, progress=progress,
        deletes=_paths(deletes), then=then, move=move,
    )  # fmt: skip
    return Restored(commit, _paths(writes), deleted, _paths(same), branch=None, moved_head=False)


def restore_paths(
    context: Context,
    commit: CommitId,
    paths: Sequence[str],
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Writes some paths of a version in place; HEAD stays."""
    context.check_worktree()
    with checking_out(context, context.root):
        at = head(context)
        new = manifests.of_commit(context, commit)
        old = manifests.of_commit(context, at.commit)
        writes, same = _to_write(context, old, select(new, paths), force)
        write_files(context, commit, context.root, {e.path: e for e in writes}, progress=progress)
        return Restored(
            commit, _paths(writes), (), _paths(same), branch=at.branch, moved_head=False
        )


def switch(
    context: Context,
    branch: str,
    *,
    create: bool = False,
    start: Rev | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored | None:
    """Writes the files of ``branch`` and moves HEAD to it.

    Where HEAD is at its version already, files stay as they are, changed ones too, but with
    ``force``.

    With ``create`` the branch is made at ``start`` (default HEAD), in the same operation that
    moves HEAD: if the checkout is refused or fails, there is no branch. A branch that only a remote
    has is made where that one has it. Returns None if the
    branch has no version yet. Raises UnknownRevision for an unknown branch, InvalidName and
    RefConflict for a new one, StateForgotten, WouldOverwrite.
    """
    context.check_worktree()
    if create and head(context).commit is None and start is None:
        check_ref("branch", branch)
        move_head(context, branch, None, operation="switch")
        return None
    if create:
        commit = resolve(context, HEAD if start is None else start)
    else:
        tips = {each.name: each.commit for each in branches(context)}
        if branch not in tips:
            create, tips[branch] = True, _of_remote(context, branch, tips)
        commit = tips[branch]
    if commit == head(context).commit and not force:
        with checking_out(context, context.root):
            move_head(context, branch, commit if create else None, operation="switch")
            return Restored(commit, (), (), (), branch=branch, moved_head=True)
    return restore_all(context, commit, branch, create=create, force=force, progress=progress)


def _of_remote(context: Context, name: str, branches: Iterable[str]) -> CommitId:
    """Where the only remote that has this branch has it. Raises UnknownRevision."""
    found = [ref for ref in remote_refs(context) if ref.name.partition("/")[2] == name]
    if not found:
        raise _no_branch(context, name, branches)
    if len(found) > 1:
        names = " and ".join(ref.name for ref in found)
        raise UnknownRevision(
            f"there is no branch {name}, but {names}",
            hint=f"say which: 'mvc switch -c {name} {found[0].name}'",
        )
    return found[0].commit


def _no_branch(context: Context, name: str, branches: Iterable[str]) -> UnknownRevision:
    """The error of ``switch`` for a name that is no branch, but perhaps of a version."""
    shown = printable(name[:100])
    try:
        resolve(context, name)
    except MvcError:
        from difflib import get_close_matches

        close = get_close_matches(name, branches, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else None
        return UnknownRevision(
            f"there is no branch {shown}", hint=hint or f"make it with 'mvc switch -c {shown}'"
        )
    return UnknownRevision(
        f"{shown} is a version, and not a branch",
        hint=f"'mvc checkout {shown}' goes there, 'mvc switch -c NAME {shown}' begins a branch",
    )


def _paths(entries: Sequence[FileEntry]) -> tuple[str, ...]:
    return tuple(entry.path for entry in entries)


def _present_version(context: Context, commit: CommitId | None, force: bool) -> Manifest:
    """The manifest the working tree was written from.

    With ``force``, a HEAD that is unreadable or forgotten counts as empty. So does one whose state
    never came, as in a clone without states: it has written nothing.
    """
    try:
        return manifests.of_commit(context, commit)
    except (DamagedData, StateForgotten) as error:
        if force or (isinstance(error, StateForgotten) and error.absent is not None):
            return manifests.EMPTY
        raise


# -- what may be overwritten or deleted: only files that a named version holds -----------


def _to_write(
    context: Context, old: Manifest, entries: Sequence[FileEntry], force: bool
) -> tuple[list[FileEntry], list[FileEntry]]:
    """(entries to write, unchanged entries). Raises WouldOverwrite if work would be lost.

    ``old`` is the version that the working tree was written from.
    """
    writes, same, lost = [], [], []
    for entry in entries:
        present = _present(context, entry.path)
        if isinstance(present, FileEntry) and present.content_id == entry.content_id:
            same.append(entry)
            continue
        writes.append(entry)
        if present is not None and not (force or _is_kept(context, old, present)):
            lost.append(entry.path)
    _refuse(lost)
    _refuse_links(context, writes)
    return writes, same


def _to_delete(
    context: Context, old: Manifest, entries: Sequence[FileEntry], force: bool
) -> list[FileEntry]:
    """Those of ``entries`` that have a file. Raises WouldOverwrite if work would be lost."""
    found = [(e, p) for e in entries if (p := _present(context, e.path)) is not None]
    _refuse([e.path for e, p in found if not (force or _is_kept(context, old, p))])
    deletes = [entry for entry, _ in found]
    _refuse_links(context, deletes)
    return deletes


def _is_kept(context: Context, old: Manifest, present: FileEntry | Literal["no file"]) -> bool:
    """Whether a named version has this file at its path."""
    if not isinstance(present, FileEntry):
        return False
    before = old.by_path.get(present.path)
    if before is not None and before.content_id == present.content_id:
        return True
    return is_held(context, present)


def _present(context: Context, path: str) -> FileEntry | Literal["no file"] | None:
    identity = context.store.fs.stat(context.root / path)
    if identity is None:
        return None
    return entry_of(context, path) if identity.is_file else "no file"


def _refuse(lost: Sequence[str]) -> None:
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise WouldOverwrite(
            f"{lost[0]}{more} would be overwritten, but holds work that is not committed",
            hint="commit it, if need be on a branch of its own ('mvc switch -c NAME'); -f, or "
            f"'mvc checkout -f HEAD {shlex.join(lost)}', loses it",
        )


def _refuse_links(context: Context, entries: Sequence[FileEntry]) -> None:
    """Raises WouldOverwrite if a folder on the way to an entry is a symbolic link.

    Writing and deleting refuse links as well; this check comes before the first file.
    """
    parents = {parent for e in entries for parent in PurePosixPath(e.path).parents}
    for parent in sorted(parents - {PurePosixPath(".")}):
        identity = context.store.fs.stat(context.root / parent, follow=False)
        if identity is not None and identity.is_symlink:
            raise WouldOverwrite(
                f"{parent} is a symbolic link: nothing is written through it",
                hint="check out elsewhere with -o",
            )


# -- writing -------------------------------------------------------------------------


def write_files(
    context: Context,
    commit: CommitId | None,
    folder: Path,
    entries: Mapping[str, FileEntry],
    *,
    progress: Progress | None = None,
    deletes: Sequence[str] = (),
    planned: bool = True,
    then: Mapping[str, str] | None = None,
    move: Callable[[], object] | None = None,
) -> tuple[str, ...]:
    """Writes entries by their names in ``folder``, together; then deletes the files ``deletes``.

    Returns those of them that are gone (``replacing``). ``commit`` is the version that
    has the entries, if it can have given them up: then WeightsDropped is raised once the first
    file could be made, so that nobody trains for a place that takes no file.
    ``planned``: the next command completes what a killed process leaves, if the repository can be
    written (``mvc.io.replacement``). ``then`` says what ``move`` does, which is part of it.
    """
    for name in entries:
        check_place(name)
    total = sum(entry.size for entry in entries.values())
    done, recovery = 0, context.store.recovery

    def fill(name: str, file: WriteFile) -> None:
        entry = entries[name]
        if commit is not None and not done:
            check_available(context, commit, entries.values())

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total, entry.path)

        fill_file(recovery, entry, file, advance)

    plans = context.store.folder / PLANS if planned and context.store.writable else None
    with (
        recovery.by_products.keeping(),
        replacing(
            context.store.fs,
            folder,
            {name: partial(fill, name) for name in entries},
            [name for name in deletes if not is_foreign(name)],
            plans=plans,
            inside=folder == context.root,
            checks={name: entry.content_id.hex() for name, entry in entries.items()},
            then=then,
            version="" if commit is None else commit.hex(),
        ) as deleted,
    ):
        if then is not None and move is not None:
            move()
        return tuple(deleted)


def fill_file(
    recovery: Recovery,
    entry: FileEntry,
    file: WriteFile,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Writes a file of a version to a new file, every byte of it verified; zeros become holes."""
    write_file(recovery, entry, partial(_write_sparse, file), progress)
    if file.size() < entry.size:  # it ends with a hole
        file.truncate(entry.size)


def _write_sparse(file: WriteFile, offset: int, data: Bytes) -> None:
    """Writes ``data`` to a new file, except chunks that are all zero: a hole reads as zeros."""
    view = memoryview(data)
    written = 0
    for start in range(0, len(view) - CHUNK + 1, CHUNK):
        chunk = view[start : start + CHUNK]
        if not any(chunk[:_PROBE]) and not np.frombuffer(chunk, np.uint64).any():
            if start > written:
                file.write_at(offset + written, view[written:start])
            written = start + CHUNK
    if len(view) > written:
        file.write_at(offset + written, view[written:])
