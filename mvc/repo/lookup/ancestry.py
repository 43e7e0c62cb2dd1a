"""Which commits lead to which: parents are always published before their children.

So a walk in reverse order of publication can stop, with certainty, at the place where
a commit was published; commit times prove nothing, since clocks and imports set them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.context import Context
from mvc.repo.lookup import commits
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot

__all__ = ["Ancestors", "is_ancestor", "place"]


def place(recorded: Recorded, commit: Commit) -> tuple[int, int]:
    """Where a commit was published: journal offset, position in the entry."""
    return recorded.offset, next(
        i for i, c in enumerate(recorded.entry.commits) if c.id == commit.id
    )


class Ancestors:
    """The commits that some tips lead to, themselves included; found as far as asked for."""

    def __init__(self, snapshot: Snapshot, tips: Iterable[CommitId]) -> None:
        self._snapshot = snapshot
        self._heap: list[tuple[tuple[int, int], Commit]] = []
        self._known: set[CommitId] = set()
        for tip in tips:
            self._push(tip)

    def __contains__(self, id_: CommitId) -> bool:
        """Costs a look-up for every commit published after ``id_`` that was not yet seen."""
        found = commits.find(self._snapshot, id_)
        if found is None:
            return False
        offset, position = place(*found)
        while self._heap and self._heap[0][0] < (-offset, -position):
            for parent in heappop(self._heap)[1].parents:
                self._push(parent)
        return id_ in self._known

    def _push(self, id_: CommitId) -> None:
        if id_ in self._known:
            return
        recorded, commit = commits.placed(self._snapshot, id_)
        self._known.add(id_)
        offset, position = place(recorded, commit)
        heappush(self._heap, ((-offset, -position), commit))


def is_ancestor(context: Context, ancestor: CommitId, of: CommitId) -> bool:
    """Whether ``of`` is ``ancestor`` or comes after it."""
    return ancestor in Ancestors(context.fresh(), [of])
