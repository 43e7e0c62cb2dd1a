"""The cheapest layout of a chain of versions in which every one comes back in time. Exact.

A layout of a chain falls into segments joined by kept deltas. A segment never needs two
sources: between two of them lies a delta over which nothing is recovered. So the optimum
is a partition into segments of one source each, found by dynamic programming in
O(n log n); the reach of a source is a window that sliding minima answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

from mvc.repo.repack.solve.model import Edge

__all__ = ["Segment", "cheapest_chain"]

Segment = tuple[int, int, int]
"""First version, source, last version."""


def cheapest_chain(
    full_bytes: Sequence[int], full_ns: Sequence[int], edges: Sequence[Edge], bound: int
) -> list[Segment] | None:
    """Segments of least bytes with no recovery above ``bound``; None if there are none.

    ``edges[i]`` joins versions i and i + 1.
    """
    count = len(full_bytes)
    sizes = list(accumulate((edge.bytes for edge in edges), initial=0))
    times = list(accumulate((edge.ns for edge in edges), initial=0))
    least = [0]  # bytes for the first i versions; None if it cannot be done
    came: list[tuple[int, int]] = []  # (first, source) of the segment that ends at i
    minima = _WindowMinima()
    waiting: list[tuple[int, int, int, int]] = []  # (bytes less the deltas', source, first, reach)
    barrier = 0  # no source at or after it reaches versions before it
    for i in range(count):
        if i and edges[i - 1].forward:
            barrier = i
        if least[i] >= 0:
            minima.push(i, least[i] - sizes[i])
        room = bound - full_ns[i]
        if room >= 0:
            low = max(barrier, bisect_left(times, times[i] - room))
            if (best := minima.least(low)) is not None:
                reach = bisect_right(times, times[i] + room) - 1
                heappush(waiting, (full_bytes[i] + best[1], i, best[0], reach))
        while waiting and waiting[0][3] < i:
            heappop(waiting)
        least.append(waiting[0][0] + sizes[i] if waiting else -1)
        came.append((waiting[0][2], waiting[0][1]) if waiting else (-1, -1))
    return _unwound(came) if least[count] >= 0 else None


class _WindowMinima:
    """The least value among those pushed at or after a place."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._values: list[int] = []  # ascending: a later, smaller value hides earlier ones

    def push(self, place: int, value: int) -> None:
        while self._values and self._values[-1] >= value:
            self._values.pop()
            self._places.pop()
        self._places.append(place)
        self._values.append(value)

    def least(self, low: int) -> tuple[int, int] | None:
        """(place, value) of the least one from ``low`` on."""
        at = bisect_left(self._places, low)
        return (self._places[at], self._values[at]) if at < len(self._places) else None


def _unwound(came: Sequence[tuple[int, int]]) -> list[Segment]:
    found: list[Segment] = []
    last = len(came) - 1
    while last >= 0:
        first, source = came[last]
        found.append((first, source, last))
        last = first - 1
    return found[::-1]
