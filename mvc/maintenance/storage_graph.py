"""The storage graph in memory: which piece leads to which other, at what price.

A node is a piece of an object; full records are its sources, deltas its edges. For verbs
that ask about every object at once: fsck and stats for the cheapest paths, gc, repair and
repack for what can be reached at all. ``mvc.store.graph.search`` finds single paths without
reading everything.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mvc.ids import DIGEST_SIZE
from mvc.limits import PIECE
from mvc.store.packs.records import BASE_BYTES, MANIFEST, Member

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


Integers = NDArray[np.signedinteger[Any]]
"""Numbers of rows, objects or nodes; -1 where there is none."""
Flags = NDArray[np.bool_]

_TYPES = {"B": np.uint8, "I": np.uint32, "Q": np.uint64, "q": np.int64, "d": np.float64}


def column(values: array[Any]) -> NDArray[Any]:
    """The same memory as a numpy array: append to ``values`` only when this is gone."""
    return np.frombuffer(values, _TYPES[values.typecode]) if values else np.empty(0, np.int64)


def _words(data: bytes | bytearray) -> NDArray[np.uint64]:
    """Bytes as numbers of 8 bytes, as bases are named."""
    return np.frombuffer(data, np.uint64) if data else np.empty(0, np.uint64)


_NAMED, _DELTA, _FORWARD, _MANIFEST = 1, 2, 4, 8
_WORDS = DIGEST_SIZE // BASE_BYTES
_AT_ONCE = 1 << 16  # ids that are looked up together


def _short(numbers: Integers) -> Integers:
    """The same in half of the bytes: so many rows that it would be too few do not fit in memory."""
    return numbers.astype(np.int32)


class StorageGraph:
    """Every sound payload with its price. Add members, then ``settle``, then ask.

    A payload is a *row* of columns, in the order of publication: a graph of millions of deltas
    takes about a hundred bytes for each. Objects are numbered in the order in which rows first
    mention them. A *node* is the number of a piece of an object.

    Columns after ``settle``: ``object``, ``base`` (-1 without one, or if it is not stored),
    ``node``, ``base_node``, ``entry``; ``sound``: not a delta whose base or input is lost;
    ``reversible``: the delta makes its base as well; ``delta``; ``manifest``. By input of a row:
    ``input_row``, ascending, ``input_object`` and ``input_node``, as of bases.
    """

    def __init__(self) -> None:
        self._ids = bytearray()
        self._bases = bytearray()
        self._entries = array("q")
        self._starts = array("Q")
        self._sizes = array("Q")
        self._seconds = array("d")
        self._kinds = array("B")
        self._inputs, self._input_rows = bytearray(), array("q")

    # -- collecting ------------------------------------------------------------------------

    def name(self, id_: bytes) -> None:
        """Makes an object known, whatever is sound of it: fsck names those of damaged payloads.

        Of several with the same first bytes a base means the first.
        """
        self._append(id_, b"", len(self._kinds), _NAMED)
        for values in (self._starts, self._sizes, self._seconds):
            values.append(0)

    def add(self, member: Member, seconds: float, entry: int | None = None) -> None:
        """Adds a sound payload that takes ``seconds`` to decode; call in order of publication.

        ``entry``: the position of the operation that published it. Readers seek deltas *from* an
        object only in its own and later operations. Without ``entry`` each payload counts as one.
        """
        kind = _MANIFEST if member.kind == MANIFEST else 0
        if member.base:
            kind |= (_DELTA | _FORWARD) if member.coding.forward_only else _DELTA
        for each in member.inputs:
            self._inputs += each
            self._input_rows.append(len(self._kinds))
        self._append(member.id, member.base, len(self._kinds) if entry is None else entry, kind)
        self._starts.append(member.start)
        self._sizes.append(member.nbytes)
        self._seconds.append(seconds)

    def _append(self, id_: bytes, base: bytes, entry: int, kind: int) -> None:
        self._ids += id_
        self._bases += base or _NO_BASE
        self._entries.append(entry)
        self._kinds.append(kind)

    def settle(self) -> None:
        """Numbers objects and nodes. Nothing may be added afterwards."""
        kinds = column(self._kinds)
        named, self.delta, forward = ((kinds & bit) != 0 for bit in (_NAMED, _DELTA, _FORWARD))
        self.manifest: Flags = (kinds & _MANIFEST) != 0
        self.entry: Integers = column(self._entries)
        self._number_objects()
        bases = _words(self._bases)
        self.base: Integers = _short(np.where(self.delta, self._resolved(bases), -1))
        self.input_row: Integers = column(self._input_rows)
        self.input_object: Integers = _short(self._resolved(_words(self._inputs)))
        self._bases, self._inputs = bytearray(), bytearray()
        self.sound: Flags = ~named & (~self.delta | (self.base >= 0))
        self.sound[self.input_row[self.input_object < 0]] = False
        published = self.entry[self._first_rows]
        early = self.sound & self.delta
        early[early] = published[self.base[early]] <= self.entry[early]
        self.reversible: Flags = early & ~forward
        self._number_nodes(~named)
        large = np.flatnonzero(column(self._sizes) > PIECE)
        self._whole = {(int(self.object[row]), self._sizes[row]) for row in large}

    def _number_objects(self) -> None:
        """Sorts the ids, so that an object is found by bisection."""
        ids = _words(self._ids).reshape(-1, _WORDS)
        order = np.lexsort(ids.T[::-1])
        ids = ids[order]
        is_new = np.ones(len(ids), np.bool_)
        is_new[1:] = (ids[1:] != ids[:-1]).any(axis=1)
        first = order[is_new]  # the sort is stable: each object's earliest row
        by_age = _short(np.argsort(first))
        numbers = np.empty_like(by_age)
        numbers[by_age] = np.arange(len(by_age))
        self.object: Integers = np.empty(len(order), np.int32)
        self.object[order] = numbers[np.cumsum(is_new) - 1]
        self._first_rows = _short(first[by_age])
        self._ids = bytearray()
        # By id: the ids, their first bytes, their objects; the other way round ``_places``.
        self._sorted = ids[is_new]
        self._prefixes = np.ascontiguousarray(self._sorted[:, 0])
        self._numbers = numbers
        self._places = by_age
        runs = np.flatnonzero(np.append(True, self._prefixes[1:] != self._prefixes[:-1]))
        runs = runs[: len(self._prefixes)]
        lengths = np.diff(np.append(runs, len(self._prefixes)))
        earliest = np.minimum.reduceat(numbers, runs) if len(runs) else numbers
        self._meant = np.repeat(earliest, lengths)  # the object that a prefix stands for
        self.ambiguous: Flags = np.zeros(len(numbers), np.bool_)
        self.ambiguous[numbers] = np.repeat(lengths > 1, lengths)

    def _resolved(self, prefixes: NDArray[np.uint64]) -> Integers:
        """The objects that bases mean, by their first bytes."""
        places = np.searchsorted(self._prefixes, prefixes)
        known = places < len(self._prefixes)
        known[known] = self._prefixes[places[known]] == prefixes[known]
        found = np.full(len(prefixes), -1)
        found[known] = self._meant[places[known]]
        return found

    def _number_nodes(self, coded: Flags) -> None:
        """A node for every piece that a row makes or starts from."""
        starts = column(self._starts)
        self._offsets = np.unique(starts)
        part = np.searchsorted(self._offsets, starts)
        keys = np.where(coded, len(self._offsets) * self.object.astype(np.int64) + part, -1)
        base_keys = np.where(
            self.base >= 0, len(self._offsets) * self.base.astype(np.int64) + part, -1
        )
        input_keys = np.where(
            self.input_object >= 0,
            len(self._offsets) * self.input_object.astype(np.int64) + part[self.input_row],
            -1,
        )
        self._pieces = np.unique(np.concatenate((keys, base_keys, input_keys)))
        self._pieces = self._pieces[self._pieces >= 0]
        self.node: Integers = _short(self._place_of(keys))
        self.base_node: Integers = _short(self._place_of(base_keys))
        self.input_node: Integers = _short(self._place_of(input_keys))

    @property
    def sizes(self) -> NDArray[np.uint64]:
        return column(self._sizes)

    def price(self, seconds: NDArray[np.float64]) -> None:
        """Sets what each row takes to decode, and finds the cheapest paths."""
        self._seconds = array("d", seconds.tobytes())
        self._paths = self._search(self.sound, seconds)

    def _place_of(self, keys: Integers) -> Integers:
        places = np.searchsorted(self._pieces, keys)
        known = (places < len(self._pieces)) & (keys >= 0)
        known[known] = self._pieces[places[known]] == keys[known]
        return np.where(known, places, -1)

    def inputs_of(self, row: int) -> list[int]:
        """The objects that a row needs beside its base, in the order of its rule."""
        begin, end = np.searchsorted(self.input_row, (row, row + 1))
        found: list[int] = self.input_object[begin:end].tolist()
        return found

    def with_all(self, rows: Flags, objects: Flags) -> Flags:
        """Those of the rows whose base and inputs are among these objects."""
        found: Flags = rows & (~self.delta | objects[self.base])
        found[self.input_row[~objects[self.input_object]]] = False
        return found

    # -- objects and nodes -----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._numbers)

    def id_of(self, number: int) -> bytes:
        found: bytes = self._sorted[self._places[number]].tobytes()
        return found

    @cached_property
    def _bisected(self) -> array[int]:
        return array("Q", self._prefixes.tobytes())

    def number(self, id_: bytes) -> int:
        """An object's number; -1 if it is unknown."""
        prefix = int.from_bytes(id_[:BASE_BYTES], sys.byteorder)
        place = bisect_left(self._bisected, prefix)
        while place < len(self._bisected) and self._bisected[place] == prefix:
            if self._sorted[place].tobytes() == id_:
                return int(self._numbers[place])
            place += 1
        return -1

    def meant_by(self, prefix: bytes) -> int:
        """The object that the first bytes of a base's id stand for; -1 if there is none."""
        return int(self._resolved(_words(prefix))[0])

    def numbers(self, ids: bytes | bytearray) -> Integers:
        """The numbers of many objects, whose ids follow each other in ``ids``."""
        wanted = _words(ids).reshape(-1, _WORDS)
        parts = range(0, len(wanted), _AT_ONCE)
        return np.concatenate(
            [np.empty(0, np.int64), *(self._found(wanted[at : at + _AT_ONCE]) for at in parts)]
        )

    def _found(self, wanted: NDArray[np.uint64]) -> Integers:
        found = np.full(len(wanted), -1)
        places = np.searchsorted(self._prefixes, wanted[:, 0])
        left = np.flatnonzero(places < len(self._prefixes))
        while len(left):
            there = self._sorted[places[left]]
            hit = (there == wanted[left]).all(axis=1)
            found[left[hit]] = self._numbers[places[left[hit]]]
            left = left[~hit & (there[:, 0] == wanted[left, 0])]  # other ids may begin alike
            places[left] += 1
            left = left[places[left] < len(self._prefixes)]
        return found

    def first_entry(self, number: int) -> int:
        """The position of the operation that first published an object."""
        return int(self.entry[self._first_rows[number]])

    def nodes(self, objects: Integers, starts: NDArray[np.uint64]) -> Integers:
        part = np.searchsorted(self._offsets, starts)
        known = (part < len(self._offsets)) & (objects >= 0)
        known[known] = self._offsets[part[known]] == starts[known]
        return self._place_of(np.where(known, objects * len(self._offsets) + part, -1))

    def has(self, nodes: Flags, piece: Piece) -> bool:
        node = self._node(*piece)
        return node >= 0 and bool(nodes[node])

    def _node(self, id_: bytes, start: int) -> int:
        number = self.number(id_)
        part = bisect_left(self._offsets, start)
        if number < 0 or part == len(self._offsets) or self._offsets[part] != start:
            return -1
        key = number * len(self._offsets) + part
        place = bisect_left(self._pieces, key)
        there = place < len(self._pieces) and self._pieces[place] == key
        return place if there else -1

    # -- paths -----------------------------------------------------------------------------

    @cached_property
    def _paths(self) -> tuple[NDArray[np.float64], Integers, Integers]:
        return self._search(self.sound, column(self._seconds))

    @property
    def costs(self) -> NDArray[np.float64]:
        """By node: seconds of one thread on the cheapest path; infinite if nothing leads there."""
        return self._paths[0]

    @property
    def depths(self) -> Integers:
        """By node: the deltas on the cheapest path."""
        return self._paths[1]

    @property
    def sources(self) -> Integers:
        """By node: the row of the full record that the cheapest path begins with, or -1."""
        return self._paths[2]

    @cached_property
    def last_steps(self) -> tuple[Integers, Integers]:
        """By node: the last row of the cheapest path, and the node before it; -1 for none."""
        rows, before = self.sources.copy(), np.full(len(self._pieces), -1)
        rows[self.depths > 0] = -1
        leads = self.sound & self.delta
        leads[self.input_row[~np.isfinite(self.costs[self.input_node])]] = False
        forth = np.flatnonzero(leads)
        back = forth[self.reversible[forth]]
        for chosen, origins, targets in (
            (forth, self.base_node[forth], self.node[forth]),
            (back, self.node[back], self.base_node[back]),
        ):
            costs = self.costs[origins] + column(self._seconds)[chosen]
            leads = (costs == self.costs[targets]) & np.isfinite(costs)
            leads &= self.depths[origins] + 1 == self.depths[targets]
            rows[targets[leads]], before[targets[leads]] = chosen[leads], origins[leads]
        return rows, before

    @cached_property
    def full(self) -> Flags:
        """By node: whether the piece is stored by itself."""
        found: Flags = np.zeros(len(self._pieces), np.bool_)
        found[self.node[self.sound & ~self.delta]] = True
        return found

    def reached(self, rows: Flags) -> Flags:
        """By node: whether full records lead there over these rows alone."""
        return np.isfinite(self._search(rows, np.zeros(len(rows)))[0])

    def _search(
        self, rows: Flags, seconds: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], Integers, Integers]:
        """The cheapest paths over some rows (Bellman-Ford, from what has changed last).

        Of paths of equal cost the one with fewer deltas counts, of equal full records the first.
        They lead along bases; a row with inputs counts once all of these are reached.
        """
        full, forth = np.flatnonzero(rows & ~self.delta)[::-1], rows & self.delta
        full = full[np.argsort(-seconds[full], kind="stable")]  # the last one of a node counts
        back = forth & self.reversible
        costs = np.full(len(self._pieces), np.inf)
        depths = np.zeros(len(self._pieces), np.int64)
        sources = np.full(len(self._pieces), -1)
        costs[self.node[full]], sources[self.node[full]] = seconds[full], full
        targets = np.concatenate((self.node[forth], self.base_node[back]))
        prices = np.concatenate((seconds[forth], seconds[back]))
        origins = np.concatenate((self.base_node[forth], self.node[back]))
        order = np.argsort(origins, kind="stable")
        begins = np.searchsorted(origins[order], np.arange(len(costs) + 1, dtype=np.int32))
        targets, prices = targets[order], prices[order]
        inputs = _OpenRows(self, forth, order) if len(self.input_row) else None
        del origins, order
        changed = np.flatnonzero(np.isfinite(costs))
        while len(changed):
            if inputs is not None:
                changed = np.union1d(changed, inputs.reached(changed, costs))
            counts = begins[changed + 1] - begins[changed]
            ends = np.cumsum(counts)
            edges = np.arange(ends[-1]) + np.repeat(begins[changed] - ends + counts, counts)
            to = targets[edges]
            cost = np.repeat(costs[changed], counts) + prices[edges]
            depth = np.repeat(depths[changed], counts) + 1
            source = np.repeat(sources[changed], counts)
            better = (cost < costs[to]) | ((cost == costs[to]) & (depth < depths[to]))
            if inputs is not None:
                better &= inputs.open[edges]
            to, cost, depth, source = to[better], cost[better], depth[better], source[better]
            best = np.lexsort((depth, cost, to))
            to = to[best]
            is_first = np.ones(len(to), np.bool_)
            is_first[1:] = to[1:] != to[:-1]
            best, changed = best[is_first], to[is_first]
            costs[changed], depths[changed] = cost[best], depth[best]
            sources[changed] = source[best]
        return costs, depths, sources

    def reach(self, id_: bytes, start: int = 0) -> tuple[float, int] | None:
        """(seconds of one thread, deltas to apply) of a piece; None if nothing leads there."""
        node = self._node(id_, start)
        if node < 0 or not np.isfinite(self.costs[node]):
            return None
        return float(self.costs[node]), int(self.depths[node])

    def is_whole(self, id_: bytes, nbytes: int) -> bool:
        """Whether an object larger than a piece is reached as one payload: an old skeleton."""
        return (self.number(id_), nbytes) in self._whole and self.reach(id_) is not None


