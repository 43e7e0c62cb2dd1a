"""Few bytes within a recovery bound on any graph of deltas: a heuristic.

The modified Prim's algorithm of Bhattacherjee et al. (VLDB 2015): grow a tree from
nothing by the cheapest delta or full copy whose end still comes back in time; a version
that is in the tree already takes a new base where that is no worse in bytes and in time.
Used where the graph has longer deltas than parent to child; without them the optimum is
known (``linear``, ``tree``).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mvc.repo.repack.solve.model import Layout, Versions

__all__ = ["grown", "soonest"]

_FULL = -1


def grown(versions: Versions, bound: int) -> Layout | None:
    """A layout with no recovery above ``bound``; None if the heuristic finds none."""
    count = len(versions)
    size: list[int | None] = [None] * count  # what it takes to add each version
    time = [0] * count  # until it is back that way
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
    return Layout(sources, frozenset(base[i][1] for i in range(count) if base[i][0] != _FULL))


def soonest(versions: Versions) -> Layout:
    """The deltas and full copies by which each version comes back soonest, and no others."""
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
    return Layout(frozenset(sources), frozenset(edges))


def _leads_to(base: list[tuple[int, int]], node: int, other: int) -> bool:
    """Whether ``node`` is made from ``other``, which then cannot be made from it."""
    while node != _FULL:
        if node == other:
            return True
        node = base[node][0]
    return False
