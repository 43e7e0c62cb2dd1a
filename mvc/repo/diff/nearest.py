"""Finds the version that is nearest to a file, for ``mvc identify``.

The nearest version has the most tensors that are equal to tensors of the file. If several versions
have the same number of equal tensors, the values of a few differing tensors decide. The search ends
after a few seconds, even if it has not compared all versions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from mvc.errors import DamagedData, MvcError
from mvc.ids import CommitId
from mvc.limits import MIB
from mvc.model.manifest import FileEntry
from mvc.repo.content.compare import TensorDiff, bare_name, compare_files
from mvc.repo.diff.diff import DiffSource, comparable, measured, version
from mvc.repo.lookup import manifests
from mvc.repo.worktree.worktree import entry_at
from mvc.store.index import keys
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Progress

if TYPE_CHECKING:
    from mvc.repo.diff.distance import Distance

_SEARCH, _MEASURE = 3.0, 2.0  # seconds to search versions, and to compare values
_LOOKED_UP = 64  # tensors whose versions are looked up in the journal's index
_QUICK = MIB >> 1  # largest size of a tensor whose values are compared to resolve ties
_ROUND = 8  # number of tensors to compare before all but the closest versions are excluded
_MEASURED = 256 * MIB  # bytes of tensors whose distances are computed


class Nearest(Struct, frozen=True):
    """The version ``commit`` whose file at ``path`` is nearest to a file.

    ``tensors``: number of the file's tensors. ``equal``: number of tensors that have the same bits
    in the version. ``differing``: the tensors that differ, largest difference first. Tensors that
    are too large to read come last, without distances. ``versions``: number of compared versions.
    ``complete``: whether the search compared all versions before the time limits.
    """

    commit: CommitId
    path: str
    tensors: int
    equal: int
    differing: tuple[TensorDiff, ...]
    versions: int
    complete: bool


class _Candidate(Struct, frozen=True):
    """A file of a version.

    ``rank``: the number of equal tensors, and the number of tensors with equal name and shape.
    """

    rank: tuple[int, int]
    offset: int
    commit: CommitId
    entry: FileEntry


def nearest(store: Store, path: Path, progress: Progress | None = None) -> Nearest | None:
    """The version that is nearest to the file at ``path``. Of equally near versions, the newest.

    None if the file has no tensors, or if no compared version has a tensor of equal name and shape.
    Raises UnknownPath if there is no such file.
    """
    snapshot = store.fresh()
    entry = entry_at(store.fs, path, path.name, progress=progress)
    if not entry.tensors:
        return None
    tied, versions, complete = snapshot.retry_on_rewrite(partial(_most_equal, store, entry))
    if not tied:
        return None
    file = DiffSource(store, path.name, {entry.path: entry}, {entry.path: path}, single=True)
    best, no_tie = _closest(tied, file)
    rows = _differing(best.entry, entry)
    chosen = _smallest(_MEASURED, rows)
    distances = zip(chosen, _distances(best, file, chosen), strict=True)
    measured_rows = [replace(row, **asdict(distance)) for row, distance in distances]
    rest = [row for row in rows if row not in chosen]
    return Nearest(
        best.commit,
        best.entry.path,
        len(entry.tensors),
        equal=len(entry.tensors) - sum(row.kind != "removed" for row in rows),
        differing=(*sorted(measured_rows, key=lambda row: row.max_abs or 0.0, reverse=True), *rest),
        versions=versions,
        complete=complete and no_tie,
    )


def _most_equal(store: Store, entry: FileEntry) -> tuple[list[_Candidate], int, bool]:
    """The candidates of the highest rank, newest first; the number of compared versions; and
    whether all versions were compared.
    """
    until, seen, best = time.monotonic() + _SEARCH, set[CommitId](), list[_Candidate]()
    ids = {tensor.id for tensor in entry.tensors}
    shapes = _shapes(entry)
    complete = True
    for offset, commit in _commits(store.snapshot, entry):
        if commit in seen:
            continue
        complete = time.monotonic() <= until
        if not complete:
            break
        seen.add(commit)
        for other in _files(store, commit):
            alike = len(shapes.items() & _shapes(other).items())
            rank = len(ids & {tensor.id for tensor in other.tensors}), alike
            if not alike or (best and rank < best[0].rank):
                continue
            # If files of one version have equal ranks, the last file replaces the earlier files.
            equal = [c for c in best if c.rank == rank and c.commit != commit]
            best = [*equal, _Candidate(rank, offset, commit, other)]
    return sorted(best, key=lambda candidate: -candidate.offset), len(seen), complete


def _commits(snapshot: Snapshot, entry: FileEntry) -> Iterator[tuple[int, CommitId]]:
    """Yields versions in the order of comparison, and the offset of each version's journal entry.

    First, yields the versions in which a tensor of the file first appeared. Then, yields all
    versions.
    """
    wanted = [bytes(tensor.id)[: keys.ID_BYTES] for tensor in entry.tensors[:_LOOKED_UP]]
    offsets = {keys.offset_of(key) for id_ in wanted for key in snapshot.under(keys.BLOB + id_)}
    for offset in sorted(offsets, reverse=True):
        yield from ((offset, commit.id) for commit in snapshot.entry(offset).entry.commits)
    for recorded in snapshot.newest_first():
        yield from ((recorded.offset, commit.id) for commit in recorded.entry.commits)


def _files(store: Store, commit: CommitId) -> Sequence[FileEntry]:
    """The files of a version. There are none if the version is forgotten or damaged."""
    try:
        manifest = manifests.if_stored(store, commit)
    except DamagedData:
        return ()
    return () if manifest is None else manifest.entries


def _shapes(entry: FileEntry) -> dict[str, tuple[int, ...]]:
    return {bare_name(tensor.key): tensor.spec.shape for tensor in entry.tensors}


def _closest(tied: Sequence[_Candidate], file: DiffSource) -> tuple[_Candidate, bool]:
    """The candidate with the closest values, and whether the time sufficed.

    Only tensors that differ between the candidates are compared.
    """
    until, names = time.monotonic() + _MEASURE, _distinguishing(tied, file)
    while len(tied) > 1 and names:
        left, least = list[_Candidate](), float("inf")
        for candidate in tied:
            if time.monotonic() > until:
                return (left or tied)[0], False
            distance = _distance(candidate, file, names[:_ROUND])
            if distance < least:
                left, least = [], distance
            if distance == least:
                left.append(candidate)
        tied, names = left, names[_ROUND:]
    return tied[0], True


def _distinguishing(tied: Sequence[_Candidate], file: DiffSource) -> list[str]:
    """Names of the comparable tensors in which candidates differ, in order of comparison."""
    (entry,) = file.entries.values()
    contents = [{bare_name(t.key): t.id for t in candidate.entry.tensors} for candidate in tied]
    compared = compare_files(tied[0].entry, entry, entry.path).tensors
    rows = {bare_name(row.key): row for row in compared if row.same or comparable(row)}
    names = [name for name in rows if len({ids.get(name) for ids in contents}) > 1]
    ordered = sorted(names, key=lambda name: _bytes(rows[name]))
    quick = [name for name in ordered if _bytes(rows[name]) <= _QUICK]
    return quick[::-1] or ordered[:1]


def _distance(candidate: _Candidate, file: DiffSource, names: Sequence[str]) -> float:
    """The sum of the distances of the tensors ``names``; infinite if the version lacks a tensor."""
    (entry,) = file.entries.values()
    rows = [row for row in _differing(candidate.entry, entry) if bare_name(row.key) in names]
    if not all(map(comparable, rows)):
        return float("inf")
    try:
        return sum(distance.l2 for distance in _distances(candidate, file, rows))
    except MvcError:  # the version is damaged, or its weights were dropped
        return float("inf")


def _distances(
    candidate: _Candidate, file: DiffSource, rows: Sequence[TensorDiff]
) -> list[Distance]:
    """The distances of the tensors ``rows``. Raises WeightsDropped, DamagedData, SourceChanged."""
    (entry,), commit, old = file.entries.values(), candidate.commit, candidate.entry
    side = version(file.store, commit, commit.short, [old.path])
    return list(measured(side, old, file, entry, rows=rows)) if rows else []


def _differing(old: FileEntry, new: FileEntry) -> list[TensorDiff]:
    return [row for row in compare_files(old, new, new.path).tensors if not row.same]


def _smallest(most: int, rows: Iterable[TensorDiff]) -> list[TensorDiff]:
    """The smallest tensors whose old and new shapes are equal, at most ``most`` bytes in total."""
    chosen: list[TensorDiff] = []
    total = 0
    for row in sorted(filter(comparable, rows), key=_bytes):
        total += _bytes(row)
        if total > most:
            break
        chosen.append(row)
    return chosen


def _bytes(row: TensorDiff) -> int:
    return 0 if row.new_spec is None else row.new_spec.nbytes