class _OpenRows:
    """The edges of a search of which all inputs are reached. ``open``: by edge, in their order."""

    def __init__(self, graph: StorageGraph, forth: Flags, order: Integers) -> None:
        """``forth``: the rows whose edges come first; ``order``: how all edges are sorted."""
        edge_of = np.full(len(forth), -1)
        edge_of[forth] = np.argsort(order, kind="stable")[: np.count_nonzero(forth)]
        chosen = forth[graph.input_row]
        self._edges = edge_of[graph.input_row[chosen]]  # by input
        self._origins = graph.base_node[graph.input_row[chosen]]
        nodes = graph.input_node[chosen]
        self._left = np.bincount(self._edges, minlength=len(order))
        self._by_node = np.argsort(nodes, kind="stable")
        self._begins = np.searchsorted(nodes[self._by_node], np.arange(len(graph.full) + 1))
        self._seen = np.zeros(len(graph.full), np.bool_)
        self.open: Flags = self._left == 0

    def reached(self, nodes: Integers, costs: NDArray[np.float64]) -> Integers:
        """Notes that these nodes are reached; returns the bases of what is open since, which are
        reached as well.
        """
        nodes = nodes[~self._seen[nodes]]
        self._seen[nodes] = True
        counts = self._begins[nodes + 1] - self._begins[nodes]
        ends = np.cumsum(counts)
        if not len(ends) or not ends[-1]:
            return nodes[:0]
        places = np.arange(ends[-1]) + np.repeat(self._begins[nodes] - ends + counts, counts)
        hit = self._by_node[places]
        np.subtract.at(self._left, self._edges[hit], 1)
        hit = hit[self._left[self._edges[hit]] == 0]
        self.open[self._edges[hit]] = True
        origins: Integers = np.unique(self._origins[hit])
        fit: Integers = origins[np.isfinite(costs[origins])]
        return fit


_NO_BASE = bytes(BASE_BYTES)
