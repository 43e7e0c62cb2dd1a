"""The planning graph: the cost of each content in full, and of each delta between two.

A *layout* says which contents are stored in full (sources) and which deltas are kept. A
content is recovered along the cheapest path from any source. Sizes are bytes, times whole
nanoseconds, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

from msgspec import Struct

MOST = 2000
"""Nodes of a chain that are planned together: the rows of ``tree`` take their square."""


class Edge(Struct, frozen=True):
    """The delta from content ``a`` to the later ``b``; reversible unless ``forward`` only."""

    a: int
    b: int
    bytes: int
    ns: int
    forward: bool = False


class Selected(Struct, frozen=True):
    """``sources``: contents in full; ``edges``: positions of kept deltas in ``Nodes.edges``."""

    sources: frozenset[int]
    edges: frozenset[int]


class Tree(Struct, frozen=True):
    """Nodes that descend from one: parents before children, and each one's edge to its parent.

    ``up[i]`` is the position in ``nodes`` of the parent and the edge; None for the first.
    """

    nodes: Sequence[int]
    up: Sequence[tuple[int, int] | None]


class Nodes(Struct, frozen=True, dict=True):
    """Content ``i`` costs ``full_bytes[i]`` and ``full_ns[i]`` in full; one edge at most makes it
    from an earlier one.
    """

    full_bytes: Sequence[int]
    full_ns: Sequence[int]
    edges: Sequence[Edge]

    def __len__(self) -> int:
        return len(self.full_bytes)

    @cached_property
    def around(self) -> list[list[tuple[int, int]]]:
        """For each content (neighbour that its delta leads to, edge)."""
        table: list[list[tuple[int, int]]] = [[] for _ in range(len(self))]
        for i, edge in enumerate(self.edges):
            table[edge.a].append((edge.b, i))
            if not edge.forward:
                table[edge.b].append((edge.a, i))
        return table

    @cached_property
    def parents(self) -> list[tuple[int, int] | None]:
        """For each content its parent and the edge from there."""
        found: list[tuple[int, int] | None] = [None] * len(self)
        for i, edge in enumerate(self.edges):
            found[edge.b] = (edge.a, i)
        return found

    @cached_property
    def trees(self) -> list[Tree]:
        """The contents by descent, each tree depth first, the largest family first.

        A family of more than ``MOST`` is a tree of its own, although a delta leads there.
        """
        families = [1] * len(self)
        children: list[list[int]] = [[] for _ in range(len(self))]
        roots: list[int] = []
        for node in reversed(range(len(self))):
            link = self.parents[node]
            if link is None or families[node] >= MOST:
                roots.append(node)
            else:
                families[link[0]] += families[node]
                children[link[0]].append(node)
        return [self._tree(root, families, children) for root in reversed(roots)]

    def _tree(self, root: int, families: Sequence[int], children: Sequence[Sequence[int]]) -> Tree:
        nodes: list[int] = []
        up: list[tuple[int, int] | None] = []
        place: dict[int, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            place[node] = len(nodes)
            nodes.append(node)
            above = self.parents[node]
            up.append(None if above is None or node == root else (place[above[0]], above[1]))
            stack.extend(sorted(children[node], key=families.__getitem__))
        return Tree(nodes, up)

    @property
    def everything(self) -> Selected:
        """Every content in full and every delta within a tree: the fastest layout."""
        edges = (link[1] for tree in self.trees for link in tree.up if link is not None)
        return Selected(frozenset(range(len(self))), frozenset(edges))

    def stored(self, layout: Selected) -> int:
        """Bytes of a layout."""
        full = sum(self.full_bytes[i] for i in layout.sources)
        return full + sum(self.edges[i].bytes for i in layout.edges)

    def recovery(self, layout: Selected) -> dict[int, int]:
        """Nanoseconds to recover each content that can be recovered (Dijkstra)."""
        found: dict[int, int] = {}
        heap = [(self.full_ns[i], i) for i in layout.sources]
        heapify(heap)
        while heap:
            ns, node = heappop(heap)
            if node in found:
                continue
            found[node] = ns
            for other, edge in self.around[node]:
                if other not in found and edge in layout.edges:
                    heappush(heap, (ns + self.edges[edge].ns, other))
        return found
