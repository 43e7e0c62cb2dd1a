"""How much data a training reads, so that another amount is noticed when it goes on.

An order drawn over other rows, or cut into other batches, does not tell which rows an epoch that
was left in its middle has had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Sizes", "changed", "sizes"]

Sizes = dict[str, int | None]


def sizes(loader: Any) -> Sizes:
    """The sizes of a loader like torch's. None for a size that it does not tell."""
    batch = getattr(loader, "batch_size", None)
    if batch is None:
        batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return {
        "rows": _count(lambda: len(loader.dataset)),
        "batch size": _count(lambda: batch),
        "batches an epoch": _count(lambda: len(loader)),
    }


def changed(kept: Mapping[str, int | None], here: Mapping[str, int | None]) -> list[str]:
    """What is another number here, such as ``rows: 310, not 320``; nothing where one is unknown."""
    return [
        f"{what}: {here[what]}, not {value}"
        for what, value in kept.items()
        if value is not None and here.get(what) is not None and here[what] != value
    ]


def _count(ask: Callable[[], Any]) -> int | None:
    try:
        found = ask()
    except (AttributeError, TypeError, NotImplementedError):
        return None
    return found if type(found) is int else None
