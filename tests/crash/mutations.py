"""Protections of packs and index, taken away one by one.

Each brings back what once lost acknowledged versions; the suites must notice it. ``patch``
sets an attribute; by default for good, as a process of its own wants it.
"""

from __future__ import annotations

from collections.abc import Callable

from mvc.store.writing.pack_ends import PackEnds

__all__ = ["truncation_trusts_the_index"]

Patch = Callable[[object, str, object], None]


def truncation_trusts_the_index(patch: Patch = setattr) -> None:
    """Where a pack's committed bytes end is taken from the index, and the rest is cut off."""
    patch(PackEnds, "proven", PackEnds.claimed)
