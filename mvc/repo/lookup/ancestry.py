"""Answers whether a commit is an ancestor of another.

Parents are always published before their children. So a walk in reverse order of publication
may stop where the searched commit was published. Commit times cannot be used: clocks and imports
set them back.
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
    """Where a commit was published: (byte offset in the journal, position in the entry)."""
    return recorded.offset, next(
        i for i, c in enumerate(recorded.entry.commits) if c.id == commit.id
    )


class Ancestors:
    """The ancestors of some tips, the tips included; searched only as far as needed."""

    def __init__(self, snapshot: Snapshot, tips: Iterable[CommitId]) -> None:
        self._snapshot = snapshot
        self._heap: list[tuple[tuple[int, int], Commit]] = []
        self._known: set[CommitId] = set()
        for tip in tips:
            self._push(tip)

    def __contains__(self, id_: CommitId) -> bool:
        """Looks up each commit published after ``id_`` that was not seen before."""
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
    """Whether ``ancestor`` is ``of`` or one of its ancestors."""
    return ancestor in Ancestors(context.fresh(), [of])
