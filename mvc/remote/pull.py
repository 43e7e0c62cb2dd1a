"""Pulls: fetches, then fast-forwards the current branch to its tracking ref."""

from __future__ import annotations

from msgspec import Struct

from mvc.errors import RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.names import REMOTE
from mvc.remote.fetch import fetch
from mvc.remote.remotes import Remote
from mvc.remote.transfer import Transferred
from mvc.repo.checkout.checkout import Restored, fast_forward
from mvc.repo.config import Config
from mvc.repo.lookup.commits import apart
from mvc.repo.lookup.refs import head
from mvc.repo.recording import refuse_recorded
from mvc.repo.worktree.worktree import check_worktree
from mvc.store.store import Store
from mvc.text import count
from mvc.types import Progress


class Pulled(Struct, frozen=True):
    """The result of a pull.

    ``old`` and ``new``: the commit of ``branch`` before and after the pull. ``restored``: the
    written files, or None if the branch did not move. ``ahead``: the number of versions of the
    branch that the remote lacks.
    """

    fetched: Transferred
    branch: str
    old: CommitId | None
    new: CommitId
    ahead: int = 0
    restored: Restored | None = None


def pull(
    store: Store, config: Config, remote: Remote, *, progress: Progress | None = None
) -> Pulled:
    """Fetches, fast-forwards the current branch, and writes the changed files.

    Raises RefConflict if HEAD is detached, if the branch has diverged, or if a training records
    versions on the branch; UnknownRevision if the remote lacks the branch; WouldOverwrite for
    uncommitted work; and the errors of ``fetch``.
    """
    check_worktree(store)
    at = head(store.fresh())
    if at.branch is None:
        raise RefConflict(
            "HEAD is detached: there is no branch to move forward",
            hint="'mvc switch BRANCH' first, or only 'mvc fetch'",
        )
    refuse_recorded(store, at.branch)
    fetched = fetch(store, config, remote, progress=progress)
    theirs = f"{remote.name}/{at.branch}"
    new = store.snapshot.ref(REMOTE + theirs)
    if not isinstance(new, CommitId):
        raise UnknownRevision(
            f"{remote.name} has no branch {at.branch}",
            hint=f"'mvc push {remote.name} {at.branch}' creates it; 'mvc remote show "
            f"{remote.name}' lists its branches",
        )
    ahead, behind = (0, 1) if at.commit is None else apart(store.fresh(), at.commit, new)
    if ahead and behind:
        raise RefConflict(
            f"{at.branch} and {theirs} have diverged ({count(ahead, 'version')} here, {behind} "
            "there)",
            hint=f"merge: 'mvc merge {theirs}'; or push yours to a new branch: 'mvc switch -c "
            f"NAME', 'mvc push{remote.typed}'; or discard one side: 'mvc switch -c NAME {theirs}' "
            f"continues theirs, 'mvc push --force{remote.typed}' replaces theirs",
        )
    if not behind:
        return Pulled(fetched, at.branch, at.commit, at.commit or new, ahead=ahead)
    restored = fast_forward(store, at, new, "pull", progress=progress)
    return Pulled(fetched, at.branch, at.commit, new, restored=restored)
