"""The cheapest layout of one tree of contents. Exact.

A layout falls into parts that one source each serves: such a part is connected, and needs no
second source. For every content v and every source s that could serve it, the cost of v's
descendants is the sum over its children of the cheaper of: served by s as well, or by a source of
their own. Rows over all sources are numpy arrays, so n contents take n row operations of length n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.maintenance.repack.solve.graph import Nodes, Selected, Tree

_NEVER = np.int64(1) << 60

_Row = NDArray[np.int64]


def cheapest_tree(
    contents: Nodes, tree: Tree, prices: Sequence[float], limits: Sequence[float]
) -> Selected | None:
    """The cheapest layout of a tree that keeps all limits; None if there is none.

    ``prices``: of each of the tree's contents, what a nanosecond of its recovery costs in bytes;
    one with the price 0 is not stored. ``limits``: the most nanoseconds of its recovery.
    """
    if len(tree.nodes) == 1:
        (node,) = tree.nodes
        if prices[0] and contents.full_ns[node] > limits[0]:
            return None
        return Selected(frozenset(tree.nodes if prices[0] else ()), frozenset())
    return _Search(contents, tree, prices, limits).run()


class _Best(Struct):
    """The cheapest way to store a family by itself. ``source``: of its first content, or none."""

    bytes: int
    source: int | None


class _Search:
    """The tree's contents are in preorder, so that a family is a slice."""

    def __init__(
        self,
        contents: Nodes,
        tree: Tree,
        prices: Sequence[float],
        limits: Sequence[float],
    ) -> None:
        self._tree, self._prices, self._limits = tree, prices, limits
        count = len(tree.nodes)
        self._apart = [0] * count  # bytes of the families of children, each stored by itself
        self._full = np.array([contents.full_bytes[i] for i in tree.nodes], np.int64)
        self._bytes = np.zeros(count, np.int64)
        self._ns = np.zeros(count, np.int64)
        self._barriers = np.zeros(count, np.int64)  # forward deltas between the first and each
        self._end = list(range(1, count + 1))  # of each family's slice
        depth = np.zeros(count, np.int64)
        for i, link in enumerate(tree.up):
            if link is None:
                continue
            edge = contents.edges[link[1]]
            self._bytes[i], self._ns[i] = edge.bytes, edge.ns
            depth[i] = depth[link[0]] + edge.ns
            self._barriers[i] = self._barriers[link[0]] + edge.forward
        for i in range(count - 1, 0, -1):
            link = tree.up[i]
            assert link is not None
            self._end[link[0]] = max(self._end[link[0]], self._end[i])
        # Of the content at hand: time from every source, and whether the way up is barred.
        self._away = depth + np.array([contents.full_ns[i] for i in tree.nodes], np.int64)
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
        """From the parent to content i, or back up."""
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
        price = self._prices[i]
        row += np.minimum(self._away * price, _NEVER).astype(np.int64)
        row[(self._away > self._limits[i]) | self._barred] = _NEVER
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
