"""The planner of ``repack`` against brute force, and its shapes."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import Unattainable
from mvc.maintenance.repack.goal import Goal, plain
from mvc.maintenance.repack.plan import CurvePoint
from mvc.maintenance.repack.repack import curve, front
from mvc.maintenance.repack.solve.bounded import (
    fastest,
    grown,
    smallest,
    soonest,
    within_bytes,
    within_time,
)
from mvc.maintenance.repack.solve.exact import cheapest_chain
from mvc.maintenance.repack.solve.layouts import (
    at_interval,
    closed_interval,
    connected,
    evenly_within,
    open_interval,
    with_steps,
    without,
)
from mvc.maintenance.repack.solve.model import Edge, Selected, Versions


def chain(count, full=(10, 60), full_ns=(1, 9), edge=(1, 40), ns=(1, 9), forward=0.0, seed=0):
    """A chain of versions with random costs."""
    pick = random.Random(seed)
    return Versions(
        [pick.randint(*full) for _ in range(count)],
        [pick.randint(*full_ns) for _ in range(count)],
        [
            Edge(i, i + 1, pick.randint(*edge), pick.randint(*ns), pick.random() < forward)
            for i in range(count - 1)
        ],
    )


def branching(count, seed, forward=0.2, extra=0):
    """A forest of versions; ``extra`` long deltas."""
    pick = random.Random(seed)
    edges = [
        Edge(pick.randrange(i), i, pick.randint(1, 40), pick.randint(1, 9), pick.random() < forward)
        for i in range(1, count)
        if pick.random() < 0.9
    ]
    for _ in range(extra):
        a, b = sorted(pick.sample(range(count), 2))
        edges.append(Edge(a, b, pick.randint(1, 60), pick.randint(1, 9), long=True))
    full = [pick.randint(10, 60) for _ in range(count)]
    return Versions(full, [pick.randint(1, 9) for _ in range(count)], edges)


def layouts(versions):
    """Every layout there is, with its bytes and worst recovery."""
    count, edges = len(versions), range(len(versions.edges))
    for k in range(1, count + 1):
        for sources in combinations(range(count), k):
            for m in range(len(versions.edges) + 1):
                for kept in combinations(edges, m):
                    layout = Selected(frozenset(sources), frozenset(kept))
                    worst = versions.worst(layout)
                    if worst is not None:
                        yield versions.stored(layout), worst


def frontier(versions):
    """The bytes that each worst recovery takes at least, from all layouts."""
    best = {}
    for size, worst in layouts(versions):
        best[worst] = min(size, best.get(worst, size))
    return best


def least_bytes(best, bound):
    return min((size for worst, size in best.items() if worst <= bound), default=None)


def least_time(best, size):
    return min((worst for worst, stored in best.items() if stored <= size), default=None)


def check_against_all(versions):
    best = frontier(versions)
    for bound in range(min(best) - 1, max(best) + 2):
        found = within_time(versions, bound)
        wanted = least_bytes(best, bound)
        assert (found is None) == (wanted is None)
        if found is not None:
            assert versions.stored(found) == wanted
            assert versions.worst(found) <= bound
    assert fastest(versions) == min(best)
    least = min(best.values())
    for size in range(least, max(best.values()) + 1, 7):
        found = within_bytes(versions, size)
        assert versions.stored(found) <= size
        assert versions.worst(found) == least_time(best, size)
    with pytest.raises(Unattainable, match=f"the smallest takes {least}"):
        within_bytes(versions, least - 1)


@pytest.mark.parametrize("seed", range(12))
def test_a_chain_is_laid_out_as_well_as_any_of_all_layouts(seed):
    check_against_all(chain(2 + seed % 5, forward=0.3 if seed % 2 else 0.0, seed=seed))


def test_a_chain_of_seven_is_laid_out_as_well_as_any_of_all_layouts():
    check_against_all(chain(7, seed=99))


@pytest.mark.parametrize("seed", range(12))
def test_a_forest_is_laid_out_as_well_as_any_of_all_layouts(seed):
    check_against_all(branching(3 + seed % 4, seed))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 40), share=st.floats(0, 1))
def test_tree_and_chain_solvers_agree(seed, count, share):
    versions = chain(count, forward=0.1, seed=seed)
    high = sum(e.ns for e in versions.edges) + 10
    bound = round(fastest(versions) * (1 - share) + high * share)
    from mvc.maintenance.repack.solve.exact import cheapest_tree

    (tree, *_), segments = (
        versions.trees,
        cheapest_chain(versions.full_bytes, versions.full_ns, versions.edges, bound),
    )
    # forward deltas do not break a chain into several trees
    found = cheapest_tree(versions, tree, bound)
    assert (segments is None) == (found is None)
    if found is not None and segments is not None:
        size = sum(versions.full_bytes[s] for _, s, _ in segments)
        size += sum(versions.edges[i].bytes for a, _, b in segments for i in range(a, b))
        assert versions.stored(found) == size
        assert versions.worst(found) <= bound


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 40), share=st.floats(0, 1))
def test_with_long_deltas_no_plan_is_worse_than_today(seed, count, share):
    versions = branching(count, seed, extra=6)
    pick = random.Random(seed)
    edges = frozenset(i for i in range(len(versions.edges)) if pick.random() < 0.7)
    sources = {i for i in range(count) if pick.random() < 0.3}
    sources |= {i for i, ns in enumerate(versions.recovery(Selected(frozenset(sources), edges)))
                if ns is None}  # fmt: skip
    today = Selected(frozenset(sources), edges)
    now, size = versions.worst(today), versions.stored(today)
    assert now is not None
    within = within_time(versions, now, today)
    assert within is not None
    assert versions.stored(within) <= size
    assert versions.worst(within) <= now
    fitting = within_bytes(versions, size, today)
    assert versions.stored(fitting) <= size
    assert versions.worst(fitting) <= now
    bound = round(fastest(versions) * (1 - share) + now * share)
    for layout in (grown(versions, bound), soonest(versions)):
        assert layout is None or None not in versions.recovery(layout)
    tree = grown(versions, bound)
    assert tree is None or versions.worst(tree) <= bound
    assert versions.worst(soonest(versions)) == fastest(versions)


def test_today_stays_where_nothing_is_smaller():
    versions = Versions([10, 10, 10], [1, 1, 1], [Edge(0, 1, 3, 1), Edge(1, 2, 3, 1)])
    for source in range(3):
        today = Selected(frozenset({source}), frozenset({0, 1}))
        assert smallest(versions, today) == today


def test_bytes_that_all_versions_share_count_once():
    versions = Versions([5, 5], [1, 1], [Edge(0, 1, 2, 1)], shared=100)
    assert versions.stored(smallest(versions)) == 107
    assert versions.price(versions.everything).bytes == 112


@pytest.mark.parametrize(
    ("interval", "sources", "deltas"),
    [
        (1, {0, 1, 2, 3, 4, 5, 6, 7, 8}, set()),
        (2, {0, 2, 4, 5, 7}, {0, 2, 5, 6}),
        (3, {0, 3, 6, 7}, {0, 1, 2, 3, 4, 5, 6}),
    ],
)
def test_interval_counts_from_the_first_version_on_every_branch(interval, sources, deltas):
    """No delta leads to a reset point where versions are as near to the one before."""
    # 0-1-2-3-4 and 1-5-6, and a second history 7-8
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 6), (7, 8)]
    edges = [Edge(a, b, 1, 1) for a, b in pairs] + [Edge(0, 4, 1, 1, long=True)]
    layout = at_interval(Versions([9] * 9, [1] * 9, edges), interval)
    assert (layout.sources, layout.edges) == (sources, deltas)


@pytest.mark.parametrize(("interval", "deltas"), [(28, 14), (1, 0), (5, 2), (148, 74)])
def test_interval_is_reached_from_the_nearer_side(interval, deltas):
    """VSOL's figures: 28 apart, at most 14 deltas."""
    count = 3 * interval + 1
    versions = Versions([9] * count, [0] * count, [Edge(i, i + 1, 1, 1) for i in range(count - 1)])
    assert versions.worst(at_interval(versions, interval)) == deltas


