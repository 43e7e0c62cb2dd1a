"""The solver: which contents are stored in full, and which deltas are kept. Exact for one tree.

A *layout* says which contents are stored in full (sources) and which deltas are kept. A
content is recovered along the cheapest path from any source. Sizes are bytes, times whole
nanoseconds, so that sums are exact.

A content that did not change is stored once; of each one that did it is decided apart whether it is
stored in full or as a delta. So a version stored in full, an update (what changed, in full) and
lossless deltas are layouts among others. A version with a recipe may give up its weights: contents
that no other version has are not stored then, and nothing is decoded through them.

Nodes depend on each other in trees, and apart from the bound the price is a sum over these
trees, so ``cheapest_tree`` finds the optimum of each. Two things join them. The bound is on whole
versions: each tree gets a part of it, then one after the other is planned again within what the
others leave of it, as long as that helps. Which weights to give up is searched by changing one
version at a time, from none and from all. The fewest bytes within a bound are the lowest price
where time costs next to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import sqrt

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

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
        return None if self._best[0] is None else self._unwound()

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


BYTES_ALONE = 1e9
"""A weight with which a second of recovery is worth no more than a byte."""
ENDLESS = 1 << 60
"""Nanoseconds that no recovery takes."""
_SWEPT = 24  # bounds of a sweep
_PASSES = 3  # over the trees, and over the recipes


class Training(Struct, frozen=True):
    """A recipe: ``ns`` of training make a version from the version ``base``, an earlier one.

    ``kept``: contents of the version that it does not make, which are stored in any case.
    """

    base: int
    ns: int
    kept: Sequence[int] = ()


class Priced(Struct, frozen=True):
    """``contents``: the planning graph. ``held``: by version the contents it has, ``fixed_ns``:
    what its recovery takes beside decoding them. ``weight``: nanoseconds that a byte is worth,
    which is seconds that a gigabyte is worth. ``bound``: nanoseconds that no recovery may exceed.
    ``trainings``: by version its recipe; the bytes that it needs are stored in any case.
    """

    contents: Nodes
    held: Sequence[Sequence[int]]
    fixed_ns: Sequence[int]
    weight: float
    bound: int = ENDLESS
    trainings: Mapping[int, Training] | None = None


class PricedLayout(Struct, frozen=True):
    """A ``layout`` of contents, the versions that have ``given_up`` their weights, nanoseconds to
    recover each version, and the ``price`` of all in nanoseconds: every version recovered once.
    """

    layout: Selected
    given_up: frozenset[int]
    ns: Sequence[int]
    price: float

    @property
    def worst(self) -> int:
        """The longest recovery."""
        return max(self.ns, default=0)


class _Needs(Struct, frozen=True):
    """What versions are made from if some have ``given_up`` their weights: for each version the
    ``contents``, and ``fixed_ns`` beside decoding them. For each content the versions that ``use``
    it, and the ``prices`` of its nanoseconds.
    """

    given_up: frozenset[int]
    contents: list[list[int]]
    fixed_ns: list[int]
    use: list[list[int]]
    prices: list[float]


class Solver:
    """``shortest``: nanoseconds of the worst recovery if everything is stored."""

    def __init__(self, problem: Priced) -> None:
        self.problem, self._contents = problem, problem.contents
        self._least = self._contents.recovery(self._contents.everything)
        self.shortest = max(map(self._shortest, range(len(problem.held))), default=0)
        shares = [(_share(self._contents, tree), tree) for tree in self._contents.trees]
        self._trees = [tree for _, tree in sorted(shares, key=lambda each: -each[0])]
        # Of the bound, by content.
        self._shares = {node: share for share, tree in shares for node in tree.nodes}
        self._free: dict[tuple[int, tuple[float, ...]], Selected] = {}  # by tree and prices

    def _shortest(self, version: int) -> int:
        """Nanoseconds to recover a version if everything is stored."""
        problem = self.problem
        return problem.fixed_ns[version] + sum(self._least[c] for c in problem.held[version])

    def cheapest(self, bound: int | None = None) -> PricedLayout | None:
        """The layout of the lowest price found within the bound; None if none was found."""
        bound = self.problem.bound if bound is None else bound
        trainings = self.problem.trainings or {}
        able = frozenset(
            v for v, each in trainings.items() if each.ns + self._shortest(each.base) <= bound
        )
        found = [self._improved(start, able, bound) for start in {frozenset[int](), able}]
        return min((f for f in found if f is not None), key=lambda f: f.price, default=None)

    def sweep(self) -> list[PricedLayout]:
        """Layouts from the fastest to the smallest, each smaller than the last.

        Their bounds grow by a constant ratio.
        """
        smallest, low = self.cheapest(), max(1, self.shortest)
        high = max(low, 0 if smallest is None else smallest.worst)
        ratio = (high / low) ** (1 / (_SWEPT - 1))
        found: list[PricedLayout] = []
        for bound in sorted({low, high} | {round(low * ratio**i) for i in range(1, _SWEPT - 1)}):
            made, stored = self.cheapest(bound), self._contents.stored
            if made and (not found or stored(made.layout) < stored(found[-1].layout)):
                found.append(made)
        return found

    def _improved(
        self, given_up: frozenset[int], able: Iterable[int], bound: int
    ) -> PricedLayout | None:
        """Changes one version at a time, the newest first, as long as the price falls."""
        best = self._best(given_up, bound)
        for _ in range(_PASSES):
            before = best
            for version in sorted(able, reverse=True):
                tried = self._best((best.given_up if best else given_up) ^ {version}, bound)
                if tried is not None and (best is None or tried.price < best.price):
                    best = tried
            if best is before:
                break
        return best

    def _best(self, given_up: frozenset[int], bound: int) -> PricedLayout | None:
        """The best layout if these versions give up their weights; None if none was found."""
        needs = self._needs(given_up)
        free = self._priced([self._unlimited(i, needs) for i in range(len(self._trees))], needs)
        if free.worst <= bound:
            return free
        found = []
        rare = {c: self._least[c] / max(1, len(used)) for c, used in enumerate(needs.use)}
        for shares in (self._shares, self._least, rare) if len(self._trees) > 1 else (rare,):
            limits = self._limits(needs, bound, shares)
            if limits is None:
                return None
            parts = [self._layout(tree, needs, limits) for tree in self._trees]
            found.append(self._priced(self._replanned(parts, needs, bound), needs))
        return min(found, key=lambda each: each.price)

    def _needs(self, given_up: frozenset[int]) -> _Needs:
        count, problem = len(self.problem.held), self.problem
        found = _Needs(
            given_up, [], [], use=[[] for _ in self._shares], prices=[0.0] * len(self._shares)
        )
        for number in range(count):
            contents, ns, version = list[int](), 0, number
            while version in given_up:
                assert problem.trainings is not None
                training = problem.trainings[version]
                contents += training.kept
                version, ns = training.base, ns + training.ns
            contents += problem.held[version]
            found.contents.append(contents)
            found.fixed_ns.append(ns + problem.fixed_ns[version])
            for content in contents:
                found.use[content].append(number)
                found.prices[content] += 1 / problem.weight
        return found

    def _limits(
        self, needs: _Needs, bound: int, shares: Mapping[int, float]
    ) -> dict[int, float] | None:
        """The bound, divided among the trees by their shares; None if it is too short."""
        limits: dict[int, float] = {}
        for contents, fixed_ns in zip(needs.contents, needs.fixed_ns, strict=True):
            room = bound - fixed_ns - sum(self._least[c] for c in contents)
            if room < 0:
                return None
            every = sum(shares[c] for c in contents) or 1.0
            for c in contents:
                most = self._least[c] + room * shares[c] / every
                limits[c] = min(most, limits.get(c, most))
        return limits

    def _unlimited(self, number: int, needs: _Needs) -> Selected:
        """The cheapest layout of a tree without a bound."""
        key = number, tuple(needs.prices[node] for node in self._trees[number].nodes)
        if key not in self._free:
            self._free[key] = self._layout(self._trees[number], needs, {})
        return self._free[key]

    def _layout(self, tree: Tree, needs: _Needs, limits: Mapping[int, float]) -> Selected:
        """The cheapest layout of a tree within limits that at least one layout keeps."""
        prices = [needs.prices[node] for node in tree.nodes]
        bounds = [limits.get(node, ENDLESS) for node in tree.nodes]
        found = cheapest_tree(self._contents, tree, prices, bounds)
        assert found is not None
        return found

    def _replanned(self, parts: list[Selected], needs: _Needs, bound: int) -> list[Selected]:
        """Plans each tree again within what the others leave, as long as that changes something."""
        times = [self._contents.recovery(part) for part in parts]
        totals = list(needs.fixed_ns)
        for each in times:
            _count(totals, each, needs, 1)
        for _ in range(_PASSES):
            before = list(parts)
            for i, tree in enumerate(self._trees):
                if len(tree.nodes) == 1:
                    continue
                room = [bound - total for total in totals]
                made = self._layout(tree, needs, _raised(times[i], room, needs))
                if made != parts[i]:
                    _count(totals, times[i], needs, -1)
                    parts[i], times[i] = made, self._contents.recovery(made)
                    _count(totals, times[i], needs, 1)
            if parts == before:
                break
        return parts

    def _priced(self, parts: Sequence[Selected], needs: _Needs) -> PricedLayout:
        layout = Selected(
            frozenset().union(*(part.sources for part in parts)),
            frozenset().union(*(part.edges for part in parts)),
        )
        decoding, weight = self._contents.recovery(layout), self.problem.weight
        ns = [
            fixed_ns + sum(decoding[content] for content in contents)
            for contents, fixed_ns in zip(needs.contents, needs.fixed_ns, strict=True)
        ]
        price = weight * self._contents.stored(layout) + sum(ns)
        return PricedLayout(layout, needs.given_up, ns, price)


def _raised(times: Mapping[int, int], room: Sequence[int], needs: _Needs) -> dict[int, float]:
    """The times of a tree's contents, raised by the room that versions have."""
    own: dict[int, int] = defaultdict(int)
    for content, ns in times.items():
        for version in needs.use[content]:
            own[version] += ns
    return {
        content: ns * (1 + min((room[v] / own[v] for v in needs.use[content]), default=0))
        for content, ns in times.items()
    }


