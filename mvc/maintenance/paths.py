"""Cheapest paths to pieces of objects, and which pieces can be reached at all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

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
    sources: Iterable[tuple[float, _N, _S]],
    edges: Mapping[_N, Sequence[tuple[float, _N, _S]]],
    joint: Sequence[tuple[float, Sequence[_N], _N, _S]] = (),
) -> dict[_N, CheapestPath[_N, _S]]:
    """The cheapest path to every node that a source leads to, nearest first (Dijkstra).

    Of paths of equal cost the one with fewer deltas counts. ``joint`` are edges that lead on from
    the first of several nodes once all of them are found, from the furthest on.
    """
    needs = [set(nodes) for _, nodes, _, _ in joint]
    by_need: dict[_N, list[int]] = {}
    for number, nodes in enumerate(needs):
        for node in nodes:
            by_need.setdefault(node, []).append(number)
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
        for number in by_need.get(node, ()):
            needs[number].discard(node)
            more, (first, *_), target, next_step = joint[number]
            if not needs[number] and target not in found:
                under = found[first].deltas
                heappush(heap, (cost + more, under + 1, len(origins), target, next_step))
                origins.append(first)
    return found


class Reachability:
    """The pieces that full records lead to, kept up to date as codings are added.

    A coding with inputs leads on once its base and all of these are reached. ``before`` says which
    pieces count as reached from the start; nothing leads on from these.
    """

    def __init__(self, before: Callable[[Piece], bool] | None = None) -> None:
        self._before = before
        self._reached: set[Piece] = set()
        # By piece what it leads to, and the pieces that this needs as well.
        self._edges: dict[Piece, list[tuple[Piece, tuple[Piece, ...]]]] = {}

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._reached or (self._before is not None and self._before(piece))

    def copy(self) -> Reachability:
        """One to ``reach`` more in, over the same codings; add none to either."""
        made = Reachability(self._before)
        made._reached, made._edges = set(self._reached), self._edges
        return made

    def has_all(self, pieces: Iterable[Piece]) -> bool:
        """Whether all of these are reached."""
        return all(piece in self for piece in pieces)

    def add(
        self,
        id_: bytes,
        start: int,
        base: bytes | None,
        *,
        reversible: bool,
        inputs: Sequence[bytes] = (),
    ) -> None:
        """Adds the coding of a piece; ``reversible``: it makes its base as well."""
        piece = (id_, start)
        if base is None:
            self.reach([piece])
            return
        self._lead([(needed, start) for needed in dict.fromkeys((base, *inputs))], piece)
        if reversible:
            self._lead([piece], (base, start))

    def _lead(self, needs: Sequence[Piece], target: Piece) -> None:
        for at in needs:
            others = tuple(other for other in needs if other != at) if len(needs) > 1 else ()
            self._edges.setdefault(at, []).append((target, others))
        if self.has_all(needs):
            self.reach([target])

    def reach(self, pieces: Iterable[Piece]) -> None:
        """Takes these pieces as reached, and all that can be reached from them."""
        waiting = list(pieces)
        while waiting:
            piece = waiting.pop()
            if piece not in self:
                self._reached.add(piece)
                edges = self._edges.get(piece, ())
                waiting.extend(target for target, others in edges if self.has_all(others))
