"""The storage/recovery curve: what each recovery bound costs in bytes."""

from __future__ import annotations

from collections.abc import Iterable

from mvc.repo.repack.plan import CurvePoint
from mvc.repo.repack.solve.bounded import fastest, smallest, within_time
from mvc.repo.repack.solve.model import Price, Versions

__all__ = ["curve", "front"]

_SAME = 1.001  # sizes that differ by less are the same to who reads them


def curve(versions: Versions, count: int = 24) -> list[Price]:
    """Up to ``count`` layouts from the fastest to the smallest, each smaller than the one before.

    Their bounds on recovery lie at equal ratios.
    """
    low = max(1, fastest(versions))
    high = max(low, versions.worst(smallest(versions)) or low)
    ratio = (high / low) ** (1 / max(1, count - 1))
    bounds = sorted({low, high} | {round(low * ratio**i) for i in range(1, count - 1)})
    found: list[Price] = []
    for bound in bounds:
        layout = within_time(versions, bound)
        if layout is None:
            continue
        price = versions.price(layout)
        if not found or price.bytes < found[-1].bytes:
            found.append(price)
    return found


def front(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Those that no other point beats, from the fastest recovery to the least bytes.

    Of points that take the same bytes, or all but the same, the fastest stays.
    """
    found: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (p.worst_seconds, p.bytes, p.mean_seconds)):
        if not found or point.bytes * _SAME <= found[-1].bytes:
            found.append(point)
    return tuple(found)
