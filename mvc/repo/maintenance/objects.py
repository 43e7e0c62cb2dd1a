"""All stored objects as one graph in memory: what leads where, at what price.

For verbs that ask about every object at once (fsck, stats). ``mvc.store.graph.search`` finds
single paths without reading everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from mvc.limits import PIECE
from mvc.store.packs.records import BASE_BYTES, Member

__all__ = ["ObjectGraph"]

_Node = tuple[int, int]
"""An object's number and the first byte of one of its pieces."""


class ObjectGraph:
    """Add every member of every record, then ``settle``, then ask."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._first: dict[bytes, int] = {}  # what a base's short name means
        self._sources: dict[_Node, float] = {}
        self._deltas: list[tuple[bytes, _Node, float, bool]] = []
        self._reached: dict[_Node, tuple[float, int]] = {}
        self._whole: set[tuple[int, int]] = set()  # (object, bytes) of skeletons beyond a piece

    def __len__(self) -> int:
        return len(self._numbers)

    def name(self, id_: bytes) -> int:
        """Makes an object known; the first one with its first bytes is what a base means."""
        number = self._numbers.setdefault(id_, len(self._numbers))
        self._first.setdefault(id_[:BASE_BYTES], number)
        return number

    def add(self, member: Member, seconds: float) -> None:
        """One sound payload that takes ``seconds`` to decode; in order of publication."""
        node = (self.name(member.id), member.start)
        if member.nbytes > PIECE:
            self._whole.add((node[0], member.nbytes))
        if member.base:
            late = member.base not in self._first  # readers seek deltas in later operations only
            forward = late or bool(member.coding.transform)
            self._deltas.append((member.base, node, seconds, forward))
        else:
            self._sources[node] = min(seconds, self._sources.get(node, seconds))

    def settle(self) -> None:
        """Finds the cheapest path to every piece that a full record leads to (Dijkstra)."""
        edges: dict[_Node, list[tuple[_Node, float]]] = {}
        for base, node, seconds, forward in self._deltas:
            number = self._first.get(base)
            if number is None:
                continue
            origin = (number, node[1])
            edges.setdefault(origin, []).append((node, seconds))
            if not forward:
                edges.setdefault(node, []).append((origin, seconds))
        heap = [(seconds, 0, node) for node, seconds in self._sources.items()]
        heapify(heap)
        self._reached.clear()
        while heap:
            cost, depth, node = heappop(heap)
            if node in self._reached:
                continue
            self._reached[node] = (cost, depth)
            for target, seconds in edges.get(node, ()):
                if target not in self._reached:
                    heappush(heap, (cost + seconds, depth + 1, target))

    def reach(self, id_: bytes, start: int = 0) -> tuple[float, int] | None:
        """(seconds of one thread, deltas to apply) of a piece; None if nothing leads there."""
        number = self._numbers.get(id_)
        return None if number is None else self._reached.get((number, start))

    def is_whole(self, id_: bytes, nbytes: int) -> bool:
        """Whether an object larger than a piece can be reached as one."""
        number = self._numbers.get(id_, -1)
        return (number, nbytes) in self._whole and (number, 0) in self._reached

    def is_full(self, id_: bytes, start: int = 0) -> bool:
        """Whether the piece is stored by itself."""
        number = self._numbers.get(id_)
        return number is not None and (number, start) in self._sources

    def pieces(self) -> Iterator[tuple[float, int]]:
        """(seconds, deltas) of every piece that can be recovered."""
        yield from self._reached.values()
