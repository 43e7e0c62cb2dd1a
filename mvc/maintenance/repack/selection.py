"""A set of codings, stored ones and new ones, and the cheapest paths over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from mvc.maintenance.paths import CheapestPath, cheapest_paths
from mvc.maintenance.repack.candidates import Candidate, Node

_Key = tuple[bytes, int, bytes | None, tuple[int, int, int] | None]


class Selection:
    """Codings of pieces; one with the same piece, base and place is the same coding."""

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self._chosen: dict[_Key, Candidate] = {}
        self.add(candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._chosen.values())

    def __contains__(self, candidate: Candidate) -> bool:
        return _key(candidate) in self._chosen

    def add(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.setdefault(_key(candidate), candidate)

    def drop(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.pop(_key(candidate), None)

    @property
    def new(self) -> list[Candidate]:
        """Codings that are not stored yet."""
        return [candidate for candidate in self if candidate.place is None]

    def lacking(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that are not chosen."""
        return [candidate for candidate in candidates if candidate not in self]

    def cheapest(self) -> dict[Node, CheapestPath[Node, Candidate]]:
        """The cheapest path to each piece, in nanoseconds."""
        sources: list[tuple[float, Node, Candidate]] = []
        edges: dict[Node, list[tuple[float, Node, Candidate]]] = defaultdict(list)
        joint: list[tuple[float, list[Node], Node, Candidate]] = []
        for candidate in self:
            ns = candidate.seconds * 1e9
            if candidate.base is None:
                sources.append((ns, candidate.node, candidate))
                continue
            if candidate.inputs:
                joint.append((ns, candidate.needs, candidate.node, candidate))
                continue
            base = (candidate.base, candidate.start)
            edges[base].append((ns, candidate.node, candidate))
            if candidate.reversible:
                edges[candidate.node].append((ns, base, candidate))
        return cheapest_paths(sources, edges, joint)


def _key(candidate: Candidate) -> _Key:
    return candidate.id, candidate.start, candidate.base, candidate.place
