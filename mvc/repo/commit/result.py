"""The result of a commit: the new version and the changed files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mvc.ids import CommitId, Root
from mvc.model.commit import Commit
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.content.compare import renames
from mvc.repo.statements.live import Deployed
from mvc.repo.worktree.git_code import GitCode


class PathChange(Struct, frozen=True):
    """How a commit changed the file at ``path``.

    ``kind``: added, changed, unchanged, removed, or renamed (``renamed_from``: the old path).
    ``tensors_changed``: number of tensors that differ from the parent commit. ``tensors``: number
    of tensors of the file.
    """

    path: str
    kind: str
    tensors_changed: int
    tensors: int
    renamed_from: str | None = None


class CommitResult(Struct, frozen=True):
    """A new version.

    ``branch``: the branch of the commit; None if HEAD is detached. ``raw_bytes``: number of bytes
    of the input. ``stored_bytes``: number of bytes that the commit added to the repository.
    ``entries``: maps paths to committed files. ``state``: the state as ``checkout`` returns it, to
    be deployed; None if files were committed. ``signed``: whether the version or its deployment is
    signed. ``code``: the state of the git work tree during the commit.
    """

    commit: Commit
    branch: str | None
    deployment: Deployed | None
    paths: tuple[PathChange, ...]
    raw_bytes: int
    stored_bytes: int
    entries: Mapping[str, FileEntry]
    state: Any = None
    signed: bool = False
    code: GitCode = GitCode()

    @property
    def id(self) -> CommitId:
        return self.commit.id

    @property
    def root(self) -> Root:
        """The Merkle root (a hash) over all tensors of the version."""
        return self.commit.root

    def __repr__(self) -> str:
        """Omits the state, which would fill the screen."""
        live = f" deployed to {self.deployment.target}" if self.deployment is not None else ""
        return (
            f"<CommitResult {self.id.short} on {self.branch or 'detached HEAD'}{live}: "
            f"paths={len(self.paths)} raw_bytes={self.raw_bytes} stored_bytes={self.stored_bytes}>"
        )


def path_changes(
    parent: Manifest, manifest: Manifest, committed: Mapping[str, FileEntry]
) -> tuple[PathChange, ...]:
    """Compares the ``committed`` files, and removed files, with those of the parent commit."""
    old, changes = parent.by_path, []
    removed = sorted(set(old) - set(manifest.by_path))
    added = [entry for path, entry in committed.items() if path not in old]
    origins = renames([old[path] for path in removed], added)
    for path, new in committed.items():
        kind, changed, origin = "added", len(new.tensors), origins.get(path)
        if origin is not None:
            kind, changed = "renamed", 0
        elif path in old:
            kind = "unchanged" if old[path].content_id == new.content_id else "changed"
            known = {t.key: t.id for t in old[path].tensors}
            changed = sum(known.pop(t.key, None) != t.id for t in new.tensors) + len(known)
        changes.append(PathChange(path, kind, changed, len(new.tensors), renamed_from=origin))
    for path in (path for path in removed if path not in origins.values()):
        count = len(old[path].tensors)
        changes.append(PathChange(path, "removed", count, count))
    return tuple(changes)
