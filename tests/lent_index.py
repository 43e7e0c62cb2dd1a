"""The index that an open repository reads, and LMDB below it."""

from __future__ import annotations

import lmdb

from mvc.api import Repository
from mvc.store.index.index import Index


def open_index(repo: Repository) -> Index | None:
    """The index that an open repository reads; None where it reads the journal alone."""
    lent = repo.handle.store.snapshot._index.lent
    return None if lent is None else lent.index


def environment(index: Index | None) -> lmdb.Environment:
    """LMDB's environment below an index, to look at it or to write what no mvc writes."""
    assert index is not None
    return index._env
