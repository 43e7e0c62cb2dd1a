"""The layout of the lowest price, where bytes and seconds of recovery are weighed together.

A content that did not change is stored once; of each one that did it is decided apart whether it is
stored in full or as a delta. So a version stored in full, an update (what changed, in full) and
lossless deltas are layouts among others. A version with a recipe may give up its weights: contents
that no other version has are not stored then, and nothing is decoded through them.

Nodes depend on each other in trees, and apart from the bound the price is a sum over these
trees, so ``cheapest_tree`` finds the optimum of each. Two things join them. The bound is on whole
versions: each tree gets a part of it, then one after the other is planned again within what the
others leave of it, as long as that helps. Which weights to give up is searched by changing one
version at a time, from none and from all.

The fewest bytes within a bound are the lowest price where time costs next to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from msgspec import Struct

from mvc.maintenance.repack.solve.graph import Nodes, Selected, Tree
from mvc.maintenance.repack.solve.tree import cheapest_tree

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
        each = zip(problem.held, problem.fixed_ns, strict=True)
        self.shortest = max(
            (ns + sum(self._least[c] for c in held) for held, ns in each), default=0
        )
        shares = [(_share(self._contents, tree), tree) for tree in self._contents.trees]
        self._trees = [tree for _, tree in sorted(shares, key=lambda each: -each[0])]
        # Of the bound, by content.
        self._shares = {node: share for share, tree in shares for node in tree.nodes}
        self._free: dict[tuple[int, tuple[float, ...]], Selected] = {}  # by tree and prices

    def cheapest(self, bound: int | None = None) -> PricedLayout | None:
        """The layout of the lowest price found within the bound; None if none was found."""
        bound = self.problem.bound if bound is None else bound
        trainings = self.problem.trainings or {}
        able = frozenset(v for v, training in trainings.items() if training.ns <= bound)
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
