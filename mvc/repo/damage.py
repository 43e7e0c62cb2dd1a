"""Damaged journal entries (records of operations) that a query skips and reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mvc.errors import DamagedData


@contextmanager
def noting(incomplete: list[DamagedData] | None) -> Iterator[None]:
    """A ``with`` block that catches DamagedData and appends the error to ``incomplete``.

    If ``incomplete`` is None, the block raises DamagedData.
    """
    try:
        yield
    except DamagedData as error:
        if incomplete is None:
            raise
        incomplete.append(error)
