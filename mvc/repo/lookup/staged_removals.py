"""Paths that ``mvc rm`` took out of the next commit."""

from __future__ import annotations

from mvc.repo.context import Context
from mvc.store.index import keys

__all__ = ["removed"]


def removed(context: Context) -> tuple[str, ...]:
    """What the next commit leaves out."""
    found = context.store.snapshot.newest(keys.PENDING)
    return (found.entry.removed or ()) if found is not None else ()
