"""Identify: finds the versions that have the state of a file. Compares only hashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry
from mvc.repo.lookup import availability, manifests
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import branches, head, head_refs
from mvc.repo.statements.live import Deployed, of_commit
from mvc.repo.worktree.worktree import entry_at
from mvc.store.index import keys
from mvc.store.store import Store
from mvc.types import Progress


class Identified(Struct, frozen=True):
    """A version that has the state at ``path``.

    ``exact``: whether all bytes are equal, not only the tensors. ``branches``: branches that reach
    the version. ``deployments``: all deployments of the version, including retracted ones.
    ``forgotten_ns``: when the state was forgotten (ns since 1970), or if ``absent``, when the
    version was received without its state. In both cases ``path`` is None, and ``exact`` is False,
    because it is unknown whether all bytes are equal.
    """

    commit: CommitId
    path: str | None
    exact: bool
    branches: tuple[str, ...]
    deployments: tuple[Deployed, ...]
    forgotten_ns: int | None = None
    absent: bool = False


def identify(
    store: Store, file: Path | FileEntry, progress: Progress | None = None
) -> list[Identified]:
    """The versions that introduced the state of a file, newest first.

    Versions that inherit a path unchanged are not listed. For a file without tensors, all bytes
    must be equal. Forgotten versions are found by Merkle roots and hash prefixes in the journal
    (the operation log). ``progress``: counts bytes of the file. Raises UnknownPath if there is no
    such file.
    """
    snapshot = store.fresh()
    entry = (
        entry_at(store.fs, file, file.name, progress=progress) if isinstance(file, Path) else file
    )
    matches = list(_versions(store, entry))
    holders = (
        [(b.name, Ancestors(snapshot, [b.commit])) for b in branches(snapshot)] if matches else []
    )
    return [
        Identified(
            commit.id,
            None if same is None else same.path,
            same is not None and same.content_id == entry.content_id,
            tuple(name for name, history in holders if commit.id in history),
            deployments=of_commit(snapshot, commit.id),
            forgotten_ns=None if absence is None else absence.time_ns,
            absent=absence is not None and absence.why == "absent",
        )
        for commit, same in matches
        for absence in [availability.forgotten(store, commit.id) if same is None else None]
    ]


def earlier(store: Store, entry: FileEntry, *, besides: CommitId | None = None) -> CommitId | None:
    """The newest reachable stored version that introduced the state at the path of ``entry``.

    None if there is no such version. Versions in which all bytes are equal are preferred. Damaged
    versions are skipped. ``besides``: a version to ignore.
    """
    same_state = None
    for commit, exact in _at_its_path(store, entry):
        if exact and commit.id != besides:
            return commit.id
        if same_state is None and commit.id != besides:
            same_state = commit.id
    return same_state


def holders(store: Store, entry: FileEntry) -> Iterator[tuple[CommitId, str]]:
    """Yields undamaged stored versions that introduced the state of ``entry``, with its path."""
    matches = _versions(store, entry, skip_damaged=True)
    return ((commit.id, same.path) for commit, same in matches if same is not None)


def is_committed(store: Store, entry: FileEntry) -> bool:
    """Whether an ancestor of a branch, a tag or HEAD has all bytes of a file at its path.

    Versions of undone commits do not count.
    """
    return any(exact for _, exact in _at_its_path(store, entry))


def _at_its_path(store: Store, entry: FileEntry) -> Iterator[tuple[Commit, bool]]:
    """Yields undamaged reachable versions that introduced the state of ``entry`` at its path.

    The second value says whether all bytes of the file are equal. A version is reachable if it is
    an ancestor of a branch, a tag or HEAD. Versions of undone commits are not reachable.
    """
    snapshot = store.fresh()
    tips = {*head_refs(snapshot).values()}
    at = head(snapshot).commit
    reachable = Ancestors(snapshot, tips if at is None else tips | {at})
    return (
        (commit, same.content_id == entry.content_id)
        for commit, same in _versions(store, entry, skip_damaged=True)
        if same is not None and same.path == entry.path and commit.id in reachable
    )


def _versions(
    store: Store, entry: FileEntry, *, skip_damaged: bool = False
) -> Iterator[tuple[Commit, FileEntry | None]]:
    """Yields versions, each with the entry that has the state (None if the state is forgotten)."""
    snapshot = store.snapshot
    mark = bytes(entry.state_id)[: keys.ID_BYTES]
    seen: set[CommitId] = set()
    entries = snapshot.retry_on_rewrite(
        lambda: [snapshot.entry(at).entry for at in reversed(snapshot.marked(mark))]
    )
    for recorded in entries:
        for commit in recorded.commits:
            if commit.id in seen:
                continue
            seen.add(commit.id)
            try:
                manifest = manifests.if_stored(store, commit.id)
            except DamagedData:
                if not skip_damaged:
                    raise
                continue
            if manifest is not None:
                yield from ((commit, same) for same in manifest.by_state.get(entry.state_id, ()))
            elif commit.root == entry.state_id or (
                mark in recorded.marks and len(recorded.commits) == 1
            ):
                # If a journal entry has several commits, it is unknown whose hash prefix this is.
                yield commit, None
