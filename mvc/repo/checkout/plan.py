"""Decides what checkout may overwrite or delete: only files that a named version holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal

from mvc.errors import WouldOverwrite
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.context import Context
from mvc.repo.worktree.identify import is_held
from mvc.repo.worktree.worktree import entry_of

__all__ = ["CheckoutPlan", "refuse_links"]


class CheckoutPlan:
    """Decides what is written and deleted, before anything is.

    ``old`` is the version that the working tree was written from.
    """

    def __init__(self, context: Context, old: Manifest, force: bool) -> None:
        self._context = context
        self._old = old
        self._force = force

    def writes(self, entries: Sequence[FileEntry]) -> tuple[list[FileEntry], list[FileEntry]]:
        """(entries to write, unchanged entries). Raises WouldOverwrite if work would be lost."""
        writes, same, lost = [], [], []
        for entry in entries:
            present = self._present(entry.path)
            if isinstance(present, FileEntry) and present.content_id == entry.content_id:
                same.append(entry)
                continue
            if present is not None and not self._may_go(present):
                lost.append(entry.path)
            writes.append(entry)
        self._refuse(lost)
        refuse_links(self._context, writes)
        return writes, same

    def deletes(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Those of ``entries`` that have a file. Raises WouldOverwrite if work would be lost."""
        found = [(e, self._present(e.path)) for e in entries]
        self._refuse([e.path for e, p in found if p is not None and not self._may_go(p)])
        deletes = [e for e, present in found if present is not None]
        refuse_links(self._context, deletes)
        return deletes

    def _may_go(self, present: FileEntry | Literal["no file"]) -> bool:
        """Whether a file may be lost: with ``force``, or if a named version has it at its path."""
        if self._force:
            return True
        if not isinstance(present, FileEntry):
            return False
        old = self._old.by_path.get(present.path)
        if old is not None and old.content_id == present.content_id:
            return True
        return is_held(self._context, present)

    def _present(self, path: str) -> FileEntry | Literal["no file"] | None:
        """The file at a path, as an entry; None if nothing is there."""
        identity = self._context.store.fs.stat(self._context.root / path)
        if identity is None:
            return None
        if not identity.is_file:
            return "no file"
        return entry_of(self._context, path)

    def _refuse(self, lost: list[str]) -> None:
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise WouldOverwrite(
                f"{lost[0]}{more} would be overwritten, but holds work that is not committed",
                hint="commit it, or add -f to lose it",
            )


def refuse_links(context: Context, entries: Sequence[FileEntry]) -> None:
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
