"""The layout of the lowest price: against every choice there is, and against single approaches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from mvc.maintenance.repack.solve import (
    Edge,
    Nodes,
    Priced,
    PricedLayout,
    Selected,
    Solver,
    Training,
)

KINDS = ("full", "update", "delta", "recipe")


class Assigned:
    """A problem under one kind a version, forward only, as one commit after the other does it."""

    def __init__(self, problem: Priced) -> None:
        self.problem, self.contents = problem, problem.contents

    def price(self, kinds: Sequence[str]) -> float | None:
        """None if a version exceeds the bound."""
        p = self.problem
        sources, edges, stored = set[int](), set[int](), set[int]()
        needs: list[tuple[list[int], int]] = []
        for version, kind in enumerate(kinds):
            mine = p.holdings[version]
            if kind == "recipe":
                assert p.trainings is not None
                training = p.trainings[version]
                contents, ns = needs[training.base]
                needs.append(([*training.stored, *contents], ns + training.ns))
                mine, kind = training.stored, "update"
            else:
                needs.append((list(mine), p.fixed_ns[version]))
            for content in mine:
                up = self.contents.parents[content]
                if kind == "full":
                    sources.add(content)
                elif content not in stored and kind == "delta" and up and up[0] in stored:
                    edges.add(up[1])
                elif content not in stored:
                    sources.add(content)
            stored.update(mine)
        layout = Selected(frozenset(sources), frozenset(edges))
        times = self.contents.recovery(layout)
        total = 0
        for contents, ns in needs:
            ns += sum(times[content] for content in contents)
            if ns > p.bound:
                return None
            total += ns
        return p.weight * self.contents.stored(layout) + total

    def kinds(self, version: int) -> Sequence[str]:
        return KINDS if version in (self.problem.trainings or {}) else KINDS[:3]

    def best(self) -> float | None:
        """Of every combination of kinds."""
        every = product(*(self.kinds(v) for v in range(len(self.problem.holdings))))
        return min((p for kinds in every if (p := self.price(kinds)) is not None), default=None)

    def single(self) -> Iterator[float]:
        """One kind for all versions; in full where there is no recipe."""
        for kind in KINDS:
            count = len(self.problem.holdings)
            kinds = [kind if kind in self.kinds(v) else "full" for v in range(count)]
            if (price := self.price(kinds)) is not None:
                yield price


def history(seed: int, versions: int, lines: int = 3) -> Priced:
    """A history with branches in which some tensors change, some trainings have recipes."""
    draw = random.Random(seed)
    full_bytes, full_ns, edges = list[int](), list[int](), list[Edge]()
    held: list[list[int]] = []
    trainings: dict[int, Training] = {}
    sizes = [draw.choice((1_000, 20_000, 300_000)) for _ in range(lines)]
    for version in range(versions):
        above = (
            None
            if not version or draw.random() < 0.1
            else draw.choice((version - 1, version - 1, draw.randrange(version)))
        )
        kind = draw.choice(("tuned", "small", "all"))
        mine = []
        for line, size in enumerate(sizes):
            if above is not None and kind == "tuned" and line != lines - 1:
                mine.append(held[above][line])
                continue
            mine.append(len(full_bytes))
            full_bytes.append(round(size * draw.uniform(0.8, 0.95)))
            full_ns.append(size // 2)
            if above is not None:
                share = {"small": 0.2, "tuned": 0.6, "all": 0.85}[kind] * draw.uniform(0.5, 1.1)
                forward = draw.random() < 0.2
                edges.append(Edge(held[above][line], mine[-1], round(size * share), size, forward))
        held.append(mine)
        if above is not None and draw.random() < 0.4:
            trainings[version] = Training(above, draw.choice((10**5, 10**6, 10**8)))
    fixed = [50_000] * versions
    most = max(sum(full_ns[c] for c in mine) for mine in held) + fixed[0]
    bound = round(most * draw.choice((1.0, 2.0, 4.0, 1000.0)))
    weight = draw.choice((0.3, 3.0, 30.0))
    return Priced(Nodes(full_bytes, full_ns, edges), held, fixed, weight, bound, trainings)


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_kinds_is_cheaper_by_a_twentieth(seed: int) -> None:
    problem = history(seed, 6)
    found, best = Solver(problem).cheapest(), Assigned(problem).best()
    assert found is not None
    assert best is not None
    assert found.price <= 1.05 * best


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_holds_and_no_single_approach_is_cheaper(seed: int) -> None:
    problem = history(seed, 25, lines=4)
    found = Solver(problem).cheapest()
    assert found is not None
    check(problem, found)
    for price in Assigned(problem).single():
        assert found.price <= price * (1 + 1e-9)


def check(problem: Priced, found: PricedLayout) -> None:
    """Every version can be made within the bound, and the price is what it says."""
    times = problem.contents.recovery(found.layout)
    total = 0
    for version, ns in enumerate(found.ns):
        origin, took, contents = version, 0, list[int]()
        while origin in found.dropped:
            assert problem.trainings is not None
            training = problem.trainings[origin]
            took += training.ns
            contents += training.stored
            origin = training.base
        parts = [times[content] for content in (*contents, *problem.holdings[origin])]
        assert ns == took + problem.fixed_ns[origin] + sum(parts)
        assert ns <= problem.bound
        total += ns
    price = problem.weight * problem.contents.stored(found.layout) + total
    assert found.price == pytest.approx(price)
