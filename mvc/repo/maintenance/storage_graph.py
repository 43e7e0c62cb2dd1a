"""The storage graph in memory: which piece leads to which other, at what price.

A node is a piece of an object; full records are its sources, deltas its edges. For verbs
that ask about every object at once: fsck and stats for the cheapest paths, gc, repair and
repack for what can be reached at all. ``mvc.store.graph.search`` finds single paths without
reading everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from mvc.limits import PIECE
from mvc.store.packs.records import BASE_BYTES, Member

__all__ = ["CheapestPath", "Piece", "Reachability", "StorageGraph", "cheapest_paths"]

Piece = tuple[bytes, int]
"""An object's id and the first byte of one of its pieces."""

_N = TypeVar("_N", bound=Hashable)
_S = TypeVar("_S")


class CheapestPath(NamedTuple, Generic[_N, _S]):
    """``cost`` and ``deltas`` of the whole path; its last ``step`` and the node before it."""

    cost: float
    deltas: int
    step: _S
    origin: _N | None


def cheapest_paths(
    sources: Iterable[tuple[float, _N, _S]], edges: Mapping[_N, Sequence[tuple[float, _N, _S]]]
) -> dict[_N, CheapestPath[_N, _S]]:
    """The cheapest path to every node that a source leads to, nearest first (Dijkstra).

    Of paths of equal cost the one with fewer deltas counts.
    """
    heap = [(cost, 0, i, node, step) for i, (cost, node, step) in enumerate(sources)]
    heapify(heap)
    origins: list[_N | None] = [None] * len(heap)
    found: dict[_N, CheapestPath[_N, _S]] = {}
    while heap:
        cost, deltas, ticket, node, step = heappop(heap)
        if node in found:
            continue
        found[node] = CheapestPath(cost, deltas, step, origins[ticket])
        for more, target, next_step in edges.get(node, ()):
            if target not in found:
                heappush(heap, (cost + more, deltas + 1, len(origins), target, next_step))
                origins.append(node)
    return found


class Reachability:
    """The pieces that full records lead to, kept up to date as codings are added."""

    def __init__(self) -> None:
        self._reached: set[Piece] = set()
        self._edges: dict[Piece, list[Piece]] = {}

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._reached

    def copy(self) -> Reachability:
        """One to ``reach`` more in, over the same codings; add none to either."""
        made = Reachability()
        made._reached, made._edges = set(self._reached), self._edges
        return made

    def has_all(self, pieces: Iterable[Piece]) -> bool:
        """Whether all of these are reached."""
        return self._reached.issuperset(pieces)

    def add(self, id_: bytes, start: int, base: bytes | None, *, reversible: bool) -> None:
        """Adds the coding of a piece; ``reversible``: it makes its base as well."""
        piece = (id_, start)
        if base is None:
            self.reach([piece])
            return
        origin = (base, start)
        for at, target in ((origin, piece), (piece, origin))[: 1 + reversible]:
            self._edges.setdefault(at, []).append(target)
            if at in self._reached:
                self.reach([target])

    def reach(self, pieces: Iterable[Piece]) -> None:
        """Takes these pieces as reached, and all that can be reached from them."""
        waiting = list(pieces)
        while waiting:
            piece = waiting.pop()
            if piece not in self._reached:
                self._reached.add(piece)
                waiting.extend(self._edges.get(piece, ()))


_Node = tuple[int, int]
"""An object's number and the first byte of one of its pieces."""


class StorageGraph:
    """Every sound payload with its price. Add members, then ``settle``, then ask.

    Objects are numbered, so that a graph of millions of deltas stays small.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._first: dict[bytes, int] = {}  # by the first bytes of an id, as deltas name bases
        self._sources: dict[_Node, float] = {}
        self._deltas: list[tuple[bytes, _Node, float, bool]] = []
        self._reached: dict[_Node, CheapestPath[_Node, None]] = {}
        self._whole: set[tuple[int, int]] = set()  # (object, bytes) of skeletons beyond a piece

    def __len__(self) -> int:
        return len(self._numbers)

    def name(self, id_: bytes) -> int:
        """Makes an object known; of several with the same first bytes a base means the first."""
        number = self._numbers.setdefault(id_, len(self._numbers))
        self._first.setdefault(id_[:BASE_BYTES], number)
        return number

    def add(self, member: Member, seconds: float) -> None:
        """Adds a sound payload that takes ``seconds`` to decode; call in order of publication."""
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
        """Finds the cheapest path to every piece that a full record leads to."""
        edges: dict[_Node, list[tuple[float, _Node, None]]] = {}
        for base, node, seconds, forward in self._deltas:
            number = self._first.get(base)
            if number is None:
                continue
            origin = (number, node[1])
            edges.setdefault(origin, []).append((seconds, node, None))
            if not forward:
                edges.setdefault(node, []).append((seconds, origin, None))
        sources = ((seconds, node, None) for node, seconds in self._sources.items())
        self._reached = cheapest_paths(sources, edges)

    def reach(self, id_: bytes, start: int = 0) -> tuple[float, int] | None:
        """(seconds of one thread, deltas to apply) of a piece; None if nothing leads there."""
        path = self._reached.get((self._numbers.get(id_, -1), start))
        return None if path is None else path[:2]

    def source(self, id_: bytes, start: int = 0) -> bytes | None:
        """The object whose full record the cheapest path to a piece begins with."""
        node: _Node | None = (self._numbers.get(id_, -1), start)
        while node is not None and (path := self._reached.get(node)) is not None:
            if path.origin is None:
                return self._ids[node[0]]
            node = path.origin
        return None

    @cached_property
    def _ids(self) -> list[bytes]:
        return list(self._numbers)

    def is_whole(self, id_: bytes, nbytes: int) -> bool:
        """Whether an object larger than a piece can be reached as one."""
        return (self._numbers.get(id_, -1), nbytes) in self._whole and self.reach(id_) is not None

    def is_full(self, id_: bytes, start: int = 0) -> bool:
        """Whether the piece is stored by itself."""
        return (self._numbers.get(id_, -1), start) in self._sources