def test_super_steps_shorten_the_walk():
    count, step = 101, 10
    pairs = [(i, i + step) for i in range(0, count - step, step)]
    edges = [Edge(i, i + 1, 1, 1) for i in range(count - 1)]
    edges += [Edge(a, b, 2, 1, long=True) for a, b in pairs]
    versions = Versions([9] * count, [0] * count, edges)
    today = Selected(frozenset({0}), frozenset(range(count - 1)))
    layout = with_steps(versions, today, pairs)
    assert layout.sources == today.sources
    assert versions.worst(today) == 100
    assert versions.worst(layout) <= count // step + step
    assert versions.stored(layout) == versions.stored(today) + 2 * len(pairs)


def test_removing_a_reset_point_brings_back_the_delta_it_needs():
    edges = [Edge(i, i + 1, 5 - i, 1) for i in range(4)]
    versions = Versions([9] * 5, [1] * 5, edges)
    today = Selected(frozenset({0, 2, 4}), frozenset({0, 2}))
    layout = without(versions, today, [2])
    assert layout.sources == {0, 4}
    assert None not in versions.recovery(layout)
    assert layout.edges == {0, 2, 3}  # the cheaper of the two deltas that lead there
    lone = without(versions, today, [0, 2, 4])
    assert set(versions.recovery(lone)) == {None}


