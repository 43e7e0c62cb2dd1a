"""Results of a commit."""

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
    """What a commit did to one path.

    ``kind`` is added, changed, unchanged, removed, or renamed: the bytes that ``renamed_from`` had.
    ``tensors_changed`` and ``tensors`` count the tensors that differ from the parent, and all
    tensors.
    """

    path: str
    kind: str
    tensors_changed: int
    tensors: int
    renamed_from: str | None = None


class CommitResult(Struct, frozen=True):
    """A new version.

    ``branch`` is None if HEAD is detached. ``raw_bytes`` were read, ``stored_bytes`` were added
    to packs and journal. ``entries`` are the committed files by path. ``state`` is what to
    deploy, bit for bit what ``checkout`` returns; None if files were committed. ``signed``: whether
    the version or its deployment is. ``code`` is the git work tree that it was recorded with.
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
        """The Merkle root over all tensors of the version."""
        return self.commit.root

    def __repr__(self) -> str:
        """Short: a state would fill the screen of an interactive session."""
        live = f" deployed to {self.deployment.target}" if self.deployment is not None else ""
        return (
            f"<CommitResult {self.id.short} on {self.branch or 'detached HEAD'}{live}: "
            f"paths={len(self.paths)} raw_bytes={self.raw_bytes} stored_bytes={self.stored_bytes}>"
        )


def path_changes(
    parent: Manifest, manifest: Manifest, committed: Mapping[str, FileEntry]
) -> tuple[PathChange, ...]:
    """What a version does to the paths of its parent."""
    old, found = parent.by_path, []
    gone = sorted(set(old) - set(manifest.by_path))
    added = [entry for path, entry in committed.items() if path not in old]
    origins = renames([old[path] for path in gone], added)
    for path, new in committed.items():
        kind, changed, origin = "added", len(new.tensors), origins.get(path)
        if origin is not None:
            kind, changed = "renamed", 0
        elif path in old:
            kind = "unchanged" if old[path].content_id == new.content_id else "changed"
            known = {t.key: t.id for t in old[path].tensors}
            changed = sum(known.pop(t.key, None) != t.id for t in new.tensors) + len(known)
        found.append(PathChange(path, kind, changed, len(new.tensors), renamed_from=origin))
    for path in (path for path in gone if path not in origins.values()):
        count = len(old[path].tensors)
        found.append(PathChange(path, "removed", count, count))
    return tuple(found)
