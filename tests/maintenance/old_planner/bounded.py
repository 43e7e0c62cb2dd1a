"""Fewest bytes within a recovery bound, and fastest recovery within a size.

Without long deltas the layouts are optimal (``exact``). With them the best of three is taken:
the optimum without long deltas, the tree of the modified Prim's algorithm, and today's layout.
So the result is never worse than what is stored.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mvc.errors import Unattainable
from mvc.maintenance.repack.solve import Selected, Tree
from tests.maintenance.old_planner.exact import MOST, cheapest_chain, cheapest_tree
from tests.maintenance.old_planner.layouts import evenly_within
from tests.maintenance.old_planner.model import Versions, is_chain


def fastest(versions: Versions) -> int:
    """The worst recovery of the fastest layout, in nanoseconds."""
    return versions.worst(versions.everything) or 0


def smallest(versions: Versions, today: Selected | None = None) -> Selected:
    """The layout of fewest bytes, without a bound on recovery."""
    layout = within_time(versions, _endless(versions), today)
    assert layout is not None  # every version in full is one
    return layout


def within_time(versions: Versions, bound: int, today: Selected | None = None) -> Selected | None:
    """The smallest layout found with no recovery above ``bound`` nanoseconds.

    None if there is none. ``today`` is returned if nothing smaller is found.
    """
    exact = _by_trees(versions, bound)
    found = [] if exact is None else [exact]
    others = [today]
    if exact is None or versions.long:
        others += [grown(versions, bound), soonest(versions), evenly_within(versions, bound)]
    found += [layout for layout in others if layout and _meets(versions, layout, bound)]
    best = min(found, key=versions.stored, default=None)
    if best is None or today not in found or versions.stored(today) > versions.stored(best):
        return best
    return today


def within_bytes(versions: Versions, size: int, today: Selected | None = None) -> Selected:
    """The layout of at most ``size`` bytes with the shortest worst recovery.

    Raises Unattainable with the smallest possible size.
    """
    layout = smallest(versions, today)
    least = versions.stored(layout)
    if least > size:
        raise Unattainable(
            f"no layout fits into {size} bytes: the smallest takes {least}",
            hint=f"allow at least {least} bytes",
        )
    low, high = fastest(versions), versions.worst(layout) or 0
    middle = low
    while low < high:
        found = within_time(versions, middle, today)
        if found is not None and versions.stored(found) <= size:
            layout, high = found, versions.worst(found) or 0
        else:
            low = middle + 1
        middle = (low + high) // 2
    return layout


def _by_trees(versions: Versions, bound: int) -> Selected | None:
    sources: set[int] = set()
    edges: set[int] = set()
    for tree in versions.trees:
        found = _of_tree(versions, tree, bound)
        if found is None:
            return None
        sources |= found.sources
        edges |= found.edges
    return Selected(frozenset(sources), frozenset(edges))


def _of_tree(versions: Versions, tree: Tree, bound: int) -> Selected | None:
    if is_chain(tree):
        return _of_chain(versions, tree, bound)
    return cheapest_tree(versions, tree, bound) if len(tree.nodes) <= MOST else None


def _of_chain(versions: Versions, tree: Tree, bound: int) -> Selected | None:
    numbers = [link[1] for link in tree.up if link is not None]
    segments = cheapest_chain(
        [versions.full_bytes[i] for i in tree.nodes],
        [versions.full_ns[i] for i in tree.nodes],
        [versions.edges[i] for i in numbers],
        bound,
    )
    if segments is None:
        return None
    kept = (numbers[i] for first, _, last in segments for i in range(first, last))
    return Selected(frozenset(tree.nodes[s] for _, s, _ in segments), frozenset(kept))


def _meets(versions: Versions, layout: Selected, bound: int) -> bool:
    worst = versions.worst(layout)
    return worst is not None and worst <= bound


def _endless(versions: Versions) -> int:
    return max(versions.full_ns, default=0) + sum(edge.ns for edge in versions.edges)


_FULL = -1


def grown(versions: Versions, bound: int) -> Selected | None:
    """A layout with no recovery above ``bound``; None if the heuristic finds none.

    The modified Prim's algorithm of Bhattacherjee et al. (VLDB 2015), for graphs with deltas
    longer than parent to child: grow a tree from nothing by the cheapest delta or full copy
    whose end meets the bound. A version already in the tree takes a new base if that is no
    worse in bytes and in time.
    """
    count = len(versions)
    size: list[int | None] = [None] * count  # bytes to add each version
    time = [0] * count  # recovery along that path
    base = [(_FULL, _FULL)] * count  # (version, edge) it is made from
    heap: list[tuple[int, int, int]] = []
    for i in range(count):
        if versions.full_ns[i] <= bound:
            size[i], time[i] = versions.full_bytes[i], versions.full_ns[i]
            heap.append((versions.full_bytes[i], time[i], i))
    heapify(heap)
    done = [False] * count
    while heap:
        added, ns, node = heappop(heap)
        if done[node] or added != size[node] or ns != time[node]:
            continue
        done[node] = True
        for other, number in versions.around[node]:
            edge = versions.edges[number]
            there, old = time[node] + edge.ns, size[other]
            if there > bound or (done[other] and _leads_to(base, node, other)):
                continue
            better = old is None or edge.bytes < old or (edge.bytes == old and there < time[other])
            if done[other]:
                better = better and there <= time[other]
            if not better:
                continue
            size[other], time[other], base[other] = edge.bytes, there, (node, number)
            if not done[other]:
                heappush(heap, (edge.bytes, there, other))
    if not all(done):
        return None
    sources = frozenset(i for i in range(count) if base[i][0] == _FULL)
    return Selected(sources, frozenset(base[i][1] for i in range(count) if base[i][0] != _FULL))


def soonest(versions: Versions) -> Selected:
    """The deltas and full copies of each version's fastest recovery, and no others."""
    heap = [(ns, i, _FULL) for i, ns in enumerate(versions.full_ns)]
    heapify(heap)
    done = [False] * len(versions)
    sources, edges = set(), set()
    while heap:
        ns, node, edge = heappop(heap)
        if done[node]:
            continue
        done[node] = True
        if edge == _FULL:
            sources.add(node)
        else:
            edges.add(edge)
        for other, number in versions.around[node]:
            if not done[other]:
                heappush(heap, (ns + versions.edges[number].ns, other, number))
    return Selected(frozenset(sources), frozenset(edges))


def _leads_to(base: list[tuple[int, int]], node: int, other: int) -> bool:
    """Whether ``node`` is made from ``other``, which then cannot be made from it."""
    while node != _FULL:
        if node == other:
            return True
        node = base[node][0]
    return False
