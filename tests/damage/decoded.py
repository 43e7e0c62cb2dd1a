"""Entries of a journal that are decoded from the same bytes time and again.

``Entry.decode`` is a function of bytes alone. While thousands of damaged copies of one journal
are read, each frame whose bytes are as before is decoded once; its checksum is still compared
every time, before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

from mvc.store.journal import frames as journal_frames
from mvc.store.journal.entries import Entry

__all__ = ["decoded_once"]


@lru_cache(maxsize=4096)
def _decode(payload: bytes, what: str) -> Entry:
    return Entry.decode(payload, what)


@contextmanager
def decoded_once() -> Iterator[None]:
    """Inside, equal bytes are decoded once."""
    real = journal_frames.Entry
    journal_frames.Entry = SimpleNamespace(decode=_decode)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        journal_frames.Entry = real  # type: ignore[misc]