def _share(contents: Nodes, tree: Tree) -> float:
    """How much of a bound a tree gets, in relation to others.

    With r deltas between reset points a tree of n deltas takes n / r full records. So the bytes of
    all trees are the fewest if each may take the root of what r deltas save and take.
    """
    edges = [contents.edges[link[1]] for link in tree.up if link is not None]
    saved = sum(contents.full_bytes[edge.b] - edge.bytes for edge in edges)
    taken = sum(edge.ns for edge in edges)
    return sqrt(max(0, saved) * taken / max(1, len(edges)))


def _count(totals: list[int], times: Mapping[int, int], needs: _Needs, sign: int) -> None:
    for content, ns in times.items():
        for version in needs.use[content]:
            totals[version] += sign * ns


_LOSS = 0.02  # a delta that loses more of a bundle's bytes on the way back is forward only


class _Bundle(Struct, frozen=True):
    """``members`` that are made from those of the bundle ``base``; ``whole`` ones, which are in
    full in any case. Without a base all are members.
    """

    base: int | None
    members: list[int]
    whole: list[int]


class Bundles:
    """``priced``: the problem with bundles in place of contents."""

    def __init__(self, problem: Priced) -> None:
        self._contents = problem.contents
        self._bundles: list[_Bundle] = []
        holders: list[list[int]] = [[] for _ in range(len(self._contents))]
        for version, held in enumerate(problem.held):
            for content in held:
                holders[content].append(version)
        self._holders = [tuple(versions) for versions in holders]
        self._place_all()
        full_bytes, full_ns = self._contents.full_bytes, self._contents.full_ns
        every = [[*bundle.members, *bundle.whole] for bundle in self._bundles]
        of = {content: number for number, each in enumerate(every) for content in each}
        self.priced = replace(
            problem,
            contents=Nodes(
                [sum(full_bytes[content] for content in contents) for contents in every],
                [sum(full_ns[content] for content in contents) for contents in every],
                [self._edge(i) for i, each in enumerate(self._bundles) if each.base is not None],
            ),
            held=[list({of[content]: None for content in held}) for held in problem.held],
        )

    def _place_all(self) -> None:
        """Puts every content in a bundle, those of the largest trees first."""
        roots: dict[tuple[int, ...], list[int]] = defaultdict(list)  # bundles, by their versions
        below: dict[tuple[int, tuple[int, ...]], int] = {}  # bundles, by base and versions
        for tree in sorted(self._contents.trees, key=lambda tree: -self._size(tree.nodes)):
            holders = [self._holders[node] for node in tree.nodes]
            for root in roots[holders[0]]:
                found = [root]
                for link, versions in zip(tree.up[1:], holders[1:], strict=True):
                    assert link is not None
                    found.append(below.get((found[link[0]], versions), -1))
                if -1 not in found:
                    break
            else:
                found = []
                for link, versions in zip(tree.up, holders, strict=True):
                    base = None if link is None else found[link[0]]
                    found.append(len(self._bundles))
                    self._bundles.append(_Bundle(base, [], []))
                    roots[versions].append(found[-1])
                    if base is not None:
                        below.setdefault((base, versions), found[-1])
            for number, node, link in zip(found, tree.nodes, tree.up, strict=True):
                bundle = self._bundles[number]
                joins = link is None and bundle.base is not None
                (bundle.whole if joins else bundle.members).append(node)

    def _size(self, contents: Iterable[int]) -> int:
        return sum(self._contents.full_bytes[content] for content in contents)

    def _deltas(self, bundle: _Bundle) -> list[int]:
        """The numbers of the deltas that make a bundle's members."""
        ups = (self._contents.parents[content] for content in bundle.members)
        return [up[1] for up in ups if up is not None]

    def _lost(self, bundle: _Bundle) -> Sequence[int]:
        """What of its base no delta leads back to."""
        edges = [self._contents.edges[number] for number in self._deltas(bundle)]
        back = {edge.a for edge in edges if not edge.forward}
        base = self._bundles[bundle.base or 0]
        return [content for content in base.members if content not in back]

    def _edge(self, number: int) -> Edge:
        bundle = self._bundles[number]
        assert bundle.base is not None
        edges = [self._contents.edges[delta] for delta in self._deltas(bundle)]
        most = _LOSS * self._size(self._bundles[bundle.base].members)
        return Edge(
            bundle.base,
            number,
            sum(edge.bytes for edge in edges) + self._size(bundle.whole),
            sum(edge.ns for edge in edges),
            forward=self._size(self._lost(bundle)) > most,
        )

    def contents(self, layout: Selected) -> Selected:
        """The layout of the contents that one of the bundles stands for."""
        sources, edges = set[int](), set[int]()
        times = self.priced.contents.recovery(layout)
        for number in layout.sources:
            sources.update(self._bundles[number].members, self._bundles[number].whole)
        for number in layout.edges:
            edge = self.priced.contents.edges[number]
            bundle = self._bundles[edge.b]
            edges.update(self._deltas(bundle))
            sources.update(bundle.whole)
            if times.get(edge.b, 0) + edge.ns == times.get(edge.a):
                sources.update(self._lost(bundle))
        return Selected(frozenset(sources), frozenset(edges))
