"""Pulling: a fetch, and the current branch moved forward to where the remote's is."""

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
from mvc.types import Progress


class Pulled(Struct, frozen=True):
    """``old`` and ``new``: where ``branch`` was, and is; ``restored`` its files, None if it stays.

    ``ahead``: versions of it that the remote lacks.
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
    """Fetches, and moves the current branch forward with its files.

    Raises RefConflict if that is not forward, or a training records on the branch; WouldOverwrite
    for work that is not committed, and the errors of ``fetch``.
    """
    check_worktree(store)
    at = head(store.fresh())
    if at.branch is None:
        raise RefConflict(
            "HEAD is on no branch: nothing can be moved forward",
            hint="'mvc switch BRANCH' first, or 'mvc fetch' alone",
        )
    refuse_recorded(store, at.branch)
    fetched = fetch(store, config, remote, progress=progress)
    theirs = f"{remote.name}/{at.branch}"
    new = store.snapshot.ref(REMOTE + theirs)
    if not isinstance(new, CommitId):
        raise UnknownRevision(
            f"{remote.name} has no branch {at.branch}",
            hint=f"'mvc push {remote.name} {at.branch}' makes it there; 'mvc remote show "
            f"{remote.name}' lists what there is",
        )
    ahead, behind = (0, 1) if at.commit is None else apart(store.fresh(), at.commit, new)
    if ahead and behind:
        raise RefConflict(
            f"{at.branch} and {theirs} have gone apart: versions only here: {ahead}, only there: "
            f"{behind} (non-fast-forward)",
            hint=f"'mvc merge {theirs}' merges them; 'mvc switch -c NAME', then "
            f"'mvc push{remote.typed}' gives yours a branch of their own; 'mvc switch -c NAME "
            f"{theirs}' goes on from there, 'mvc push --force{remote.typed}' from here",
        )
    if not behind:
        return Pulled(fetched, at.branch, at.commit, at.commit or new, ahead=ahead)
    restored = fast_forward(store, at, new, "pull", progress=progress)
    return Pulled(fetched, at.branch, at.commit, new, restored=restored)
