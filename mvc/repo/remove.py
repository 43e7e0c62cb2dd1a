"""rm: stages the removal of paths for the next commit."""

from __future__ import annotations

from collections.abc import Sequence

from mvc.errors import UnknownPath, WouldOverwrite
from mvc.model.manifest import FileEntry
from mvc.model.names import printable
from mvc.repo.checkout import checkout, plan
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head, staged_removals
from mvc.repo.worktree.worktree import entry_of
from mvc.store.journal.entries import Entry

__all__ = ["remove"]


def remove(
    context: Context, paths: Sequence[str], *, cached: bool = False, force: bool = False
) -> tuple[str, ...]:
    """Stages the removal of tracked paths and deletes their files; returns the paths.

    With ``cached`` the files stay. Raises UnknownPath for a path that HEAD does not have. Raises
    WouldOverwrite for a file that differs from HEAD, unless ``force``; then nothing was changed.
    """
    entries = _tracked(context, paths)
    fs, root = context.store.fs, context.root
    present = [] if cached else [e for e in entries if fs.stat(root / e.path) is not None]
    plan.refuse_links(context, present)
    for entry in present:
        if not force and entry_of(context, entry.path).content_id != entry.content_id:
            raise WouldOverwrite(
                f"{entry.path} holds work that is not committed",
                hint="commit it, keep it with --cached, or add -f to lose it",
            )
    names = tuple(e.path for e in entries)

    def make() -> Entry:
        gone = tuple(sorted({*staged_removals(context), *names}))
        return Entry("rm", context.store.clock.now_ns(), removed=gone)

    context.store.publish(make)
    for entry in present:
        fs.unlink(root / entry.path, missing_ok=True, within=root)
    return names


def _tracked(context: Context, paths: Sequence[str]) -> list[FileEntry]:
    """HEAD's entries that ``paths`` name."""
    manifest = manifests.of_commit(context, head(context).commit)
    if not manifest.entries:
        raise UnknownPath("no file is tracked yet", hint="see 'mvc status'")
    chosen: dict[str, FileEntry] = {}
    for path in paths:
        try:
            chosen |= {entry.path: entry for entry in checkout.select(manifest, [path])}
        except UnknownPath as error:
            raise UnknownPath(
                f"{printable(path)} is not tracked: HEAD has no such path",
                hint="'mvc ls' lists the tracked paths",
            ) from error
    return list(chosen.values())
