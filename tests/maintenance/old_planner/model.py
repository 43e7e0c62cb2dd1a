"""The planning graph: the cost of each version in full and of each delta between two.

A *layout* says which versions are stored in full (sources) and which deltas are kept. A
version is recovered along the cheapest path from any source. Sizes are bytes, times whole
nanoseconds, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

from msgspec import Struct


class Edge(Struct, frozen=True):
    """The delta from version ``a`` to ``b``, its child or, where ``long``, a later version.

    It is reversible unless it is ``forward`` only. ``span``: generations between the two.
    """

    a: int
    b: int
    bytes: int
    ns: int
    forward: bool = False
    long: bool = False
    span: int = 1


class Selected(Struct, frozen=True):
    """``sources``: versions in full; ``edges``: positions of kept deltas in ``Versions.edges``."""

    sources: frozenset[int]
    edges: frozenset[int]


class Price(Struct, frozen=True):
    """Bytes of a layout; the longest and the mean recovery in nanoseconds."""

    bytes: int
    worst: int
    mean: float


class Tree(Struct, frozen=True):
    """Versions that descend from one: parents before children, and each one's edge to its parent.

    ``up[i]`` is the position in ``nodes`` of the parent and the edge; None for the first.
    """

    nodes: Sequence[int]
    up: Sequence[tuple[int, int] | None]

    @property
    def is_chain(self) -> bool:
        return all(link is None or link[0] == i - 1 for i, link in enumerate(self.up))


class Versions(Struct, frozen=True, dict=True):
    """Version ``i`` costs ``full_bytes[i]`` and ``full_ns[i]`` in full.

    Every version has at most one edge that is not long and ends in it: the one from its parent.
    ``shared`` are bytes that any layout stores once (blobs that all versions have).
    """

    full_bytes: Sequence[int]
    full_ns: Sequence[int]
    edges: Sequence[Edge]
    shared: int = 0

    def __len__(self) -> int:
        return len(self.full_bytes)

    @cached_property
    def _cache(self) -> dict[Selected, list[int | None]]:
        return {}

    @cached_property
    def has_long(self) -> bool:
        return any(edge.long for edge in self.edges)

    @cached_property
    def around(self) -> list[list[tuple[int, int]]]:
        """For each version (neighbour that its delta leads to, edge)."""
        table: list[list[tuple[int, int]]] = [[] for _ in range(len(self))]
        for i, edge in enumerate(self.edges):
            table[edge.a].append((edge.b, i))
            if not edge.forward:
                table[edge.b].append((edge.a, i))
        return table

    @cached_property
    def parents(self) -> list[tuple[int, int] | None]:
        """For each version its parent and the edge from there."""
        found: list[tuple[int, int] | None] = [None] * len(self)
        for i, edge in enumerate(self.edges):
            if not edge.long:
                found[edge.b] = (edge.a, i)
        return found

    @cached_property
    def children(self) -> list[list[int]]:
        table: list[list[int]] = [[] for _ in range(len(self))]
        for child, link in enumerate(self.parents):
            if link is not None:
                table[link[0]].append(child)
        return table

    @cached_property
    def trees(self) -> list[Tree]:
        """The versions by descent; in each tree depth first, the largest family first."""
        heavy = self._families()
        found = []
        for root, link in enumerate(self.parents):
            if link is not None:
                continue
            nodes: list[int] = []
            up: list[tuple[int, int] | None] = []
            place: dict[int, int] = {}
            stack = [root]
            while stack:
                node = stack.pop()
                place[node] = len(nodes)
                nodes.append(node)
                above = self.parents[node]
                up.append(None if above is None else (place[above[0]], above[1]))
                stack.extend(sorted(self.children[node], key=lambda child: heavy[child]))
            found.append(Tree(nodes, up))
        return found

    def _families(self) -> list[int]:
        """How many versions descend from each, itself included."""
        order = [root for root, link in enumerate(self.parents) if link is None]
        for node in order:
            order.extend(self.children[node])
        sizes = [1] * len(self)
        for node in reversed(order):
            link = self.parents[node]
            if link is not None:
                sizes[link[0]] += sizes[node]
        return sizes

    @property
    def everything(self) -> Selected:
        """Every version in full and every delta: the fastest layout."""
        return Selected(frozenset(range(len(self))), frozenset(range(len(self.edges))))

    def stored(self, layout: Selected) -> int:
        full = sum(self.full_bytes[i] for i in layout.sources)
        return self.shared + full + sum(self.edges[i].bytes for i in layout.edges)

    def recovery(self, layout: Selected) -> list[int | None]:
        """Nanoseconds to recover each version; None if it cannot be recovered (Dijkstra)."""
        if (known := self._cache.get(layout)) is not None:
            return known
        found: list[int | None] = [None] * len(self)
        heap = [(self.full_ns[i], i) for i in layout.sources]
        heapify(heap)
        while heap:
            ns, node = heappop(heap)
            if found[node] is not None:
                continue
            found[node] = ns
            for other, edge in self.around[node]:
                if found[other] is None and edge in layout.edges:
                    heappush(heap, (ns + self.edges[edge].ns, other))
        if len(self._cache) > 8:
            self._cache.clear()
        self._cache[layout] = found
        return found

    def worst(self, layout: Selected) -> int | None:
        """The longest recovery; None if some version cannot be recovered."""
        found = self.recovery(layout)
        return None if None in found else max((ns for ns in found if ns is not None), default=0)

    def price(self, layout: Selected) -> Price:
        """The price of a layout from which every version can be recovered."""
        times = [ns for ns in self.recovery(layout) if ns is not None]
        assert len(times) == len(self), "a version cannot be recovered"
        mean = sum(times) / len(times) if times else 0.0
        return Price(self.stored(layout), max(times, default=0), mean)
