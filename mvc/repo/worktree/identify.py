"""Finds the versions that contain the same tensors as a file, for ``mvc identify``.

The *state* of a file is its tensors, or all its bytes if it has no tensors. Compares only hashes.
"""

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
    """A version that has the state, in its file ``path``.

    ``exact``: whether all bytes of the files are equal, not only the tensors. ``branches``:
    branches that contain the version. ``deployments``: all deployments of the version, including
    retracted deployments. If the version's files are not stored here, ``path`` is None and
    ``exact`` is False. Then ``absent`` says whether the version was received without its files, and
    ``forgotten_ns`` when it was received, or when its files were forgotten (ns since 1970).
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
    """The versions that introduced the state of ``file``, newest first.

    A later version with the same file unchanged is not listed. A version whose files were forgotten
    is found by hashes in the journal (the log of all operations). ``progress``: counts the bytes
    that are read from ``file``. Raises UnknownPath if ``file`` does not exist.
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
    """The newest stored version that introduced the state of ``entry`` at the same path, or None.

    Prefers versions in which all bytes of the file are equal. Ignores the version ``besides``,
    damaged versions, and versions that are no ancestors of a branch, a tag or HEAD.
    """
    same_state = None
    for commit, exact in _at_its_path(store, entry):
        if exact and commit.id != besides:
            return commit.id
        if same_state is None and commit.id != besides:
            same_state = commit.id
    return same_state


def holders(store: Store, entry: FileEntry) -> Iterator[tuple[CommitId, str]]:
    """Yields each version that introduced the state of ``entry``, and the path of the file there.

    Skips damaged versions, and versions whose files are not stored here.
    """
    matches = _versions(store, entry, skip_damaged=True)
    return ((commit.id, same.path) for commit, same in matches if same is not None)


def is_committed(store: Store, entry: FileEntry) -> bool:
    """Whether an ancestor of a branch, a tag or HEAD has the same bytes at the same path."""
    return any(exact for _, exact in _at_its_path(store, entry))


def _at_its_path(store: Store, entry: FileEntry) -> Iterator[tuple[Commit, bool]]:
    """Yields versions that introduced the state of ``entry`` at the same path.

    The second value says whether all bytes of the file are equal. Skips damaged versions, and
    versions that are no ancestors of a branch, a tag or HEAD, such as undone commits.
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
    """Yields versions that introduced the state of ``entry``, each with the file that has the
    state. The file is None if the files of the version are not stored here.
    """
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
                # With several commits in one journal entry, the hash could be of another commit.
                yield commit, None
