"""switch: make a branch the current one and write its files."""

from __future__ import annotations

from mvc.errors import UnknownRevision
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.repo.checkout.checkout import Restored, restore_all
from mvc.repo.context import Context, Progress
from mvc.repo.lookup.revisions import resolve
from mvc.store.journal.entries import Entry, RefChange

__all__ = ["switch"]


def switch(
    context: Context,
    branch: str,
    *,
    create: bool = False,
    start: str | CommitId | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Restored | None:
    """Writes the files of ``branch`` and moves HEAD to it.

    With ``create`` the branch is made at ``start`` (default HEAD), in the same operation that
    moves HEAD: if the checkout is refused or fails, there is no branch. Returns None if the
    branch has no version yet. Raises UnknownRevision for an unknown branch, InvalidName and
    RefConflict for a new one, StateForgotten, WouldOverwrite.
    """
    at = refs.head(context)
    if create and at.commit is None and start is None:
        refs.check_branch(branch)
        _point_head(context, branch)
        return None
    if create:
        commit = resolve(context, "HEAD" if start is None else start)
    else:
        found = next((b for b in refs.branches(context) if b.name == branch), None)
        if found is None:
            raise UnknownRevision(
                f"there is no branch {branch}", hint="make it with 'mvc switch -c NAME'"
            )
        commit = found.commit
    return restore_all(context, commit, branch, create=create, force=force, progress=progress)


def _point_head(context: Context, branch: str) -> None:
    def make() -> Entry:
        change = RefChange("HEAD", context.store.ref("HEAD"), branch)
        return Entry("switch", context.store.clock.now_ns(), refs=(change,))

    context.store.publish(make)
