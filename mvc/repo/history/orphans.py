"""Finds orphans: versions that only a detached HEAD led to, and no branch or tag."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mvc.ids import CommitId
from mvc.repo.context import Context
from mvc.repo.lookup import commits, refs
from mvc.repo.lookup.ancestry import Ancestors
from mvc.store.snapshot import Snapshot

__all__ = ["Orphans", "orphans"]


@dataclass(frozen=True, slots=True)
class Orphans:
    """``count`` orphaned versions, of which ``newest`` is the tip.

    ``deployed`` of them were deployed or are ancestors of a deployed one; gc keeps those.
    """

    newest: CommitId
    count: int
    deployed: int


def orphans(context: Context, tip: CommitId, to: CommitId | None = None) -> Orphans | None:
    """``tip`` and its ancestors that no branch, no tag and not ``to`` leads to; None if none."""
    snapshot = context.fresh()
    names = {ref.commit for ref in (*refs.branches(context), *refs.tags(context))}
    reached = Ancestors(snapshot, names if to is None else names | {to})
    found: dict[CommitId, int] = {}  # where each was published
    waiting = [tip]
    while waiting:
        id_ = waiting.pop()
        if id_ not in found and id_ not in reached:
            recorded, commit = commits.placed(snapshot, id_)
            found[id_] = recorded.offset
            waiting.extend(commit.parents)
    if not found:
        return None
    # A deployment that keeps one of them was recorded after the first was published.
    kept = Ancestors(snapshot, _deployed_since(snapshot, min(found.values())))
    return Orphans(tip, len(found), sum(id_ in kept for id_ in found))


def _deployed_since(snapshot: Snapshot, offset: int) -> Collection[CommitId]:
    """The versions of deployments recorded from a journal offset on, retracted ones included."""
    found = set()
    for target in snapshot.targets():

        def look(target: str = target) -> list[CommitId]:
            return [
                deployment.commit
                for at in snapshot.deployments_on(target, offset)
                for deployment in snapshot.entry(at).entry.deployments
            ]

        found.update(snapshot.retry_on_rewrite(look))
    return found
