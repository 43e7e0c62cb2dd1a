"""The planner of ``repack`` against brute force, and its shapes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.maintenance.repack import solve
from mvc.maintenance.repack.goal import Goal, plain
from mvc.maintenance.repack.plan import CurvePoint
from mvc.maintenance.repack.planner import front
from mvc.maintenance.repack.solve import (
    BYTES_ONLY,
    Bundles,
    Edge,
    Nodes,
    Priced,
    PricedLayout,
    Selected,
    Solver,
)


def alone(contents: Nodes) -> Priced:
    """Versions of one content each."""
    count = len(contents)
    return Priced(contents, [[i] for i in range(count)], [0] * count, BYTES_ONLY)


def chain(
    count: int,
    full: tuple[int, int] = (10, 60),
    edge: tuple[int, int] = (1, 40),
    forward: float = 0.0,
    seed: int = 0,
) -> Priced:
    """A chain of versions with random costs."""
    pick = random.Random(seed)
    edges = [
        Edge(i, i + 1, pick.randint(*edge), pick.randint(1, 9), pick.random() < forward)
        for i in range(count - 1)
    ]
    sizes = [pick.randint(*full) for _ in range(count)]
    return alone(Nodes(sizes, [pick.randint(1, 9) for _ in range(count)], edges))


def branching(count: int, seed: int, forward: float = 0.2) -> Priced:
    """A forest of versions."""
    pick = random.Random(seed)
    edges = [
        Edge(pick.randrange(i), i, pick.randint(1, 40), pick.randint(1, 9), pick.random() < forward)
        for i in range(1, count)
        if pick.random() < 0.9
    ]
    sizes = [pick.randint(10, 60) for _ in range(count)]
    return alone(Nodes(sizes, [pick.randint(1, 9) for _ in range(count)], edges))


def lines(versions: int, tensors: int, seed: int, *, together: bool = False) -> Priced:
    """Versions of several tensors, each of which changes now and then, or all ``together``."""
    pick = random.Random(seed)
    sizes, times, edges, held = list[int](), list[int](), list[Edge](), list[list[int]]()
    scales = [pick.choice((10, 40, 200)) for _ in range(tensors)]
    for version in range(versions):
        mine = []
        for line, scale in enumerate(scales):
            if version and not together and pick.random() < 0.3:
                mine.append(held[-1][line])
                continue
            if version:
                size = round(scale * pick.uniform(0.2, 0.7))
                edges.append(Edge(held[-1][line], len(sizes), size, scale))
            mine.append(len(sizes))
            sizes.append(round(scale * pick.uniform(0.8, 1)))
            times.append(scale)
        held.append(mine)
    return Priced(Nodes(sizes, times, edges), held, [5] * versions, BYTES_ONLY)


def layouts(contents: Nodes) -> Iterator[tuple[int, dict[int, int]]]:
    """Every layout from which all contents come back, with its bytes and times."""
    for sources, edges in product(subsets(len(contents)), subsets(len(contents.edges))):
        layout = Selected(sources, edges)
        times = contents.recovery(layout)
        if len(times) == len(contents):
            yield contents.stored(layout), times


def subsets(count: int) -> list[frozenset[int]]:
    every = range(count)
    return [frozenset(some) for k in range(count + 1) for some in combinations(every, k)]


def frontier(problem: Priced) -> dict[int, int]:
    """The bytes that each worst recovery takes at least, from all layouts."""
    best: dict[int, int] = {}
    for size, times in layouts(problem.contents):
        each = zip(problem.holdings, problem.fixed_ns, strict=True)
        worst = max(ns + sum(times[content] for content in held) for held, ns in each)
        best[worst] = min(size, best.get(worst, size))
    return best


def least_bytes(best: dict[int, int], bound: int) -> int | None:
    return min((size for worst, size in best.items() if worst <= bound), default=None)


def stored(problem: Priced, found: PricedLayout) -> int:
    """Bytes of a layout, which gives back all within the times that it says."""
    times = problem.contents.recovery(found.layout)
    for held, fixed, ns in zip(problem.holdings, problem.fixed_ns, found.ns, strict=True):
        assert ns == fixed + sum(times[content] for content in held)
    return problem.contents.stored(found.layout)


def check_against_all(problem: Priced, tolerated: float = 1.0) -> None:
    best, solver = frontier(problem), Solver(problem)
    for bound in range(min(best) - 1, max(best) + 2):
        found, wanted = solver.cheapest(bound), least_bytes(best, bound)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert wanted <= stored(problem, found) <= tolerated * wanted
            assert found.worst <= bound
    assert solver.shortest == min(best)
    least = min(best.values())
    smallest = solver.cheapest()
    assert smallest is not None and stored(problem, smallest) == least


@pytest.mark.parametrize("seed", range(12))
def test_a_chain_is_laid_out_as_well_as_any_of_all_layouts(seed: int) -> None:
    check_against_all(chain(2 + seed % 5, forward=0.3 if seed % 2 else 0.0, seed=seed))


def test_a_chain_of_seven_is_laid_out_as_well_as_any_of_all_layouts() -> None:
    check_against_all(chain(7, seed=99))


@pytest.mark.parametrize("seed", range(12))
def test_a_forest_is_laid_out_as_well_as_any_of_all_layouts(seed: int) -> None:
    check_against_all(branching(3 + seed % 4, seed))


@pytest.mark.parametrize("seed", range(12))
def test_tensors_that_change_by_themselves_come_near_the_best_of_all_layouts(seed: int) -> None:
    problem = lines(4, 2, seed)
    if len(problem.contents) <= 7:
        check_against_all(problem, tolerated=1.3)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 40), share=st.floats(0, 1))
def test_a_chain_in_parts_is_laid_out_nearly_as_well(seed: int, count: int, share: float) -> None:
    """A long chain is planned in parts: that costs one full record for each at most."""
    whole = chain(count, seed=seed)
    solver = Solver(whole)
    free = solver.cheapest()
    assert free is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "MOST", 10)
        parts = Nodes(whole.contents.full_bytes, whole.contents.full_ns, whole.contents.edges)
        assert len(parts.trees) == max(1, -(-count // 10)) or count % 10
        cut = Solver(replace(whole, contents=parts))
    bound = round(cut.shortest * (1 - share) + max(cut.shortest, free.worst) * share)
    best, found = solver.cheapest(bound), cut.cheapest(bound)
    assert best is not None and found is not None
    assert found.worst <= bound
    most = max(whole.contents.full_bytes) * (len(parts.trees) - 1)
    assert stored(whole, best) <= stored(whole, found) <= stored(whole, best) + most


@pytest.mark.parametrize("seed", range(8))
def test_what_changes_together_is_planned_as_one(seed: int) -> None:
    """The plan of bundles is the best of those that store versions as wholes."""
    problem = lines(6, 3, seed, together=True)
    bundles = Bundles(problem)
    assert len(bundles.priced.contents) == 6
    check_against_all(bundles.priced)
    solver = Solver(bundles.priced)
    free = solver.cheapest()
    assert free is not None
    found = solver.cheapest((solver.shortest + free.worst) // 2)
    assert found is not None
    spread = bundles.contents(found.layout)
    times = problem.contents.recovery(spread)
    assert problem.contents.stored(spread) == bundles.priced.contents.stored(found.layout)
    assert [5 + sum(times[c] for c in held) for held in problem.holdings] == list(found.ns)


def test_a_tensor_that_stays_is_in_no_bundle_with_others() -> None:
    contents = Nodes([5, 5, 9], [1, 1, 1], [Edge(0, 1, 2, 1)])
    bundles = Bundles(Priced(contents, [[0, 2], [1, 2]], [0, 0], BYTES_ONLY))
    assert len(bundles.priced.contents) == 3
    found = Solver(bundles.priced).cheapest()
    assert found is not None
    assert bundles.contents(found.layout).sources >= {2}
    assert contents.stored(bundles.contents(found.layout)) == 16


def test_the_sweep_falls_and_ends_at_the_least_bytes() -> None:
    problem = chain(60, seed=5)
    solver = Solver(problem)
    found, smallest = solver.sweep(), solver.cheapest()
    sizes = [stored(problem, each) for each in found]
    assert smallest is not None
    assert found[0].worst == solver.shortest
    assert sizes[-1] == stored(problem, smallest)
    assert len(found) > 5
    assert all(a > b for a, b in pairwise(sizes))
    assert all(a.worst < b.worst for a, b in pairwise(found))
    for size, each in zip(sizes, found, strict=True):
        again = solver.cheapest(each.worst)
        assert again is not None and stored(problem, again) == size


def at_interval(problem: Priced, interval: int) -> tuple[int, int]:
    """Bytes and worst recovery with full records so far apart in every line of versions."""
    contents = problem.contents
    depths: list[int] = []
    for up in contents.parents:
        depths.append(0 if up is None else depths[up[0]] + 1)
    sources = frozenset(i for i, depth in enumerate(depths) if depth % interval == 0)
    layout = Selected(sources, frozenset(range(len(contents.edges))))
    return contents.stored(layout), max(contents.recovery(layout).values())


def test_long_histories_are_planned() -> None:
    problem = chain(20_000, full=(900, 1100), edge=(80, 120), seed=3)
    size, worst = at_interval(problem, 12)
    found = Solver(problem).cheapest(worst)
    assert found is not None
    assert found.worst <= worst
    assert stored(problem, found) < size


def test_many_branches_are_planned() -> None:
    problem = branching(1500, seed=8, forward=0.05)
    size, worst = at_interval(problem, 10)
    found = Solver(problem).cheapest(worst)
    assert found is not None
    assert found.worst <= worst
    assert stored(problem, found) < size


def test_the_front_has_no_point_that_another_one_beats() -> None:
    fast, slow = CurvePoint(1000, 0.1, 0.1), CurvePoint(400, 9.0, 5.0)
    beaten, same = CurvePoint(900, 2.0, 1.0), CurvePoint(400, 9.5, 4.0)
    nearly, today = CurvePoint(999_999, 0.01, 0.01), CurvePoint(800, 1.0, 0.5)
    points = [slow, same, beaten, today, fast, CurvePoint(1_000_000, 0.005, 0.005), nearly]
    assert front(points) == (CurvePoint(1_000_000, 0.005, 0.005), fast, today, slow)
    assert front([]) == ()


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1))
def test_the_front_against_its_definition(pairs: list[tuple[int, int]]) -> None:
    points = [CurvePoint(1000 * size, float(time), 0.0) for size, time in pairs]
    best = {
        p
        for p in points
        if not any(
            q != p and q.bytes <= p.bytes and q.worst_seconds <= p.worst_seconds for q in points
        )
    }
    assert set(front(points)) == best
    sizes = [p.bytes for p in front(points)]
    assert sizes == sorted(set(sizes), reverse=True)


def test_plain_numbers() -> None:
    texts = [plain(x) for x in (1e-05, 0.012, 2.0, 1e9, 12.5, 100.0, 123456789.0)]
    assert texts == ["0.00001", "0.012", "2", "1000000000", "12.5", "100", "123456789"]
    assert [plain(x, 2) for x in (1.234e-6, 0.0456, 120.0, 0.1)] == [
        "0.0000012",
        "0.046",
        "120",
        "0.1",
    ]
    assert str(Goal(max_recovery=1e-5)) == "max-recovery 0.00001"
