"""The planning graph of versions: as that of contents, with deltas over several generations."""

from __future__ import annotations

from functools import cached_property

from mvc.maintenance.repack import solve
from mvc.maintenance.repack.solve import Nodes, Selected, Tree


class Edge(solve.Edge, frozen=True):
    """The delta from version ``a`` to ``b``, its child or, where ``long``, a later version."""

    long: bool = False


class Versions(Nodes, frozen=True, dict=True):
    """Every version has at most one edge that is not long and ends in it: the one from its parent.

    ``shared`` are bytes that any layout stores once (blobs that all versions have).
    """

    shared: int = 0

    @cached_property
    def _cache(self) -> dict[Selected, dict[int, int]]:
        return {}

    @cached_property
    def long(self) -> frozenset[int]:
        """The edges over several generations."""
        return frozenset(i for i, e in enumerate(self.edges) if isinstance(e, Edge) and e.long)

    @cached_property
    def parents(self) -> list[tuple[int, int] | None]:
        """For each version its parent and the edge from there."""
        found: list[tuple[int, int] | None] = [None] * len(self)
        for i, edge in enumerate(self.edges):
            if i not in self.long:
                found[edge.b] = (edge.a, i)
        return found

    @property
    def everything(self) -> Selected:
        """Every version in full and every delta: the fastest layout."""
        return Selected(frozenset(range(len(self))), frozenset(range(len(self.edges))))

    def stored(self, layout: Selected) -> int:
        return self.shared + super().stored(layout)

    def recovery(self, layout: Selected) -> dict[int, int]:
        if layout not in self._cache:
            if len(self._cache) > 8:
                self._cache.clear()
            self._cache[layout] = super().recovery(layout)
        return self._cache[layout]

    def worst(self, layout: Selected) -> int | None:
        """The longest recovery; None if some version cannot be recovered."""
        found = self.recovery(layout)
        return max(found.values(), default=0) if len(found) == len(self) else None


def is_chain(tree: Tree) -> bool:
    return all(link is None or link[0] == i - 1 for i, link in enumerate(tree.up))
