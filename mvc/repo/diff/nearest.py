"""Finds the version whose tensors are nearest to those of a file that no version has.

Hashes count first: the version that holds most of the tensors. Among versions with as many, the
values of a few tensors that differ decide. The work is bounded, however long the history is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
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
from mvc.store.store import Store

if TYPE_CHECKING:
    from mvc.repo.diff.distance import Distance

_SEARCH, _MEASURE = 3.0, 2.0  # seconds, of looking at versions and of comparing values
_LOOKED_UP = 64  # tensors whose versions the index is asked for
_QUICK = MIB >> 1  # bytes of a tensor by which versions are told apart
_ROUNDS = (0, 8, 64, 512, 4096)  # tensors that are compared until one version is left
_MEASURED = 256 * MIB  # bytes of tensors whose distances are given


class Nearest(Struct, frozen=True):
    """The version ``commit`` whose file at ``path`` is nearest to a file.

    Of the file's ``tensors``, ``equal`` have the bits of that version's. ``differing`` are all
    others, those that differ most first; those that were too much to read have no distances.
    ``versions`` were looked at; ``complete``: these were all, and all were told apart.
    """

    commit: CommitId
    path: str
    tensors: int
    equal: int
    differing: tuple[TensorDiff, ...]
    versions: int
    complete: bool


def nearest(store: Store, path: Path) -> Nearest | None:
    """The version with most of the tensors of the file at ``path``; the newest of equal ones.

    None for a file without tensors, and if no version that was looked at has a tensor of the same
    name and shape. Raises UnknownPath if there is no such file.
    """
    snapshot = store.fresh()
    entry = entry_at(store.fs, path, path.name)
    if not entry.tensors:
        return None
    search = _NearestSearch(store, entry)
    snapshot.retry_on_rewrite(search.run)
    if not search.best:
        return None
    file = DiffSource(store, path.name, {entry.path: entry}, {entry.path: path}, single=True)
    values = _Values(store, file)
    best, told_apart = values.closest(search.best, time.monotonic() + _MEASURE)
    rows = _differing(best.entry, entry)
    chosen = _smallest(_MEASURED, rows)
    found = zip(chosen, values.measured(best, chosen), strict=True)
    measured_rows = [replace(row, **asdict(distance)) for row, distance in found]
    rest = [row for row in rows if row not in chosen]
    return Nearest(
        best.commit,
        best.entry.path,
        len(entry.tensors),
        equal=len(entry.tensors) - sum(row.kind != "removed" for row in rows),
        differing=(*sorted(measured_rows, key=lambda row: row.max_abs or 0.0, reverse=True), *rest),
        versions=search.versions,
        complete=search.complete and told_apart,
    )


class _Candidate(Struct, frozen=True):
    commit: CommitId
    entry: FileEntry


class _NearestSearch:
    """Looks at versions: first at those that brought a tensor of the file, then from the newest."""

    def __init__(self, store: Store, entry: FileEntry) -> None:
        self._store = store
        self._ids = {tensor.id for tensor in entry.tensors}
        self._shapes = {bare_name(t.key): t.spec.shape for t in entry.tensors}
        self._wanted = [bytes(t.id)[: keys.ID_BYTES] for t in entry.tensors[:_LOOKED_UP]]
        self.best: list[_Candidate] = []
        self.versions = 0
        self.complete = True

    def run(self) -> None:
        """Fills ``best`` with the versions of the highest score, newest first."""
        until, highest, seen = time.monotonic() + _SEARCH, (0, 1), set[CommitId]()
        found: list[tuple[int, _Candidate]] = []
        self.complete = True
        for offset, commit in self._commits():
            if commit in seen:
                continue
            if time.monotonic() > until:
                self.complete = False
                break
            seen.add(commit)
            score, entry = self._score(commit)
            if entry is None or score < highest:
                continue
            if score > highest:
                found, highest = [], score
            found.append((offset, _Candidate(commit, entry)))
        self.versions = len(seen)
        self.best = [candidate for _, candidate in sorted(found, key=lambda each: -each[0])]

    def _commits(self) -> Iterator[tuple[int, CommitId]]:
        snapshot = self._store.snapshot
        found = (snapshot.under(keys.BLOB + each) for each in self._wanted)
        offsets = {keys.offset_of(key) for each in found for key in each}
        for offset in sorted(offsets, reverse=True):
            yield from ((offset, commit.id) for commit in snapshot.entry(offset).entry.commits)
        for recorded in snapshot.newest_first():
            yield from ((recorded.offset, commit.id) for commit in recorded.entry.commits)

    def _score(self, commit: CommitId) -> tuple[tuple[int, int], FileEntry | None]:
        """Of the file in a version that has most: equal tensors, and those of name and shape."""
        try:
            manifest = manifests.if_kept(self._store, commit)
        except DamagedData:
            manifest = None
        best: tuple[tuple[int, int], FileEntry | None] = (0, 1), None
        for entry in () if manifest is None else manifest.entries:
            equal = len(self._ids & {tensor.id for tensor in entry.tensors})
            shapes, names = self._shapes, {bare_name(t.key): t.spec.shape for t in entry.tensors}
            alike = sum(names.get(name) == shape for name, shape in shapes.items())
            if (equal, alike) >= best[0] and alike:
                best = (equal, alike), entry
        return best


class _Values:
    """The values of a file's tensors, compared with those of versions."""

    def __init__(self, store: Store, file: DiffSource) -> None:
        self._store = store
        self._file = file
        (self.entry,) = file.entries.values()
        # Distances by the name of a tensor, and the content that it was compared with.
        self._known: dict[tuple[str, bytes], float] = {}

    def closest(self, tied: Sequence[_Candidate], until: float) -> tuple[_Candidate, bool]:
        """The closest version, by some tensors at first; whether the time sufficed."""
        rows = filter(comparable, _differing(tied[0].entry, self.entry))
        ordered = sorted(rows, key=_bytes)
        quick = [row for row in ordered if _bytes(row) <= _QUICK]
        names = [bare_name(row.key) for row in (quick[::-1] or ordered[:1])]
        for first, last in pairwise(_ROUNDS):
            if len(tied) == 1 or not names[first:last]:
                break
            left, least = list[_Candidate](), float("inf")
            for candidate in tied:
                if time.monotonic() > until:
                    return (left or tied)[0], False
                distance = self._distance(candidate, names[first:last])
                if distance < least:
                    left, least = [candidate], distance
                elif distance == least:
                    left.append(candidate)
            tied = left
        return tied[0], True

    def _distance(self, candidate: _Candidate, names: Sequence[str]) -> float:
        """The sum over these tensors; infinite for a version without one of them."""
        rows = {bare_name(r.key): r for r in compare_files(candidate.entry, self.entry, "").tensors}
        theirs = {tensor.key: tensor.id for tensor in candidate.entry.tensors}
        places = dict[tuple[str, bytes], TensorDiff]()
        for name in names:
            row = rows[name]
            if not (row.same or comparable(row)):
                return float("inf")
            places[name, theirs[row.renamed_from or row.key]] = row
        self._known |= {place: 0.0 for place, row in places.items() if row.same}
        new = [place for place in places if place not in self._known]
        try:
            found = self.measured(candidate, [places[place] for place in new])
        except MvcError:  # damaged, or its weights were given up
            return float("inf")
        self._known |= dict(zip(new, (distance.l2 for distance in found), strict=True))
        return sum(self._known[place] for place in places)

    def measured(self, candidate: _Candidate, rows: Sequence[TensorDiff]) -> list[Distance]:
        """Raises WeightsDropped, DamagedData, SourceChanged."""
        entry, commit = candidate.entry, candidate.commit
        old = version(self._store, commit, commit.short, [entry.path])
        return list(measured(old, entry, self._file, self.entry, rows=rows)) if rows else []


def _differing(old: FileEntry, new: FileEntry) -> list[TensorDiff]:
    rows = compare_files(old, new, new.path).tensors
    return [row for row in rows if not row.same]


def _smallest(most: int, rows: Iterable[TensorDiff]) -> list[TensorDiff]:
    """The smallest tensors of equal shapes that have ``most`` bytes together."""
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
