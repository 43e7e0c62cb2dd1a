"""Which versions were asked for, and how often: what VSOL's thesis calls queries (section 3.1).

A version counts as asked for when its state is checked out or iterated over. The counts are for
``forget --unqueried`` and ``repack --by-queries``. They are notes, not history: they are written
without a flush, a note that cannot be written is left out, and damaged rows are passed over.
The layout of the file ``queries`` is in docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.repo.context import Context

__all__ = ["Queried", "note", "queried"]

QUERIES, LOCK = "queries", "queries.lock"
_ROW = struct.Struct("<qI32s")  # time of the last query, number of queries, commit
_CHECK = 4
_SIZE = _ROW.size + _CHECK
_FOLD_AT = 1 << 20  # whenever the file grows by this, rows of one version become one
_MOST = 1 << 30  # bytes of the file that are read
_COUNT, _LATEST = (1 << 32) - 1, (1 << 63) - 1
_WAIT = 1.0  # seconds that a note waits for another process


@dataclass(frozen=True, slots=True)
class Queried:
    """How often a version was asked for, and when last (ns since 1970)."""

    count: int
    last_ns: int

    def __add__(self, other: Queried) -> Queried:
        count = min(self.count + other.count, _COUNT)
        return Queried(count, max(self.last_ns, other.last_ns))


def queried(context: Context) -> dict[CommitId, Queried]:
    """The versions that were asked for. Raises IoFailed where the file cannot be read."""
    path = context.store.folder / QUERIES
    if context.store.fs.stat(path) is None:
        return {}
    return _sums(_rows(context.store.fs.read_bytes(path, _MOST)))


def note(context: Context, commits: Iterable[CommitId]) -> None:
    """Counts a query of each of these versions, now. Never raises MvcError."""
    now = Queried(1, min(max(context.store.clock.now_ns(), 0), _LATEST))
    rows = b"".join(_row(commit, now) for commit in commits)
    if rows:
        with suppress(MvcError):
            _append(context, rows)


def _append(context: Context, rows: bytes) -> None:
    fs, folder = context.store.fs, context.store.folder
    path = folder / QUERIES
    with fs.lock(folder / LOCK, timeout=_WAIT):
        with fs.open_write(path, create=True, within=folder) as file:
            at = file.size() // _SIZE * _SIZE  # a row that a crash cut off is written over
            file.write_at(at, rows)
        if at // _FOLD_AT != (at + len(rows)) // _FOLD_AT:
            _fold(context, path)


def _fold(context: Context, path: Path) -> None:
    sums = _sums(_rows(context.store.fs.read_bytes(path, _MOST)))
    context.store.fs.write_atomic(path, b"".join(_row(*each) for each in sums.items()))


def _sums(rows: Iterable[tuple[CommitId, Queried]]) -> dict[CommitId, Queried]:
    sums: dict[CommitId, Queried] = {}
    for commit, each in rows:
        sums[commit] = sums[commit] + each if commit in sums else each
    return sums


def _row(commit: CommitId, each: Queried) -> bytes:
    row = _ROW.pack(each.last_ns, each.count, commit)
    return row + _check(row)


def _rows(data: bytes) -> Iterator[tuple[CommitId, Queried]]:
    for at in range(0, len(data) - _SIZE + 1, _SIZE):
        row = data[at : at + _ROW.size]
        if data[at + _ROW.size : at + _SIZE] == _check(row):
            last_ns, count, commit = _ROW.unpack(row)
            yield CommitId(commit), Queried(count, last_ns)


def _check(row: bytes) -> bytes:
    return blake3(row).digest(_CHECK)
