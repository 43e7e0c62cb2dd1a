"""The layout of the lowest price, where bytes and seconds of recovery are weighed together.

Here the nodes of the planning graph are contents (tensors), not versions: one that did not change
is stored once, and of each that did it is decided apart whether it is stored in full or as a delta.
So a version stored in full, an update (what changed, in full) and lossless deltas are layouts among
others. A version with a recipe may give up its weights: contents that no other version has are
not stored then, and nothing is decoded through them.

Contents depend on each other in trees, and apart from the bound the price is a sum over these
trees, so ``exact.cheapest_tree`` finds the optimum of each. Two things join them. Where a version
exceeds the bound, its nanoseconds become dearer until it does not (Lagrange multipliers). Which
weights to give up is searched by changing one version at a time, from none and from all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mvc.maintenance.repack.solve import ENDLESS, Priced, PricedLayout, Selected
from tests.maintenance.old_planner.exact import cheapest_tree

_ROUNDS = 40  # in which recoveries become dearer or cheaper
_AGAIN = 4  # rounds after a change of one version
_DEARER, _EASED = 1.6, 0.6  # factors of a version above the bound, of all if none is
_PASSES = 3  # over the recipes


def cheapest(problem: Priced) -> PricedLayout | None:
    """The layout of the lowest price found within the bound; None if none was found."""
    search = _PriceSearch(problem)
    trainings = problem.trainings or {}
    able = frozenset(v for v, training in trainings.items() if training.ns <= problem.bound)
    found = [search.improved(start, able) for start in {frozenset[int](), able}]
    return min((f for f in found if f is not None), key=lambda f: f.price, default=None)


class _PriceSearch:
    def __init__(self, problem: Priced) -> None:
        self._problem = problem
        self._trees = problem.contents.trees
        self._costs = [1.0] * len(problem.holdings)  # of a nanosecond of each version's recovery
        self._known: dict[tuple[int, tuple[float, ...]], Selected] = {}

    def improved(self, given_up: frozenset[int], able: Iterable[int]) -> PricedLayout | None:
        """Changes one version at a time, the newest first, as long as the price falls."""
        self._costs = [1.0] * len(self._problem.holdings)
        best = self._priced(given_up, _ROUNDS)
        for _ in range(_PASSES):
            before = best
            for version in sorted(able, reverse=True):
                tried = self._priced((best.dropped if best else given_up) ^ {version}, _AGAIN)
                if tried is not None and (best is None or tried.price < best.price):
                    best = tried
            if best is before:
                break
        return best

    def _priced(self, given_up: frozenset[int], rounds: int) -> PricedLayout | None:
        """The best layout if these versions give up their weights; None if none was found.

        The multipliers that last kept the bound are tried first.
        """
        bound, count = self._problem.bound, len(self._problem.holdings)
        needs = [self._needs(given_up, version) for version in range(count)]
        costs = self._costs
        simple = self._simple(self._prices(needs, costs))
        found = [self._made(layout, given_up, needs) for layout in simple]
        for _ in range(rounds):
            made = self._made(self._layout(self._prices(needs, costs)), given_up, needs)
            found.append(made)
            late = [ns > bound for ns in made.ns]
            if not any(late):
                self._costs = costs
                if max(costs, default=1.0) == 1.0:
                    break
                costs = [max(1.0, cost * _EASED) for cost in costs]
            else:
                costs = [c * _DEARER if slow else c for c, slow in zip(costs, late, strict=True)]
        fitting = [made for made in found if max(made.ns, default=0) <= bound]
        return min(fitting, key=lambda made: made.price, default=None)

    def _needs(self, given_up: frozenset[int], version: int) -> tuple[list[int], int]:
        """The contents from which a version is made, and the nanoseconds beside decoding them."""
        contents, ns = list[int](), 0
        while version in given_up:
            assert self._problem.trainings is not None
            training = self._problem.trainings[version]
            contents += training.stored
            version, ns = training.base, ns + training.ns
        return [*contents, *self._problem.holdings[version]], ns + self._problem.fixed_ns[version]

    def _prices(
        self, needs: Sequence[tuple[Sequence[int], int]], costs: Sequence[float]
    ) -> Sequence[float]:
        """What a nanosecond of each content costs in bytes; 0 if no version needs the content."""
        prices = [0.0] * len(self._problem.contents)
        for (contents, _), cost in zip(needs, costs, strict=True):
            for content in contents:
                prices[content] += cost / self._problem.weight
        return prices

    def _layout(self, prices: Sequence[float]) -> Selected:
        sources, edges = set[int](), set[int]()
        for number, tree in enumerate(self._trees):
            here = tuple(prices[node] for node in tree.nodes)
            if (number, here) not in self._known:
                layout = cheapest_tree(self._problem.contents, tree, ENDLESS - 1, here)
                assert layout is not None  # every content in full is one
                self._known[number, here] = layout
            sources |= self._known[number, here].sources
            edges |= self._known[number, here].edges
        return Selected(frozenset(sources), frozenset(edges))

    def _simple(self, prices: Sequence[float]) -> Iterator[Selected]:
        """Everything needed in full, and every delta between two that are needed."""
        contents = self._problem.contents
        needed = {i for i, price in enumerate(prices) if price}
        yield Selected(frozenset(needed), frozenset())
        parents = contents.parents
        edges = {i: up[1] for i in needed if (up := parents[i]) is not None and up[0] in needed}
        yield Selected(frozenset(needed - edges.keys()), frozenset(edges.values()))

    def _made(
        self,
        layout: Selected,
        given_up: frozenset[int],
        needs: Sequence[tuple[Sequence[int], int]],
    ) -> PricedLayout:
        stored = self._problem.contents.stored(layout)
        decoding = self._problem.contents.recovery(layout)
        ns = [ns + sum(decoding[content] for content in contents) for contents, ns in needs]
        return PricedLayout(layout, given_up, ns, self._problem.weight * stored + sum(ns))
