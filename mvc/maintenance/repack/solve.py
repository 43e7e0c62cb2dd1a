"""Chooses for ``repack`` which tensors are stored in full, and which are stored as deltas.

A *content* is the bytes of one tensor. If several versions have the same content, it is stored
once. A *layout* consists of contents that are stored in full, its *sources*, and of deltas. A
content is recovered from a source by the fastest path of deltas. Sizes are in bytes. Times are in
whole nanoseconds, so that sums are exact.

The *price* of a layout combines its size and the recovery times of all versions. ``Priced.weight``
converts between bytes and nanoseconds. Prices of trees are in bytes, the price of a
``PricedLayout`` is in nanoseconds. The contents and the deltas between them form trees.
``cheapest_tree`` finds the cheapest layout of one tree.

A *bound* is the largest allowed recovery time of a version. A version has contents of several
trees, so each tree gets a part of the bound. Then each tree is planned again within the time that
the other trees leave of the bound.

If a version has a recipe (a recorded training that computes its weights), its weights may be
*dropped*: contents that no other version has are not stored. The search for weights to drop changes
one version at a time. It runs twice: it starts once without dropped weights, and once with all
weights dropped that may be dropped.
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
"""If a content and its descendants are ``MOST`` contents or more, they become a separate tree.

This limits memory: the search in a tree of n contents needs up to n * n numbers.
"""


class Edge(Struct, frozen=True):
    """The delta from content ``a`` to the later content ``b``.

    ``forward``: whether the delta only recovers ``b`` from ``a``, and cannot be reversed to recover
    ``a`` from ``b``.
    """

    a: int
    b: int
    bytes: int
    ns: int
    forward: bool = False


class Selected(Struct, frozen=True):
    """A layout. ``sources``: the contents that are stored in full. ``edges``: the indices in
    ``Nodes.edges`` of the deltas that are stored.
    """

    sources: frozenset[int]
    edges: frozenset[int]


class Tree(Struct, frozen=True):
    """A content and its descendants. In ``nodes``, parents come before children.

    ``up[i]`` describes the parent of ``nodes[i]``: its index in ``nodes``, and the index in
    ``Nodes.edges`` of the edge from the parent. None for the first node.
    """

    nodes: Sequence[int]
    up: Sequence[tuple[int, int] | None]


class Nodes(Struct, frozen=True, dict=True):
    """The contents and their possible deltas.

    ``full_bytes[i]`` and ``full_ns[i]``: size and recovery time of content ``i`` if it is stored in
    full. ``edges``: the possible deltas.
    """

    full_bytes: Sequence[int]
    full_ns: Sequence[int]
    edges: Sequence[Edge]

    def __len__(self) -> int:
        return len(self.full_bytes)

    @cached_property
    def around(self) -> list[list[tuple[int, int]]]:
        """For each content x: pairs (y, delta), where the delta recovers the content y from x."""
        table: list[list[tuple[int, int]]] = [[] for _ in range(len(self))]
        for i, edge in enumerate(self.edges):
            table[edge.a].append((edge.b, i))
            if not edge.forward:
                table[edge.b].append((edge.a, i))
        return table

    @cached_property
    def parents(self) -> list[tuple[int, int] | None]:
        """For each content: its parent (the base of its delta), and the edge from the parent."""
        parents: list[tuple[int, int] | None] = [None] * len(self)
        for i, edge in enumerate(self.edges):
            parents[edge.b] = (edge.a, i)
        return parents

    @cached_property
    def trees(self) -> list[Tree]:
        """The trees of contents. The nodes of each tree are in depth-first order.

        A *family* is a content with its descendants. Of the children of a node, the child with the
        largest family comes first. A family with ``MOST`` contents or more is a separate tree, and
        the delta from another tree to its first content is not used.
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
        positions: dict[int, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            positions[node] = len(nodes)
            nodes.append(node)
            above = self.parents[node]
            up.append(None if above is None or node == root else (positions[above[0]], above[1]))
            stack.extend(sorted(children[node], key=families.__getitem__))
        return Tree(nodes, up)

    @property
    def everything(self) -> Selected:
        """The fastest layout: every content in full, and every delta of the trees."""
        edges = (link[1] for tree in self.trees for link in tree.up if link is not None)
        return Selected(frozenset(range(len(self))), frozenset(edges))

    def stored(self, layout: Selected) -> int:
        """The number of bytes that a layout stores."""
        full = sum(self.full_bytes[i] for i in layout.sources)
        return full + sum(self.edges[i].bytes for i in layout.edges)

    def recovery(self, layout: Selected) -> dict[int, int]:
        """Maps each content that can be recovered to its recovery time in nanoseconds."""
        times: dict[int, int] = {}
        heap = [(self.full_ns[i], i) for i in layout.sources]
        heapify(heap)
        while heap:
            ns, node = heappop(heap)
            if node in times:
                continue
            times[node] = ns
            for other, edge in self.around[node]:
                if other not in times and edge in layout.edges:
                    heappush(heap, (ns + self.edges[edge].ns, other))
        return times


_NEVER = np.int64(1) << 60  # the price of an impossible layout

_Row = NDArray[np.int64]


def cheapest_tree(
    contents: Nodes, tree: Tree, prices: Sequence[float], limits: Sequence[float]
) -> Selected | None:
    """The cheapest layout of a tree that meets all limits; None if no layout does.

    ``prices``: for each content of the tree, how many bytes a nanosecond of its recovery time is
    worth; 0: the content is not stored, and no path leads through it. ``limits``: for each content,
    its largest allowed recovery time in nanoseconds.
    """
    if len(tree.nodes) == 1:
        (node,) = tree.nodes
        if prices[0] and contents.full_ns[node] > limits[0]:
            return None
        return Selected(frozenset(tree.nodes if prices[0] else ()), frozenset())
    return _Search(contents, tree, prices, limits).run()


class _Best(Struct):
    """The cheapest layout of a family (a content with its descendants) that uses no source outside
    the family.

    ``bytes``: the layout's price. ``source``: the source from which the family's first content is
    recovered; None if this content is not stored.
    """

    bytes: int
    source: int | None


class _Search:
    """Finds the cheapest layout of a tree.

    Visits the contents from the leaves to the root. For each content and each possible source,
    computes the price of the content's family if the content is recovered from this source. Parents
    come before their descendants in the arrays, so that a family is a slice of an array.
    """

    def __init__(
        self,
        contents: Nodes,
        tree: Tree,
        prices: Sequence[float],
        limits: Sequence[float],
    ) -> None:
        self._tree, self._prices, self._limits = tree, prices, limits
        count = len(tree.nodes)
        # For each content: the price of its children's families if each family uses only sources
        # of its own.
        self._separate = [0] * count
        self._full = np.array([contents.full_bytes[i] for i in tree.nodes], np.int64)
        self._bytes = np.zeros(count, np.int64)
        self._ns = np.zeros(count, np.int64)
        # For each content: how many forward deltas are on the path from the first content.
        self._barriers = np.zeros(count, np.int64)
        self._end = list(range(1, count + 1))  # end of each family's slice
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
        # For each source: the time to recover the current content from this source, and whether
        # this is impossible, because a forward delta would have to be reversed.
        self._away = depth + np.array([contents.full_ns[i] for i in tree.nodes], np.int64)
        self._barred = self._barriers > 0
        # Maps a content to a row. For each source, the row has the total price of the families of
        # the content's children. Only children that the search has visited are included.
        self._costs: dict[int, _Row] = {}
        self._own: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * count
        self._best: list[_Best | None] = [None] * count

    def run(self) -> Selected | None:
        """Visits the contents depth first. Updates ``_away`` and ``_barred`` whenever the search
        moves along an edge.
        """
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
        """Updates ``_away`` and ``_barred`` for a step from the parent to content i (``down``), or
        from i to the parent.
        """
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
        """Computes the price of i's family for every source, and adds it to the parent's row."""
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
            self._best[i] = _Best(self._separate[i], None)
        if parent is None:
            return
        row += self._bytes[i]
        best = self._best[i]
        separate = _NEVER if best is None else np.int64(best.bytes)
        self._separate[parent] = min(self._separate[parent] + int(separate), int(_NEVER))
        cut = row > separate
        cut[family] = False  # the path from a source in i's family to the parent leads through i
        self._own[i] = np.packbits(cut)
        np.copyto(row, separate, where=cut)
        np.minimum(row, _NEVER, out=row)
        total = self._costs.get(parent)
        self._costs[parent] = row if total is None else np.minimum(total + row, _NEVER)
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


BYTES_ONLY = 1e9
"""A ``Priced.weight`` to find the smallest layout: a byte is worth a second."""
ENDLESS = 1 << 60
"""More nanoseconds than any recovery takes."""
_SWEPT = 24  # how many bounds ``Solver.sweep`` tries
_PASSES = 3  # maximum number of passes in ``_improved`` and in ``_replanned``


class Training(Struct, frozen=True):
    """A recipe, which computes the weights of a version from the earlier version ``base``.

    ``ns``: how long the computation takes. ``stored``: the contents of the version that the recipe
    does not compute, and that must be stored.
    """

    base: int
    ns: int
    stored: Sequence[int] = ()


class Priced(Struct, frozen=True):
    """The problem to solve.

    ``holdings``: for each version, its contents. ``fixed_ns``: for each version, the part of its
    recovery time that is not decoding. ``trainings``: maps a version to its recipe. ``weight``: how
    many nanoseconds a stored byte is worth (seconds per gigabyte). ``bound``: the largest allowed
    recovery time in nanoseconds.
    """

    contents: Nodes
    holdings: Sequence[Sequence[int]]
    fixed_ns: Sequence[int]
    weight: float
    bound: int = ENDLESS
    trainings: Mapping[int, Training] | None = None


class PricedLayout(Struct, frozen=True):
    """A ``layout`` of contents, and the versions whose weights are ``dropped``.

    ``ns``: for each version, its recovery time. ``price``: the sum of these times, plus the stored
    bytes converted to nanoseconds by ``Priced.weight``.
    """

    layout: Selected
    dropped: frozenset[int]
    ns: Sequence[int]
    price: float

    @property
    def worst(self) -> int:
        """The longest recovery."""
        return max(self.ns, default=0)


class _Needs(Struct, frozen=True):
    """What the recovery of each version needs if the versions ``dropped`` drop their weights.

    ``contents``: for each version, the contents to decode. ``fixed_ns``: for each version, the part
    of its recovery time that is not decoding. ``use``: for each content, the versions that decode
    it. ``prices``: for each content, how many bytes a nanosecond of its recovery time is worth.
    """

    dropped: frozenset[int]
    contents: list[list[int]]
    fixed_ns: list[int]
    use: list[list[int]]
    prices: list[float]


class Solver:
    """Finds layouts for a problem.

    ``shortest``: the smallest bound that a layout without dropped weights can meet.
    """

    def __init__(self, problem: Priced) -> None:
        self.problem, self._contents = problem, problem.contents
        self._least = self._contents.recovery(self._contents.everything)
        self.shortest = max(map(self._shortest, range(len(problem.holdings))), default=0)
        shares = [(_share(self._contents, tree), tree) for tree in self._contents.trees]
        self._trees = [
            tree for _, tree in sorted(shares, key=lambda share_and_tree: -share_and_tree[0])
        ]
        # For each content: the share of its tree when the bound is divided among trees.
        self._shares = {node: share for share, tree in shares for node in tree.nodes}
        # Maps the number of a tree and the prices of its contents to the cheapest layout without a
        # bound.
        self._free: dict[tuple[int, tuple[float, ...]], Selected] = {}

    def _shortest(self, version: int) -> int:
        """The recovery time of a version if all contents and deltas are stored."""
        problem = self.problem
        return problem.fixed_ns[version] + sum(self._least[c] for c in problem.holdings[version])

    def cheapest(self, bound: int | None = None) -> PricedLayout | None:
        """The cheapest layout that the search finds within the bound. None if it finds none."""
        bound = self.problem.bound if bound is None else bound
        trainings = self.problem.trainings or {}
        candidates = frozenset(
            v
            for v, training in trainings.items()
            if training.ns + self._shortest(training.base) <= bound
        )
        layouts = [
            self._improved(start, candidates, bound) for start in {frozenset[int](), candidates}
        ]
        return min((f for f in layouts if f is not None), key=lambda f: f.price, default=None)

    def sweep(self) -> list[PricedLayout]:
        """Layouts for growing bounds: the first recovers fastest, the last needs the fewest bytes.

        The bounds grow by a constant factor. Omits a layout that is not smaller than the layout
        before it.
        """
        smallest, low = self.cheapest(), max(1, self.shortest)
        high = max(low, 0 if smallest is None else smallest.worst)
        ratio = (high / low) ** (1 / (_SWEPT - 1))
        layouts: list[PricedLayout] = []
        for bound in sorted({low, high} | {round(low * ratio**i) for i in range(1, _SWEPT - 1)}):
            layout, stored = self.cheapest(bound), self._contents.stored
            if layout and (not layouts or stored(layout.layout) < stored(layouts[-1].layout)):
                layouts.append(layout)
        return layouts

    def _improved(
        self, dropped: frozenset[int], candidates: Iterable[int], bound: int
    ) -> PricedLayout | None:
        """Improves the layout in which the versions ``dropped`` drop their weights.

        For each candidate, newest first, drops the weights, or stores dropped weights, if this
        lowers the price. Repeats this until no change lowers the price, at most ``_PASSES`` times.
        """
        best = self._best(dropped, bound)
        for _ in range(_PASSES):
            before = best
            for version in sorted(candidates, reverse=True):
                layout = self._best((best.dropped if best else dropped) ^ {version}, bound)
                if layout is not None and (best is None or layout.price < best.price):
                    best = layout
            if best is before:
                break
        return best

    def _best(self, dropped: frozenset[int], bound: int) -> PricedLayout | None:
        """The cheapest layout found in which exactly the versions ``dropped`` drop their weights.

        None if no layout was found.
        """
        needs = self._needs(dropped)
        free = self._priced([self._unlimited(i, needs) for i in range(len(self._trees))], needs)
        if free.worst <= bound:
            return free
        layouts = []
        rare = {c: self._least[c] / max(1, len(used)) for c, used in enumerate(needs.use)}
        for shares in (self._shares, self._least, rare) if len(self._trees) > 1 else (rare,):
            limits = self._limits(needs, bound, shares)
            if limits is None:
                return None
            parts = [self._layout(tree, needs, limits) for tree in self._trees]
            layouts.append(self._priced(self._replanned(parts, needs, bound), needs))
        return min(layouts, key=lambda layout: layout.price)

    def _needs(self, dropped: frozenset[int]) -> _Needs:
        count, problem = len(self.problem.holdings), self.problem
        needs = _Needs(
            dropped, [], [], use=[[] for _ in self._shares], prices=[0.0] * len(self._shares)
        )
        for number in range(count):
            contents, ns, version = list[int](), 0, number
            while version in dropped:
                assert problem.trainings is not None
                training = problem.trainings[version]
                contents += training.stored
                version, ns = training.base, ns + training.ns
            contents += problem.holdings[version]
            needs.contents.append(contents)
            needs.fixed_ns.append(ns + problem.fixed_ns[version])
            for content in contents:
                needs.use[content].append(number)
                needs.prices[content] += 1 / problem.weight
        return needs

    def _limits(
        self, needs: _Needs, bound: int, shares: Mapping[int, float]
    ) -> dict[int, float] | None:
        """The largest allowed recovery time of each content. None if the bound is too short.

        A content gets its shortest time and a part of the time that is left, in proportion to
        ``shares``.
        """
        limits: dict[int, float] = {}
        for contents, fixed_ns in zip(needs.contents, needs.fixed_ns, strict=True):
            slack = bound - fixed_ns - sum(self._least[c] for c in contents)
            if slack < 0:
                return None
            total = sum(shares[c] for c in contents) or 1.0
            for c in contents:
                limit = self._least[c] + slack * shares[c] / total
                limits[c] = min(limit, limits.get(c, limit))
        return limits

    def _unlimited(self, number: int, needs: _Needs) -> Selected:
        """The cheapest layout of a tree without a bound."""
        key = number, tuple(needs.prices[node] for node in self._trees[number].nodes)
        if key not in self._free:
            self._free[key] = self._layout(self._trees[number], needs, {})
        return self._free[key]

    def _layout(self, tree: Tree, needs: _Needs, limits: Mapping[int, float]) -> Selected:
        """The cheapest layout of a tree within ``limits``.

        The caller ensures that some layout meets them.
        """
        prices = [needs.prices[node] for node in tree.nodes]
        bounds = [limits.get(node, ENDLESS) for node in tree.nodes]
        layout = cheapest_tree(self._contents, tree, prices, bounds)
        assert layout is not None
        return layout

    def _replanned(self, parts: list[Selected], needs: _Needs, bound: int) -> list[Selected]:
        """Plans each tree again, within the time that its versions have left until the bound.

        Repeats this until no layout changes, at most ``_PASSES`` times.
        """
        times = [self._contents.recovery(part) for part in parts]
        totals = list(needs.fixed_ns)
        for tree_times in times:
            _count(totals, tree_times, needs, 1)
        for _ in range(_PASSES):
            before = list(parts)
            for i, tree in enumerate(self._trees):
                if len(tree.nodes) == 1:
                    continue
                slack = [bound - total for total in totals]
                layout = self._layout(tree, needs, _raised(times[i], slack, needs))
                if layout != parts[i]:
                    _count(totals, times[i], needs, -1)
                    parts[i], times[i] = layout, self._contents.recovery(layout)
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
        return PricedLayout(layout, needs.dropped, ns, price)


def _raised(times: Mapping[int, int], slack: Sequence[int], needs: _Needs) -> dict[int, float]:
    """Maps each content of a tree to a new limit, in proportion to its recovery time ``times``.

    With these limits, the recovery time of each version grows by at most its ``slack``.
    """
    totals: dict[int, int] = defaultdict(int)
    for content, ns in times.items():
        for version in needs.use[content]:
            totals[version] += ns
    return {
        content: ns * (1 + min((slack[v] / totals[v] for v in needs.use[content]), default=0))
        for content, ns in times.items()
    }


def _share(contents: Nodes, tree: Tree) -> float:
    """The share of a tree when a bound is divided among trees.

    This is the square root of (bytes that the tree's deltas save * mean time of a delta). If the
    sources are evenly spaced in each tree, these shares give the fewest bytes in total.
    """
    edges = [contents.edges[link[1]] for link in tree.up if link is not None]
    saved = sum(contents.full_bytes[edge.b] - edge.bytes for edge in edges)
    seconds = sum(edge.ns for edge in edges)
    return sqrt(max(0, saved) * seconds / max(1, len(edges)))


def _count(totals: list[int], times: Mapping[int, int], needs: _Needs, sign: int) -> None:
    for content, ns in times.items():
        for version in needs.use[content]:
            totals[version] += sign * ns


# The delta between two bundles (``Bundles``) counts as not reversible if reversing it would leave
# more than this fraction of the base's bytes unrecovered.
_LOSS = 0.02


class _Bundle(Struct, frozen=True):
    """Contents that exactly the same versions have.

    ``members``: contents with a delta from a member of the bundle ``base``. ``full``: contents
    without such a delta. If ``base`` is None, all contents are members.
    """

    base: int | None
    members: list[int]
    full: list[int]


class Bundles:
    """Bundles the contents that exactly the same versions have, so that the solver has fewer nodes.

    ``priced``: the problem with bundles in place of contents.
    """

    def __init__(self, problem: Priced) -> None:
        self._contents = problem.contents
        self._bundles: list[_Bundle] = []
        holders: list[list[int]] = [[] for _ in range(len(self._contents))]
        for version, version_contents in enumerate(problem.holdings):
            for content in version_contents:
                holders[content].append(version)
        self._holders = [tuple(versions) for versions in holders]
        self._place_all()
        full_bytes, full_ns = self._contents.full_bytes, self._contents.full_ns
        contents_of = [[*bundle.members, *bundle.full] for bundle in self._bundles]
        bundle_of = {
            content: number for number, contents in enumerate(contents_of) for content in contents
        }
        self.priced = replace(
            problem,
            contents=Nodes(
                [sum(full_bytes[content] for content in contents) for contents in contents_of],
                [sum(full_ns[content] for content in contents) for contents in contents_of],
                [
                    self._edge(i)
                    for i, bundle in enumerate(self._bundles)
                    if bundle.base is not None
                ],
            ),
            holdings=[
                list({bundle_of[content]: None for content in version_contents})
                for version_contents in problem.holdings
            ],
        )

    def _place_all(self) -> None:
        """Puts every content in a bundle. Begins with the contents of the largest trees."""
        roots: dict[tuple[int, ...], list[int]] = defaultdict(list)  # maps versions to bundles
        below: dict[tuple[int, tuple[int, ...]], int] = {}  # maps base and versions to a bundle
        for tree in sorted(self._contents.trees, key=lambda tree: -self._size(tree.nodes)):
            holders = [self._holders[node] for node in tree.nodes]
            for root in roots[holders[0]]:
                numbers = [root]
                for link, versions in zip(tree.up[1:], holders[1:], strict=True):
                    assert link is not None
                    numbers.append(below.get((numbers[link[0]], versions), -1))
                if -1 not in numbers:
                    break
            else:
                numbers = []
                for link, versions in zip(tree.up, holders, strict=True):
                    base = None if link is None else numbers[link[0]]
                    numbers.append(len(self._bundles))
                    self._bundles.append(_Bundle(base, [], []))
                    roots[versions].append(numbers[-1])
                    if base is not None:
                        below.setdefault((base, versions), numbers[-1])
            for number, node, link in zip(numbers, tree.nodes, tree.up, strict=True):
                bundle = self._bundles[number]
                joins = link is None and bundle.base is not None
                (bundle.full if joins else bundle.members).append(node)

    def _size(self, contents: Iterable[int]) -> int:
        return sum(self._contents.full_bytes[content] for content in contents)

    def _deltas(self, bundle: _Bundle) -> list[int]:
        """The indices of the deltas whose results are the bundle's members."""
        ups = (self._contents.parents[content] for content in bundle.members)
        return [up[1] for up in ups if up is not None]

    def _lost(self, bundle: _Bundle) -> Sequence[int]:
        """The contents of the bundle's base that cannot be recovered by reversing the bundle's
        deltas.
        """
        edges = [self._contents.edges[number] for number in self._deltas(bundle)]
        back = {edge.a for edge in edges if not edge.forward}
        base = self._bundles[bundle.base or 0]
        return [content for content in base.members if content not in back]

    def _edge(self, number: int) -> Edge:
        bundle = self._bundles[number]
        assert bundle.base is not None
        edges = [self._contents.edges[delta] for delta in self._deltas(bundle)]
        limit = _LOSS * self._size(self._bundles[bundle.base].members)
        return Edge(
            bundle.base,
            number,
            sum(edge.bytes for edge in edges) + self._size(bundle.full),
            sum(edge.ns for edge in edges),
            forward=self._size(self._lost(bundle)) > limit,
        )

    def contents(self, layout: Selected) -> Selected:
        """Converts a layout of bundles to a layout of contents."""
        sources, edges = set[int](), set[int]()
        times = self.priced.contents.recovery(layout)
        for number in layout.sources:
            sources.update(self._bundles[number].members, self._bundles[number].full)
        for number in layout.edges:
            edge = self.priced.contents.edges[number]
            bundle = self._bundles[edge.b]
            edges.update(self._deltas(bundle))
            sources.update(bundle.full)
            if times.get(edge.b, 0) + edge.ns == times.get(edge.a):
                sources.update(self._lost(bundle))
        return Selected(frozenset(sources), frozenset(edges))
