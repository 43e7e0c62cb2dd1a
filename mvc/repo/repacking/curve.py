"""The storage/recovery curve: what each recovery bound costs in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.repo.repacking.bounded import fastest, smallest, within_time
from mvc.repo.repacking.model import Layout, Price, Versions

__all__ = ["Curve", "curve"]


@dataclass(frozen=True, slots=True)
class Curve:
    """Prices from the fastest recovery to the least bytes, and today's."""

    points: tuple[Price, ...]
    today: Price


def curve(versions: Versions, today: Layout, count: int = 24) -> Curve:
    """Up to ``count`` layouts, each better than the one before it in bytes, none in time."""
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
    return Curve(tuple(found), versions.price(today))
