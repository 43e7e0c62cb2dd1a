"""The pieces of a version that a bench looks at: sampled, matched with bases, in batches.

A piece is matched with its base as a commit does it (``bases``, ``masters``), and is
at most a slab, so memory is bounded by a batch and not by a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mvc.adapters.parsed import ParsedFile
from mvc.codecs import cast
from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.limits import CHUNK, SLAB
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.bench.versions import NO_ID, NO_PARENT, Note, Parent, Version, opened
from mvc.repo.commit.precision_copies import PrecisionCopies
from mvc.repo.content.bases import BaseFinder, content_names
from mvc.repo.content.hashing import pieces
from mvc.store.packs.arena import Arena
from mvc.store.writing.choose import Base, BasePiece

__all__ = ["Batch", "Unit", "batches", "same"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a tensor; ``key`` names it within its version.

    ``equal``: its base has the same bytes, so a commit stores nothing.
    """

    key: tuple[str, str, int]
    spec: TensorSpec
    new: memoryview
    base_spec: TensorSpec | None = None
    base: BasePiece | None = None
    equal: bool = False


@dataclass(frozen=True)
class Batch:
    """Units that are in memory together; valid until the next batch is asked for."""

    units: Sequence[Unit]
    raw: int


def batches(
    fs: FileSystem,
    version: Version,
    before: Parent | None,
    max_bytes: int,
    note: Note,
    total: Callable[[int], None],
) -> Iterator[Batch]:
    """Pieces of a version with their bases, spread evenly over at most ``max_bytes``.

    At least one piece is taken. ``total`` is told the raw bytes of all contents, ``note``
    what a user should know of the files.
    """
    with opened(fs, version, note) as files:
        plan = _plan(files, max_bytes)
        total(sum(c.spec.nbytes for parsed in files.values() for c in parsed.contents))
        yield from _Matcher(files, before or NO_PARENT).run(plan)


_Place = tuple[str, int, int]  # name of the file, content, start


def _plan(files: Mapping[str, ParsedFile], max_bytes: int) -> set[_Place]:
    """Which pieces to take: error diffusion over the bytes of the version."""
    places = [
        ((name, i, start), length)
        for name, parsed in files.items()
        for i, content in enumerate(parsed.contents)
        for start, length in pieces(content.spec)
        if length
    ]
    total = sum(length for _, length in places)
    share = min(1.0, max_bytes / total) if total else 1.0
    chosen, seen, taken = set(), 0, 0
    for place, length in places:
        seen += length
        if taken + length / 2 <= seen * share:
            chosen.add(place)
            taken += length
    if places and not chosen:
        chosen.add(places[len(places) // 2][0])
    return chosen


@dataclass
class _Matcher:
    """Reads the pieces of a plan and finds their bases."""

    files: Mapping[str, ParsedFile]
    before: Parent
    _new: Arena = field(default_factory=lambda: Arena(SLAB))
    _old: Arena = field(default_factory=lambda: Arena(SLAB))

    def run(self, plan: set[_Place]) -> Iterator[Batch]:
        finder = BaseFinder(self.before.manifest, self.before.bytes, self._old)
        masters = PrecisionCopies()
        units: list[Unit] = []
        raw = 0
        for name, parsed in self.files.items():
            names = content_names(parsed.contents, parsed.tensors)
            for i in _widest_first(parsed):
                spec = parsed.contents[i].spec
                base = finder.find(name, names[i], spec)
                for start, length in pieces(spec):
                    if (name, i, start) not in plan:
                        continue
                    if raw and raw + length > SLAB:
                        yield Batch(units, raw)
                        units, raw = [], 0
                        self._new.reset()
                        self._old.reset()
                    data = self._new.take(length)
                    parsed.read(i, start, data)
                    units.append(_unit((name, names[i], start), spec, data, base, masters))
                    raw += length
                masters.add(parsed, i, NO_ID)
        if units:
            yield Batch(units, raw)


def _unit(
    key: tuple[str, str, int],
    spec: TensorSpec,
    data: memoryview,
    base: Base | None,
    masters: PrecisionCopies,
) -> Unit:
    start = key[2]
    found = _base_piece(spec, base, start)
    if base is not None and found is not None and base.spec == spec and same(found.data, data):
        return Unit(key, spec, data, equal=True)
    master = masters.find(spec, data) if spec.nbytes <= SLAB else None
    if master is not None:
        base, found = master, _base_piece(spec, master, start)
    return Unit(key, spec, data, base.spec if base and found else None, found)


def same(a: memoryview, b: memoryview) -> bool:
    """Whether two buffers hold the same bytes."""
    return len(a) == len(b) and all(
        np.array_equal(
            np.frombuffer(a[start : start + CHUNK], np.uint8),
            np.frombuffer(b[start : start + CHUNK], np.uint8),
        )
        for start in range(0, len(a), CHUNK)
    )


def _base_piece(spec: TensorSpec, base: Base | None, start: int) -> BasePiece | None:
    """The base's bytes in the new tensor's terms, by the rules of ``ObjectWriter``."""
    if base is None or (start and start >= base.spec.nbytes):
        return None
    try:
        if base.spec.dtype == spec.dtype:
            return base.piece(start)
        if start or base.spec.elements != spec.elements or base.spec.nbytes > SLAB:
            return None
        found = base.piece(0)
    except DamagedData:
        return None  # what comes after a damaged version is stored in full
    converted = cast.cast(found.data, base.spec.dtype, spec.dtype)
    return BasePiece(memoryview(converted).cast("B"), found.depth, found.stored)


def _widest_first(parsed: ParsedFile) -> list[int]:
    """As a commit goes: masters before their copies in lower precision."""
    sizes = [DTYPES[content.spec.dtype].itemsize for content in parsed.contents]
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])
