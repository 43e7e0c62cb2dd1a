"""Checkout and switch: replace the files of the working folder by a version's files, all or none.

A version is *reachable* if it is an ancestor of a branch, a tag or HEAD. A file is uncommitted work
if no reachable version has the same file at the same path. If uncommitted work would be lost,
nothing is written, unless ``force``.
``mvc.repo.checkout.export`` writes the files of a version to another folder.
``mvc.repo.checkout.states`` loads the tensors of a version into memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.control_folders import is_foreign
from mvc.errors import (
    DamagedData,
    MvcError,
    RefConflict,
    StateForgotten,
    UnknownRevision,
    WouldOverwrite,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.files import FileSystem, WriteFile
from mvc.io.replacement import replacing
from mvc.limits import CHUNK, PIECE
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import check_place, check_ref, printable
from mvc.repo.content.contents import AHEAD, Buffers, ReadPart, write_file
from mvc.repo.history.log import Orphans, orphans
from mvc.repo.interrupted import checking_out, planned_move
from mvc.repo.killed import PLANS
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.repo.lookup.refs import HEAD, Head, branches, head, remote_refs
from mvc.repo.recording import refuse_recorded
from mvc.repo.refs import advance, branch_change, move_head
from mvc.repo.revisions import Rev, resolve
from mvc.repo.worktree.identify import is_committed
from mvc.repo.worktree.worktree import check_worktree, entry_of
from mvc.store.journal.entries import RefValue
from mvc.store.recovery.recover import Recovery
from mvc.store.store import Store
from mvc.text import did_you_mean, listed
from mvc.types import Bytes, Counted, Progress

_PROBE = 64  # bytes at the start of a chunk: the rest is compared with zero only if these are zero


class Restored(Struct, frozen=True):
    """Which paths a checkout has written, deleted, and not changed.

    ``branch``: the branch of HEAD, None if HEAD is detached. ``orphans``: versions that only the
    previous detached HEAD reached. ``left_out``: paths of omitted training states (files with the
    optimizer's tensors).
    """

    commit: CommitId
    written: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    branch: str | None
    moved_head: bool
    orphans: Orphans | None = None
    left_out: tuple[str, ...] = ()


class Changes(Struct, frozen=True):
    """``writes``: maps names to files to write into ``folder``. ``deletes``: names to delete.

    ``unchanged``: names of files that stay unchanged. ``commit``: the version of the files. If the
    weights of ``commit`` were dropped (deleted, because a replay of the training can compute the
    weights again), writing raises WeightsDropped. If ``commit`` is None, this is not checked.
    """

    commit: CommitId | None
    folder: Path
    writes: Mapping[str, FileEntry]
    deletes: Sequence[str] = ()
    unchanged: tuple[str, ...] = ()


Further: TypeAlias = Mapping[str, tuple[int, Callable[[Callable[[int], None], WriteFile], None]]]
"""Maps the name of a file to its size in bytes and to a function that writes the file.

The function reports how many bytes it has written.
"""


class RefMove(NamedTuple):
    """A move of HEAD or of a branch at the end of a checkout. ``make`` moves the ref.

    ``planned`` describes the move in a file, the plan of the checkout. If the checkout is killed,
    the next command reads the plan and completes the checkout (``mvc.io.plans``).
    """

    planned: Mapping[str, str]
    make: Callable[[], object]


def chosen(
    manifest: Manifest, paths: Sequence[str], everything: bool = False
) -> tuple[list[FileEntry], tuple[str, ...]]:
    """The entries to export, and the paths of omitted training states.

    With ``paths`` or ``everything``, no training state is omitted.
    """
    if paths and everything:
        raise WrongUsage("name paths or set everything, not both")
    states = frozenset() if paths or everything else manifest.training_states
    entries = [e for e in manifest.under(paths) if e.path not in states]
    return entries, tuple(sorted(states))


def restore(
    store: Store,
    commit: CommitId,
    paths: Sequence[str] = (),
    *,
    move: Callable[[Head], RefMove | None] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Replaces the files of HEAD by files of a version, then moves a ref.

    ``paths``: replace only these files. ``move``: a function that is called with the present HEAD
    and returns the move of a ref, or None. Without ``move``, no ref moves.
    """
    check_worktree(store)
    with checking_out(store, store.root):
        before = head(store.fresh())
        moving = None if move is None else move(before)
        if moving is not None:
            store.require()  # these two calls raise now if the move cannot be recorded later
            store.now_ns()
        new = manifests.of_commit(store, commit)
        old = _present_version(store, before.commit, force)
        removed = [e for e in old.entries if e.path not in new.by_path and not paths]
        changes = plan(store, commit, new.under(paths), old=old, removed=removed, force=force)
        deleted = apply(store, changes, progress=progress, move=moving)
        left = None
        if before.branch is None and before.commit is not None and move is not None:
            left = orphans(store.fresh(), before.commit, commit)
        return Restored(
            commit,
            tuple(changes.writes),
            deleted,
            changes.unchanged,
            branch=before.branch,
            moved_head=False,
            orphans=left,
        )


def restore_all(
    store: Store,
    commit: CommitId,
    to: RefValue,
    *,
    create: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Writes all files of a version and moves HEAD to ``to``: a branch or a commit.

    ``create``: create the branch ``to`` in the same operation.
    """

    def move(before: Head) -> RefMove | None:
        at, start = before.branch or before.commit, commit if create else None
        if create and isinstance(to, str):
            branch_change(store, to, commit)  # raises before any file is written
        if at == to:
            return None
        return RefMove(planned_move(at, to, start=start), partial(move_head, store, to, start))

    restored = restore(store, commit, move=move, force=force, progress=progress)
    return replace(restored, branch=to if isinstance(to, str) else None, moved_head=True)


def fast_forward(
    store: Store,
    at: Head,
    commit: CommitId,
    operation: Literal["merge", "pull"],
    *,
    progress: Progress | None = None,
) -> Restored:
    """Advances the current branch, or a detached HEAD, from ``at`` to ``commit``. Writes the files.

    Raises RefConflict if HEAD has moved meanwhile, or if a running training commits to the branch.
    """

    def move(before: Head) -> RefMove:
        refuse_recorded(store, at.branch)
        if before != at:
            raise RefConflict("HEAD has moved meanwhile", hint="run the command again")
        moves = {at.branch: (at.commit, commit)}
        return RefMove(
            planned_move(at.commit, commit, branch=at.branch, operation=operation),
            partial(advance, store, moves, operation, note=at.branch or ""),
        )

    return restore(store, commit, move=move, progress=progress)


def switch(
    store: Store,
    branch: str,
    *,
    create: bool = False,
    start: Rev | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored | None:
    """Checks out ``branch``. Returns None if the branch has no version yet.

    If HEAD is already at the branch's version, only HEAD moves and no file is written, unless
    ``force``. ``create``: create the branch at ``start`` (default HEAD) in the same operation, so
    that a failed checkout leaves no branch. If only a remote has the branch, the branch is created
    from its tracking ref. Raises UnknownRevision if there is no such branch; InvalidName or
    RefConflict if the branch cannot be created; StateForgotten; WouldOverwrite.
    """
    check_worktree(store)
    if create and head(store.fresh()).commit is None and start is None:
        check_ref("branch", branch)
        move_head(store, branch, None, operation="switch")
        return None
    if create:
        commit = resolve(store, HEAD if start is None else start)
    else:
        tips = {ref.name: ref.commit for ref in branches(store.fresh())}
        if branch not in tips:
            create, tips[branch] = True, _of_remote(store, branch, tips)
        commit = tips[branch]
    if commit == head(store.fresh()).commit and not force:
        with checking_out(store, store.root):
            move_head(store, branch, commit if create else None, operation="switch")
            return Restored(commit, (), (), (), branch=branch, moved_head=True)
    return restore_all(store, commit, branch, create=create, force=force, progress=progress)


def _of_remote(store: Store, name: str, branches: Iterable[str]) -> CommitId:
    """The newest version of a branch that exactly one remote has. Raises UnknownRevision."""
    tracked = [ref for ref in remote_refs(store.fresh()) if ref.name.partition("/")[2] == name]
    if not tracked:
        raise _no_branch(store, name, branches)
    if len(tracked) > 1:
        names = " and ".join(ref.name for ref in tracked)
        raise UnknownRevision(
            f"several remotes have a branch {name}: {names}",
            hint=f"choose one: 'mvc switch -c {name} {tracked[0].name}'",
        )
    return tracked[0].commit


def _no_branch(store: Store, name: str, branches: Iterable[str]) -> UnknownRevision:
    """The error of ``switch`` for a name that is not a branch, but may be another revision."""
    shown = printable(name[:100])
    try:
        resolve(store, name)
    except MvcError:
        hint = did_you_mean(name, branches, f"create it with 'mvc switch -c {shown}'")
        return UnknownRevision(f"there is no branch {shown}", hint=hint)
    return UnknownRevision(
        f"{shown} is a version, not a branch",
        hint=f"'mvc checkout {shown}' checks it out, 'mvc switch -c NAME {shown}' starts a branch",
    )


def _present_version(store: Store, commit: CommitId | None, force: bool) -> Manifest:
    """The manifest (list of files) of the version that is checked out in the working folder.

    Returns an empty manifest if the state of this version is absent, as in a clone without states.
    With ``force``, also returns an empty manifest if this state is damaged or purged.
    """
    try:
        return manifests.of_commit(store, commit)
    except (DamagedData, StateForgotten) as error:
        if force or (isinstance(error, StateForgotten) and error.absent is not None):
            return manifests.EMPTY
        raise


# -- only files of reachable versions may be overwritten or deleted -----------------------


def plan(
    store: Store,
    commit: CommitId | None,
    entries: Sequence[FileEntry],
    *,
    old: Manifest,
    removed: Sequence[FileEntry] = (),
    force: bool,
) -> Changes:
    """Plans a checkout. Files on disk that equal their entry in ``entries`` are not written.

    ``removed``: files to delete if they exist. ``old``: the version whose files were written into
    the working folder. Unless ``force``, raises WouldOverwrite if a file on disk would be replaced
    or deleted, and no reachable version has this file at its path.
    """
    writes: dict[str, FileEntry] = {}
    deletes, unchanged, lost = [], [], []
    for entry in entries:
        present = _present(store, entry.path, old.by_path.get(entry.path, entry))
        if isinstance(present, FileEntry) and present.content_id == entry.content_id:
            unchanged.append(entry.path)
            continue
        writes[entry.path] = entry
        if present is not None and not (force or _is_stored(store, old, present)):
            lost.append(entry.path)
    for entry in removed:
        present = _present(store, entry.path, entry)
        if present is not None:
            deletes.append(entry.path)
            if not (force or _is_stored(store, old, present)):
                lost.append(entry.path)
    if lost:
        raise WouldOverwrite(
            f"{listed(lost, 1)} has uncommitted work that would be lost",
            hint="commit it, possibly on a new branch ('mvc switch -c NAME'), or move it "
            "away"
            + (
                f"; 'mvc checkout -f HEAD {shlex.join(lost)}' discards the changes"
                if old.by_path.keys() >= {*lost}
                else ""
            ),
        )
    _refuse_links(store.fs, store.root, [*writes, *deletes])
    return Changes(commit, store.root, writes, deletes, unchanged=tuple(unchanged))


def _is_stored(store: Store, old: Manifest, present: FileEntry | Literal["other kind"]) -> bool:
    """Whether a reachable version has this file at its path."""
    if not isinstance(present, FileEntry):
        return False
    before = old.by_path.get(present.path)
    is_old = before is not None and before.content_id == present.content_id
    return is_old or is_committed(store, present)


def _present(store: Store, path: str, like: FileEntry) -> FileEntry | Literal["other kind"] | None:
    """The file at a path. ``other kind`` if the path is a folder; None if nothing exists."""
    identity = store.fs.stat(store.root / path)
    if identity is None:
        return None
    return entry_of(store, path, like) if identity.is_file else "other kind"


def _refuse_links(fs: FileSystem, root: Path, paths: Iterable[str]) -> None:
    """Raises WouldOverwrite if a parent folder of a path is a symbolic link, or a file.

    This check runs before any file is written.
    """
    parents = {parent for path in paths for parent in PurePosixPath(path).parents}
    for parent in sorted(parents - {PurePosixPath(".")}):
        identity = fs.stat(root / parent, follow=False)
        if identity is not None and (identity.is_symlink or identity.is_file):
            kind = "a symbolic link" if identity.is_symlink else "a file, not a folder"
            raise WouldOverwrite(
                f"{parent} is {kind}: nothing is written through it",
                hint="check out elsewhere with -o",
            )


# -- writing -------------------------------------------------------------------------


def apply(
    store: Store,
    changes: Changes,
    *,
    progress: Progress | None = None,
    planned: bool = True,
    move: RefMove | None = None,
    further: Further = MappingProxyType({}),
    copied: Mapping[bytes, ReadPart] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Writes all files, then deletes files (``replacing``). Returns the deleted names.

    ``further``: additional files that no version has. ``copied``: as for ``fill_file``; uses less
    memory, because contents are not computed in advance. ``planned``: if the process is killed and
    the repository is writable, the next command completes the work (``mvc.io.replacement``), except
    for the files in ``further``.

    Raises WeightsDropped only after the first file was created. Then the output is writable, and
    the caller may train the weights again (a replay).
    """
    entries, commit = changes.writes, changes.commit
    for name in entries:
        check_place(name)
    sizes = (*(entry.size for entry in entries.values()), *(n for n, _ in further.values()))
    written, recovery = Counted(progress, sum(sizes)), store.recovery
    buffers = Buffers(1 if copied else AHEAD + 1)

    def fill(name: str, file: WriteFile) -> None:
        entry = entries[name]
        if commit is not None and not written.done:
            check_available(store, commit, entries.values())
        fill_file(
            recovery,
            entry,
            file,
            progress=partial(written.add, step=entry.path),
            buffers=buffers,
            copied=copied,
        )

    fills = {name: partial(fill, name) for name in entries}
    extra = {n: partial(write, partial(written.add, step=n)) for n, (_, write) in further.items()}
    checks = {name: entry.content_id.hex() for name, entry in entries.items()}
    with (
        recovery.by_products.keeping(),
        replacing(
            store.fs,
            changes.folder,
            {**fills, **extra},
            [name for name in changes.deletes if not is_foreign(name)],
            plans=store.folder / PLANS if planned and store.writable else None,
            inside=changes.folder == store.root,
            checks={**checks, **dict.fromkeys(extra, "")},
            then=None if move is None else move.planned,
            version="" if commit is None else commit.hex(),
        ) as deleted,
    ):
        if move is not None:
            move.make()
        return tuple(deleted)


def fill_file(
    recovery: Recovery,
    entry: FileEntry,
    file: WriteFile,
    progress: Callable[[int], None] | None = None,
    buffers: Buffers | None = None,
    copied: Mapping[bytes, ReadPart] = {},
) -> None:
    """Writes a file of a version to a new file. Chunks of zeros become holes.

    ``copied``: maps the ids of some contents to functions that fill memory with these contents. All
    other contents are verified.
    """
    write_at = partial(_write_sparse, file)
    write = partial(write_file, recovery, entry, write_at, buffers=buffers, copied=copied)
    try:
        write(progress=progress, check=False)
    except DamagedData:
        if all(content.spec.nbytes <= PIECE for content in entry.contents):
            raise  # a second attempt, which verifies more, differs only for larger contents
        file.truncate(0)  # else bytes of the first attempt would stay where the second has holes
        write()
    if file.size() < entry.size:  # the file ends with a hole
        file.truncate(entry.size)


def _write_sparse(file: WriteFile, offset: int, data: Bytes) -> None:
    """Writes ``data`` to a new file, but leaves holes for chunks of zeros."""
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
