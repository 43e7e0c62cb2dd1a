"""Lets a query skip damaged journal entries, and report the damage with its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mvc.errors import DamagedData


@contextmanager
def noting(incomplete: list[DamagedData] | None) -> Iterator[None]:
    """Catches DamagedData in the ``with`` block, and appends the error to ``incomplete``.

    If ``incomplete`` is None, does not catch the error.
    """
    try:
        yield
    except DamagedData as error:
        if incomplete is None:
            raise
        incomplete.append(error)
