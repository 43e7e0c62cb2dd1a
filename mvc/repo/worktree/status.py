"""Compares the working tree with HEAD (``mvc status``).

Every tracked file is hashed, because modification times are unreliable. Files that match
``.mvcignore`` are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mvc.errors import SourceChanged
from mvc.ids import CommitId
from mvc.model.manifest import FileEntry
from mvc.repo.content.compare import compare_files, renames
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.worktree.worktree import (
    FoundFile,
    check_worktree,
    entry_of,
    files_in,
    is_python_state,
)
from mvc.store.store import Store
from mvc.text import text_table


class FileChange(Struct, frozen=True):
    """How one path differs from HEAD.

    ``kind``: unchanged, modified, missing (a tracked path has no file) or renamed (an untracked
    file has the bytes of the missing file ``old``). ``detail``: a text for users. ``not_written``:
    whether the path is a state that was committed from Python, and so has no file. ``same_as``: for
    a modified file, another version with the same bytes or, without such a version, the same
    tensors.
    """

    path: str
    kind: str
    detail: str = ""
    old: str = ""
    not_written: bool = False
    same_as: CommitId | None = None


class Status(Struct, frozen=True):
    """The differences between the working tree and HEAD.

    ``branch``: None if HEAD is detached. ``head``: None before the first commit. ``changes`` has
    all tracked files. ``dead_links``: symbolic links to files that do not exist.
    """

    branch: str | None
    head: CommitId | None
    changes: tuple[FileChange, ...]
    untracked: tuple[str, ...]
    dead_links: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no tracked file differs from HEAD. States from Python need no file."""
        return all(change.kind == "unchanged" or change.not_written for change in self.changes)

    @property
    def folded(self) -> tuple[str, ...]:
        """The untracked files. A folder without tracked files is one name, such as ``runs/``."""
        known = {
            above
            for change in self.changes
            for path in (change.old or change.path, change.path)
            for above in _above(path)
        }
        names = (
            next((f"{above}/" for above in _above(name) if above not in known), name)
            for name in self.untracked
        )
        return tuple(dict.fromkeys(names))

    def __repr__(self) -> str:
        return text_table(self._rows()) or "<Status: no changes since HEAD>"

    def _rows(self) -> list[Sequence[str]]:
        changed = [c for c in self.changes if c.kind != "unchanged" and not c.not_written]
        rows: list[Sequence[str]] = [(c.kind, c.path, c.detail) for c in changed]
        rows += [("untracked", name, "") for name in self.folded]
        return [*rows, *(("dead link", name, "") for name in self.dead_links)]


def _above(name: str) -> list[str]:
    """The folders above a file, the outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def status(store: Store) -> Status:
    """Compares the working tree with HEAD."""
    check_worktree(store)
    at = head(store.fresh())
    tracked = manifests.of_commit(store, at.commit).by_path
    changes = {path: _change(store, entry) for path, entry in tracked.items()}
    dead: set[str] = set()
    files = files_in(store.fs, store.root, dead=dead)
    untracked = sorted((f for f in files if f.name not in tracked), key=lambda f: f.name)
    missing = [
        tracked[path] for path, c in changes.items() if c.kind == "missing" and not c.not_written
    ]
    moved = _renames(store, missing, untracked)
    for new, old in moved.items():
        changes[old] = FileChange(new, "renamed", f"was {old}", old)
    rows = tuple(sorted(changes.values(), key=lambda change: change.path))
    names = tuple(f.name for f in untracked if f.name not in moved)
    return Status(at.branch, at.commit, rows, names, dead_links=tuple(sorted(dead)))


def _change(store: Store, entry: FileEntry) -> FileChange:
    identity = store.fs.stat(store.root / entry.path)
    if identity is None:
        return FileChange(entry.path, "missing", not_written=is_python_state(entry))
    if not identity.is_file:
        return FileChange(entry.path, "missing", "its path is not a file")
    try:
        now = entry_of(store, entry.path, entry)
    except SourceChanged:
        return FileChange(entry.path, "modified", "it is being written")
    if now.content_id == entry.content_id:
        return FileChange(entry.path, "unchanged")
    from mvc.repo.worktree.identify import earlier

    if now.size != entry.size:
        detail = f"{entry.size:,} -> {now.size:,} bytes"
    else:
        difference = compare_files(entry, now, entry.path)
        detail = "no tensor changed, other bytes did" if difference.tensors else ""
        if difference.changed_tensors:
            detail = f"{difference.changed_tensors} of {len(difference.tensors)} tensors changed"
    return FileChange(entry.path, "modified", detail, same_as=earlier(store, now))


def _renames(
    store: Store, missing: Sequence[FileEntry], untracked: Sequence[FoundFile]
) -> dict[str, str]:
    """Maps the new path of each renamed file to its old path."""
    sizes = {entry.size for entry in missing}
    candidates = (entry_of(store, f.name) for f in untracked if f.identity.size in sizes)
    return renames(missing, candidates)
