"""Paths that ``mvc rm`` took out of the next commit."""

from __future__ import annotations

from mvc.repo.context import Context

__all__ = ["removed"]


def removed(context: Context) -> tuple[str, ...]:
    """What the next commit leaves out."""
    found = context.store.snapshot.newest_staged_removals()
    return (found.entry.removed or ()) if found is not None else ()
