"""How an experiment says how far it is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Tell", "named"]

Tell = Callable[[str, int, int], object]
"""Progress: of what, how much is done, of how much."""


def named(tell: Tell | None, name: str) -> Tell | None:
    """The same progress with a name before what is done."""
    return tell and (lambda what, done, total: tell(f"{name}: {what}", done, total))
