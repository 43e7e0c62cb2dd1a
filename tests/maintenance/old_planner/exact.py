"""The cheapest layout within a recovery bound, with deltas between parent and child only. Exact.

Chains: a layout falls into segments joined by kept deltas. A segment never needs two sources:
between two of them is a delta that no recovery uses. So the optimum is a partition into
segments of one source each, found by dynamic programming in O(n log n); the versions that a
source reaches form a window, which sliding minima answer.

Trees: what one source serves is connected and needs no second source either. For every version
v and every source s that could serve it, the cost of v's descendants is the sum over its
children of the cheaper of: served by s as well, or by a source of their own. Rows over all
sources are numpy arrays, so n versions take n row operations of length n. Where recoveries have
a price, it joins the cost of the version in every row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.maintenance.repack.solve import Edge, Nodes, Selected, Tree

MOST = 10_000  # versions of one tree; larger ones take too long
_NEVER = np.int64(1) << 60

_Row = NDArray[np.int64]


def cheapest_tree(
    versions: Nodes, tree: Tree, bound: int, prices: Sequence[float] | None = None
) -> Selected | None:
    """The smallest layout of a tree with no recovery above ``bound`` ns; None if there is none.

    The tree's versions are in preorder, so that a family is a slice. ``prices``: of each of them,
    what a nanosecond of its recovery costs in bytes; one with the price 0 is not stored.
    """
    return _Search(versions, tree, bound, prices).run()


class _Best(Struct):
    """The cheapest way to store a family by itself. ``source``: of its first version, or none."""

    bytes: int
    source: int | None


class _Search:
    def __init__(
        self, versions: Nodes, tree: Tree, bound: int, prices: Sequence[float] | None
    ) -> None:
        self._versions, self._tree, self._bound = versions, tree, bound
        self._prices = prices
        count = len(tree.nodes)
        self._apart = [0] * count  # bytes of the families of children, each stored by itself
        self._full = np.array([versions.full_bytes[i] for i in tree.nodes], np.int64)
        self._bytes = np.zeros(count, np.int64)
        self._ns = np.zeros(count, np.int64)
        self._barriers = np.zeros(count, np.int64)  # forward deltas between the first and each
        self._end = list(range(1, count + 1))  # of each family's slice
        depth = np.zeros(count, np.int64)
        for i, link in enumerate(tree.up):
            if link is None:
                continue
            edge = versions.edges[link[1]]
            self._bytes[i], self._ns[i] = edge.bytes, edge.ns
            depth[i] = depth[link[0]] + edge.ns
            self._barriers[i] = self._barriers[link[0]] + edge.forward
        for i in range(count - 1, 0, -1):
            link = tree.up[i]
            assert link is not None
            self._end[link[0]] = max(self._end[link[0]], self._end[i])
        # Of the version at hand: time from every source, and whether the way up is barred.
        self._away = depth + np.array([versions.full_ns[i] for i in tree.nodes], np.int64)
        self._barred = self._barriers > 0
        self._costs: dict[int, _Row] = {}  # of the families of children met so far
        self._own: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * count
        self._best: list[_Best | None] = [None] * count

    def run(self) -> Selected | None:
        """Depth first, with the rows moved along every edge and back."""
        count = len(self._tree.nodes)
        path = [0]
        for i in range(1, count + 1):
            link = self._tree.up[i] if i < count else None
            parent = -1 if link is None else link[0]
            while path and path[-1] != parent:
                self._leave(path.pop(), path[-1] if path else None)
            if i < count:
                self._move(i, down=True)
                path.append(i)
        best = self._best[0]
        return None if best is None else self._unwound()

    def _move(self, i: int, *, down: bool) -> None:
        """From the parent to version i, or back up."""
        step = self._ns[i] if down else -self._ns[i]
        family = slice(i, self._end[i])
        self._away += step
        self._away[family] -= 2 * step
        above = i if down else self._above(i)
        self._barred[family] = self._barriers[family] > self._barriers[above]

    def _above(self, i: int) -> int:
        link = self._tree.up[i]
        assert link is not None
        return link[0]

    def _leave(self, i: int, parent: int | None) -> None:
        """All descendants of i are known: so is its row."""
        row = self._costs.pop(i, None)
        if row is None:
            row = np.zeros(len(self._away), np.int64)
        price = None if self._prices is None else self._prices[i]
        if price is not None:
            row += np.minimum(self._away * price, _NEVER).astype(np.int64)
        row[(self._away > self._bound) | self._barred] = _NEVER
        if price == 0:
            row[:] = _NEVER
        family = slice(i, self._end[i])
        own = np.minimum(row[family] + self._full[family], _NEVER)
        at = int(np.argmin(own))
        if own[at] < _NEVER:
            self._best[i] = _Best(int(own[at]), i + at)
        if price == 0:
            self._best[i] = _Best(self._apart[i], None)
        if parent is None:
            return
        row += self._bytes[i]
        best = self._best[i]
        alone = _NEVER if best is None else np.int64(best.bytes)
        self._apart[parent] = min(self._apart[parent] + int(alone), int(_NEVER))
        cut = row > alone
        cut[family] = False  # a source inside the family that serves the parent serves i, too
        self._own[i] = np.packbits(cut)
        np.copyto(row, alone, where=cut)
        np.minimum(row, _NEVER, out=row)
        known = self._costs.get(parent)
        self._costs[parent] = row if known is None else np.minimum(known + row, _NEVER)
        self._move(i, down=False)

    def _unwound(self) -> Selected:
        served: list[int | None] = []
        edges = []
        for i, link in enumerate(self._tree.up):
            source = None if link is None else served[link[0]]
            if source is not None and not self._cut(i, source):
                served.append(source)
                assert link is not None
                edges.append(link[1])
                continue
            best = self._best[i]
            assert best is not None
            served.append(best.source)
        return Selected(
            frozenset(self._tree.nodes[s] for s in served if s is not None), frozenset(edges)
        )

    def _cut(self, i: int, source: int) -> bool:
        return bool(self._own[i][source >> 3] >> (7 - (source & 7)) & 1)


Segment = tuple[int, int, int]
"""First version, source, last version."""


def cheapest_chain(
    full_bytes: Sequence[int], full_ns: Sequence[int], edges: Sequence[Edge], bound: int
) -> list[Segment] | None:
    """The smallest layout of a chain with no recovery above ``bound`` ns; None if there is none.

    ``edges[i]`` joins versions i and i + 1.
    """
    count = len(full_bytes)
    sizes = list(accumulate((edge.bytes for edge in edges), initial=0))
    times = list(accumulate((edge.ns for edge in edges), initial=0))
    least = [0]  # bytes for the first i versions; None if it cannot be done
    came: list[tuple[int, int]] = []  # (first, source) of the segment that ends at i
    minima = _WindowMinima()
    waiting: list[tuple[int, int, int, int]] = []  # (bytes less the deltas', source, first, reach)
    barrier = 0  # no source at or after it reaches versions before it
    for i in range(count):
        if i and edges[i - 1].forward:
            barrier = i
        if least[i] >= 0:
            minima.push(i, least[i] - sizes[i])
        room = bound - full_ns[i]
        if room >= 0:
            low = max(barrier, bisect_left(times, times[i] - room))
            if (best := minima.least(low)) is not None:
                reach = bisect_right(times, times[i] + room) - 1
                heappush(waiting, (full_bytes[i] + best[1], i, best[0], reach))
        while waiting and waiting[0][3] < i:
            heappop(waiting)
        least.append(waiting[0][0] + sizes[i] if waiting else -1)
        came.append((waiting[0][2], waiting[0][1]) if waiting else (-1, -1))
    return _unwound(came) if least[count] >= 0 else None


class _WindowMinima:
    """The least value among those pushed at or after a place."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._values: list[int] = []  # ascending: a later, smaller value hides earlier ones

    def push(self, place: int, value: int) -> None:
        while self._values and self._values[-1] >= value:
            self._values.pop()
            self._places.pop()
        self._places.append(place)
        self._values.append(value)

    def least(self, low: int) -> tuple[int, int] | None:
        """(place, value) of the least one from ``low`` on."""
        at = bisect_left(self._places, low)
        return (self._places[at], self._values[at]) if at < len(self._places) else None


def _unwound(came: Sequence[tuple[int, int]]) -> list[Segment]:
    found: list[Segment] = []
    last = len(came) - 1
    while last >= 0:
        first, source = came[last]
        found.append((first, source, last))
        last = first - 1
    return found[::-1]