def test_missing_deltas_are_not_added_where_none_is_needed():
    versions = Versions([9] * 3, [1] * 3, [Edge(0, 1, 1, 1), Edge(1, 2, 1, 1)])
    layout = Selected(frozenset({0, 2}), frozenset({0}))
    assert connected(versions, layout) == layout


def test_the_curve_falls_and_ends_at_the_least_bytes():
    versions = chain(60, seed=5)
    points = [versions.price(layout) for layout in curve(versions)]
    assert points[0].worst == fastest(versions)
    assert points[-1].bytes == versions.stored(smallest(versions))
    assert len(points) > 5
    for a, b in pairwise(points):
        assert a.bytes > b.bytes
        assert a.worst < b.worst
    for point in points:
        found = within_time(versions, point.worst)
        assert found is not None
        assert versions.stored(found) == point.bytes


def test_long_histories_are_planned():
    versions = chain(20_000, full=(900, 1100), edge=(80, 120), seed=3)
    bound = 60
    layout = within_time(versions, bound)
    assert layout is not None
    assert versions.worst(layout) <= bound
    size = versions.stored(at_interval(versions, 12))
    assert versions.stored(layout) < size


def test_many_branches_are_planned():
    versions = branching(1500, seed=8, forward=0.05)
    today = at_interval(versions, 10)
    bound = versions.worst(today)
    layout = within_time(versions, bound, today)
    assert layout is not None
    assert versions.worst(layout) <= bound
    assert versions.stored(layout) < versions.stored(today)


def test_the_front_has_no_point_that_another_one_beats():
    fast, slow = CurvePoint(1000, 0.1, 0.1), CurvePoint(400, 9.0, 5.0)
    beaten, same = CurvePoint(900, 2.0, 1.0), CurvePoint(400, 9.5, 4.0)
    nearly, today = CurvePoint(999_999, 0.01, 0.01), CurvePoint(800, 1.0, 0.5)
    points = [slow, same, beaten, today, fast, CurvePoint(1_000_000, 0.005, 0.005), nearly]
    assert front(points) == (CurvePoint(1_000_000, 0.005, 0.005), fast, today, slow)
    assert front([]) == ()


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1))
def test_the_front_against_its_definition(pairs: list[tuple[int, int]]):
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


def test_intervals_of_the_thesis():
    """R and R' from seconds for one step and the bound (VSOL, Eq. 3.4, corrected)."""
    pairs = [(0.03, 1), (0.05, 1), (1, 10), (0.07, 1)]
    assert [closed_interval(bound, step) for step, bound in pairs] == [65, 39, 19, 27]
    assert [open_interval(bound, step) for step, bound in pairs] == [33, 20, 10, 14]
    assert open_interval(0.3, 0.1) == 3  # of decimal numbers, not of their binary neighbours
    assert (open_interval(1, 2), closed_interval(1, 2)) == (0, -1)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 80), st.integers(0, 1 << 30))
def test_even_reset_points_keep_the_bound(count, step, bound, seed):
    for versions in (chain(count, seed=seed), branching(count, seed, forward=0)):
        layout = evenly_within(versions, bound)
        if layout is None:
            assert bound < max([*versions.full_ns, *(edge.ns for edge in versions.edges)])
        else:
            assert versions.worst(layout) <= bound
    same = chain(count, full_ns=(step, step), ns=(step, step))
    layout = evenly_within(same, bound)
    if layout is not None and count > 2 * open_interval(bound, step):
        # One version more between two reset points would be too many.
        wider = at_interval(same, closed_interval(bound, step) + 1)
        sources = wider.sources | {count - 1}
        gaps = [b - a for a, b in pairwise(sorted(sources))]
        if max(gaps) > closed_interval(bound, step):
            assert same.worst(Selected(sources, wider.edges)) > bound


def test_plain_numbers():
    texts = [plain(x) for x in (1e-05, 0.012, 2.0, 1e9, 12.5, 100.0, 123456789.0)]
    assert texts == ["0.00001", "0.012", "2", "1000000000", "12.5", "100", "123456789"]
    assert [plain(x, 2) for x in (1.234e-6, 0.0456, 120.0, 0.1)] == [
        "0.0000012",
        "0.046",
        "120",
        "0.1",
    ]
    assert str(Goal(max_recovery=1e-5)) == "max-recovery 0.00001"
