"""Finds commits by their ids or the first digits of ids, and finds the ancestors of commits.

A commit is *published* when the journal contains it. The journal is the file that records every
change of the repository, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from mvc.errors import DamagedData, UnknownMetric, UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.names import printable
from mvc.repo.damage import noting
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.text import did_you_mean
from mvc.times import within

_HEX_OF_KEY = 16  # the index contains only the first 16 digits of an id


def get(snapshot: Snapshot, id_: CommitId) -> Commit:
    """The commit with this id. Raises UnknownRevision, DamagedData."""
    return placed(snapshot, id_)[1]


def placed(snapshot: Snapshot, id_: CommitId) -> tuple[Recorded, Commit]:
    """A commit and the first journal entry that published it.

    Raises UnknownRevision if there is no such commit. Raises DamagedData instead if entries of the
    journal are lost, because the commit may be in a lost entry.
    """
    pair = find(snapshot, id_)
    if pair is None:
        snapshot.check_gaps(-1, f"whether there is a commit {id_.short}")
        raise UnknownRevision(f"there is no commit {id_.short}", hint="'mvc log' lists the commits")
    return pair


def find(snapshot: Snapshot, id_: CommitId) -> tuple[Recorded, Commit] | None:
    """As ``placed``, but returns None if there is no such commit."""
    records = snapshot.publishing(id_)
    every = ((recorded, commit) for recorded in records for commit in recorded.entry.commits)
    return next((pair for pair in every if pair[1].id == id_), None)


def starting_with(snapshot: Snapshot, digits: str) -> list[Commit]:
    """All commits whose hexadecimal id begins with ``digits``, sorted by id."""
    digits = digits.lower()
    head = digits[:_HEX_OF_KEY]
    low, high = (bytes.fromhex(head.ljust(_HEX_OF_KEY, digit)) for digit in "0f")
    by_id = {
        commit.id: commit
        for entry in snapshot.publishing(low, high)
        for commit in entry.entry.commits
        if commit.id.hex().startswith(digits)
    }
    return [by_id[id_] for id_ in sorted(by_id)]


def newest_first(recorded: Recorded, commit: Commit) -> tuple[int, int]:
    """A sort key that sorts commits by publication, newest first.

    The key is the offset of the journal entry and the position of the commit in the entry.
    """
    position = next(i for i, c in enumerate(recorded.entry.commits) if c.id == commit.id)
    return -recorded.offset, -position


def unknown_metric(name: str, measured: Iterable[Iterable[str]]) -> UnknownMetric:
    """The error for a metric that no version has as a number.

    ``measured``: for each version, the names of its metrics.
    """
    names = sorted({metric for version in measured for metric in version} - {name})
    available = f"available: {', '.join(map(printable, names[:10]))}"
    none = "no version has any metric; 'mvc commit --metric K=V' records one"
    return UnknownMetric(
        f"no version has a number for the metric {printable(name[:100])}",
        hint=did_you_mean(name, names, available if names else none),
    )


class Ancestors:
    """The commits ``tips`` and all their ancestors. Ancestors are searched lazily.

    Parents are always published before their children. So the search follows the order of
    publication, newest first, and stops at the wanted commit. Commit times are not used, because
    clocks and imports may set them back. ``needs``: follow not only parents, but also
    ``Commit.needs``: versions that are needed to compute the commit again.
    """

    def __init__(
        self, snapshot: Snapshot, tips: Iterable[CommitId], *, needs: bool = False
    ) -> None:
        self._snapshot, self._needs = snapshot, needs
        self._heap: list[tuple[tuple[int, int], Commit]] = []
        self._known: set[CommitId] = set()
        for tip in tips:
            self._push(tip)

    def __contains__(self, id_: CommitId) -> bool:
        """Whether a commit is an ancestor. Reads only commits that were published after ``id_``."""
        pair = find(self._snapshot, id_)
        return pair is not None and self.holds(*pair)

    def holds(self, recorded: Recorded, commit: Commit) -> bool:
        """As ``in``, for a commit that was read already."""
        searched = newest_first(recorded, commit)
        while commit.id not in self._known and self._heap and self._heap[0][0] < searched:
            newest = heappop(self._heap)[1]
            for earlier in (*newest.parents, *(newest.needs if self._needs else ())):
                self._push(earlier)
        return commit.id in self._known

    def _push(self, id_: CommitId) -> None:
        if id_ in self._known:
            return
        recorded, commit = placed(self._snapshot, id_)
        self._known.add(id_)
        heappush(self._heap, (newest_first(recorded, commit), commit))


def ancestry(
    snapshot: Snapshot,
    starts: Iterable[CommitId],
    since: int | None = None,
    until: int | None = None,
    incomplete: list[DamagedData] | None = None,
    hidden: Ancestors | None = None,
    *,
    published: bool = False,
) -> Iterator[Commit]:
    """Yields ``starts`` and their ancestors, newest first.

    ``since``, ``until``: yield only commits with a commit time in this range. ``incomplete``: see
    ``noting``. ``hidden``: leave out these commits. Commits are sorted by commit time, or by
    publication if ``published``. Only the order of publication is sure to yield children before
    their parents, because a child can have an earlier commit time than its parent.
    """
    heap: list[tuple[int, tuple[int, int], Commit]] = []
    known: set[CommitId] = set()
    # Read the generation before the offsets from `committed_since`. The offsets are valid only in
    # this generation: a new generation begins when gc rewrites the journal.
    generation, late = (
        snapshot.generation,
        [0] if since is None else snapshot.committed_since(since),
    )
    # An imported checkpoint may be older than its parent. So commits that are older than ``since``
    # are read, too, back to the first journal entry with a commit that is not older.
    first = min(late, default=snapshot.position.offset)
    waiting = tuple(starts)
    while True:
        for id_ in waiting:
            if id_ not in known:
                known.add(id_)
                with noting(incomplete):
                    recorded, commit = placed(snapshot, id_)
                    is_early = recorded.offset < first and snapshot.generation == generation
                    if not is_early and (hidden is None or not hidden.holds(recorded, commit)):
                        time = 0 if published else -commit.time_ns
                        heappush(heap, (time, newest_first(recorded, commit), commit))
        if not heap:
            return
        commit = heappop(heap)[2]
        waiting = commit.parents
        if within(commit.time_ns, since, until):
            yield commit


def apart(snapshot: Snapshot, a: CommitId, b: CommitId) -> tuple[int, int]:
    """The number of versions reachable only from ``a``, and only from ``b``."""
    return len(leading_to(snapshot, [a], [b])), len(leading_to(snapshot, [b], [a]))


def leading_to(
    snapshot: Snapshot, tips: Iterable[CommitId], without: Iterable[CommitId]
) -> list[CommitId]:
    """The versions that are reachable from ``tips``, but not from ``without``, newest first."""
    hidden = Ancestors(snapshot, without)
    return [commit.id for commit in ancestry(snapshot, tips, hidden=hidden, published=True)]


def merge_base(snapshot: Snapshot, a: CommitId, b: CommitId) -> CommitId | None:
    """The newest published commit that is an ancestor of ``a`` and of ``b``, or None.

    Here ``a`` and ``b`` count as their own ancestors.
    """
    of_b = Ancestors(snapshot, [b])
    return next((c.id for c in ancestry(snapshot, [a], published=True) if c.id in of_b), None)
