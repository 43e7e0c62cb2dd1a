"""Counts how often users read the state or a file of each version. Such a read is a *query*.

The commands ``forget --unqueried`` and ``repack --add-queried`` use the counts. The counts may be
too low, because a query is not counted if the file ``queries`` cannot be written, or if a crash or
damage loses its row. docs/format.md describes the file. Source: VSOL thesis, section 3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.commit import Commit
from mvc.repo.statements.live import Deployed
from mvc.store.store import Store

QUERIES, LOCK = "queries", "queries.lock"
_ROW = struct.Struct("<qI32s")  # time of the last query in us, number of queries, commit
_CHECK = 4
_SIZE = _ROW.size + _CHECK
FOLD_AT = 1 << 20  # rows are merged each time the file has grown by this number of bytes
_MOST = 1 << 26  # a longer file (in bytes) is not read: IoFailed
_COUNT = (1 << 32) - 1
_WAIT = 0.05  # seconds to wait for another process when counting
_WAIT_TO_DROP = 5.0
_TOGETHER = 1000  # number of versions that ``counted`` collects for one write
_START = CommitId(bytes(32))  # the row with this id has the time of the first count

State = TypeVar("State")


class Queried(Struct, frozen=True):
    """How often a version was read, and when it was last read (microseconds since 1970)."""

    count: int
    last_us: int

    def __add__(self, other: Queried) -> Queried:
        count = min(self.count + other.count, _COUNT)
        return Queried(count, max(self.last_us, other.last_us))


class Queries(Struct, frozen=True):
    """All counts. ``asked``: maps versions to their counts.

    ``since_ns``: when counting began, in ns since 1970; None if this time is not recorded.
    """

    since_ns: int | None
    asked: Mapping[CommitId, Queried]

    def most(self, count: int, among: Collection[CommitId]) -> list[CommitId]:
        """The ``count`` versions of ``among`` with the most queries.

        Of versions with equally many queries, the version with the newest query comes first.
        """
        known = [(queried.count, queried.last_us, id_) for id_, queried in self.asked.items()]
        return [id_ for *_, id_ in sorted(known, reverse=True) if id_ in among][:count]


def queries(store: Store) -> Queries:
    """All recorded queries. Raises IoFailed if the file cannot be read."""
    rows = _read(store.fs, store.folder / QUERIES)
    start = rows.pop(_START, None)
    return Queries(None if start is None else start.last_us * 1000, rows)


def note(store: Store, commits: Collection[CommitId]) -> None:
    """Counts one query for each of ``commits``.

    Never fails: if the file cannot be written, or is locked for more than 50 ms, nothing is
    counted.
    """
    if not store.writable:
        return
    path = store.folder / QUERIES
    with suppress(MvcError):
        now = Queried(1, store.now_ns() // 1000)
        rows = b"".join(_row(commit, now) for commit in commits)
        with store.fs.lock(store.folder / LOCK, timeout=_WAIT):
            with store.fs.open_write(path, create=True, within=store.folder) as file:
                at = file.size() // _SIZE * _SIZE  # overwrites a row truncated by a crash
                if not at:
                    rows = _row(_START, replace(now, count=0)) + rows
                file.write_at(at, rows)
            if at // FOLD_AT != (at + len(rows)) // FOLD_AT:
                _fold(store)


def counted(
    store: Store, versions: Iterator[tuple[Commit | Deployed, State]]
) -> Iterator[tuple[Commit | Deployed, State]]:
    """Yields ``versions``, and counts a query for each version whose state was yielded."""
    waiting: list[CommitId] = []
    try:
        for version, state in versions:
            if not isinstance(state, MvcError):
                waiting.append(version.id if isinstance(version, Commit) else version.commit)
            yield version, state
            del state
            if len(waiting) >= _TOGETHER:
                note(store, waiting)
                waiting.clear()
    finally:
        note(store, waiting)


def drop_rows(store: Store, deleted: Set[CommitId]) -> None:
    """Deletes the counts of the versions ``deleted``. If the write fails, the counts remain."""
    fs, folder = store.fs, store.folder
    path = folder / QUERIES
    with suppress(MvcError):
        if not deleted or fs.stat(path) is None:
            return
        with fs.lock(folder / LOCK, timeout=_WAIT_TO_DROP):
            if not deleted.isdisjoint(_read(fs, path)):
                _fold(store, deleted)


def _fold(store: Store, deleted: Set[CommitId] = frozenset()) -> None:
    """Merges the rows of each version into one row, and leaves out the versions ``deleted``.

    If the row with the start time is missing, the start time becomes now.
    """
    path = store.folder / QUERIES
    rows = _read(store.fs, path)
    start = rows.pop(_START, Queried(0, store.now_ns() // 1000))
    rows = {_START: start, **rows}
    retained = (_row(id_, queried) for id_, queried in rows.items() if id_ not in deleted)
    store.fs.write_atomic(path, b"".join(retained))


def _read(fs: FileSystem, path: Path) -> dict[CommitId, Queried]:
    data = b"" if fs.stat(path) is None else fs.read_bytes(path, _MOST)
    sums: dict[CommitId, Queried] = {}
    for commit, queried in _rows(data):
        sums[commit] = sums[commit] + queried if commit in sums else queried
    return sums


def _rows(data: bytes) -> Iterable[tuple[CommitId, Queried]]:
    for at in range(0, len(data) - _SIZE + 1, _SIZE):
        row = data[at : at + _ROW.size]
        if data[at + _ROW.size : at + _SIZE] == _check(row):
            last_us, count, commit = _ROW.unpack(row)
            yield CommitId(commit), Queried(count, last_us)


def _row(commit: CommitId, queried: Queried) -> bytes:
    row = _ROW.pack(queried.last_us, queried.count, commit)
    return row + _check(row)


def _check(row: bytes) -> bytes:
    return blake3(row).digest(_CHECK)
