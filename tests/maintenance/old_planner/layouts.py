"""Layouts given directly: an interval, reset points by name or by bound, super-steps."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from heapq import heapify, heappop, heappush

from mvc.maintenance.repack.solve import Selected
from tests.maintenance.old_planner.model import Versions


def open_interval(bound: float, step: float) -> int:
    """R' = floor(MDTT / t): versions at most, the full one included, behind the last reset point.

    MDTT is the ``bound`` on a recovery and t the most that one ``step`` takes, a full version or
    a delta, in the same unit; 0 if even one takes longer. The decimal numbers count, so that
    0.3 / 0.1 is 3.
    """
    return int(Decimal(repr(bound)) // Decimal(repr(step)))


def closed_interval(bound: float, step: float) -> int:
    """R = 2 floor(MDTT / t) - 1: versions at most from one reset point to the next (VSOL §3.2.8).

    One in the middle is floor(R / 2) deltas away from the nearer of the two. Below 1 if there is
    no such interval.
    """
    return 2 * open_interval(bound, step) - 1


def depths(versions: Versions) -> list[int]:
    """The number of ancestors of each version."""
    found = [0] * len(versions)
    for tree in versions.trees:
        for node, link in zip(tree.nodes, tree.up, strict=True):
            if link is not None:
                found[node] = found[tree.nodes[link[0]]] + 1
    return found


def at_interval(versions: Versions, interval: int) -> Selected:
    """A reset point every ``interval`` versions from the first on, and the deltas to parents.

    A version is recovered from the nearer reset point on either side (VSOL §3.2.8). Below three
    versions both are as near, and no delta leads to a reset point (``Layout.is_near``).
    """
    sources = frozenset(i for i, depth in enumerate(depths(versions)) if depth % interval == 0)
    edges = frozenset(
        i
        for i, edge in enumerate(versions.edges)
        if i not in versions.long and (interval > 2 or edge.b not in sources)
    )
    return Selected(sources, edges)


def evenly_within(versions: Versions, bound: int) -> Selected | None:
    """Reset points as far apart as ``bound`` nanoseconds allow where every step is the slowest.

    Where a line of versions ends, its last one is a reset point too, unless the one before is
    near enough on its own. None if a single step takes longer.
    """
    short = (e.ns for i, e in enumerate(versions.edges) if i not in versions.long)
    step = max([*versions.full_ns, *short])
    tail, interval = open_interval(bound, step), closed_interval(bound, step)
    if tail < 1:
        return None
    layout = at_interval(versions, interval)
    far = [depth % interval >= tail for depth in depths(versions)]
    parents = {link[0] for link in versions.parents if link is not None}
    ends = {i for i, each in enumerate(far) if each and i not in parents}
    return Selected(layout.sources | ends, layout.edges)


def without(versions: Versions, today: Selected, sources: Iterable[int]) -> Selected:
    """Today's layout without some of its reset points, plus the deltas needed then."""
    return connected(versions, Selected(today.sources - frozenset(sources), today.edges))


def connected(versions: Versions, layout: Selected) -> Selected:
    """The layout plus the cheapest deltas that make all versions recoverable.

    A version without any delta stays unrecoverable.
    """
    edges = set(layout.edges)
    found = versions.recovery(layout)
    reached = [i in found for i in range(len(versions))]
    heap = [
        (0 if edge in edges else versions.edges[edge].bytes, edge, other)
        for node, known in enumerate(reached)
        if known
        for other, edge in versions.around[node]
        if not reached[other]
    ]
    heapify(heap)
    while heap:
        _, number, node = heappop(heap)
        if reached[node]:
            continue
        reached[node] = True
        edges.add(number)
        for other, edge in versions.around[node]:
            if not reached[other]:
                heappush(heap, (0 if edge in edges else versions.edges[edge].bytes, edge, other))
    return Selected(layout.sources, frozenset(edges))
