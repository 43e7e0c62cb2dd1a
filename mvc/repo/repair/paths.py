"""Repair: paths to objects that normal look-ups do not find.

An object whose record is damaged is in no pack and no index, but deltas may still lead to
it, and manifests give its id. This graph knows all ids of manifests, and the records in the
quarantine. What is recovered over it is compared with its hash as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

from mvc.errors import DamagedData
from mvc.io.files import FileSystem, ReadFile
from mvc.repo.maintenance.inventory import CodingPlace
from mvc.repo.maintenance.quarantine import files_in
from mvc.repo.repair.damage import DamageSurvey
from mvc.store.graph.cost import Speed
from mvc.store.graph.search import Graph, Step
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, PackReader
from mvc.store.packs.records import BASE_BYTES, RecordHeader
from mvc.store.recovery.recover import Recovery
from mvc.store.snapshot import PACKS, Snapshot

__all__ = ["SoundGraph", "SoundRecovery"]

_BEYOND = 1 << 40  # from here on numbers mean files of the quarantine


class _Packs(PackReader):
    """Packs, and files of the quarantine under numbers that no pack has."""

    def __init__(self, fs: FileSystem, folder: Path, files: list[Path]) -> None:
        super().__init__(fs, folder)
        self._files = files

    def _file(self, pack: int) -> ReadFile:
        if pack < _BEYOND:
            return super()._file(pack)
        handle = self._open.get(pack)
        if handle is None:
            handle = self._open[pack] = self._fs.open_read(self._files[pack - _BEYOND])
        return handle


class SoundGraph(Graph):
    """All sound records in memory. ``name`` adds the id of an object that has none."""

    def __init__(self, snapshot: Snapshot, survey: DamageSurvey) -> None:
        super().__init__(snapshot, Speed())
        self._named: dict[bytes, bytes] = {}
        self._to: dict[bytes, list[Step]] = {}
        self._from: dict[bytes, list[Step]] = {}
        quarantined = files_in(snapshot.fs, snapshot.folder)
        self.packs = _Packs(snapshot.fs, snapshot.folder / PACKS, quarantined)
        for records in survey.found.records:
            for record in records:
                self._add(record.pack, record.offset, record.header, survey.damaged)
        for i, path in enumerate(quarantined):
            self._add_file(_BEYOND + i, path)

    def _add(self, pack: int, at: int, header: RecordHeader, damaged: set[CodingPlace]) -> None:
        for i, member in enumerate(header.members):
            self.name(member.id)
            if (pack, at, i) in damaged:
                continue
            self._to.setdefault(member.id, []).append(Step(pack, at, header, member, False))
            if member.base and not member.coding.transform:
                undone = Step(pack, at, header, member, True)
                self._from.setdefault(member.base, []).append(undone)

    def _add_file(self, number: int, path: Path) -> None:
        begin = len(PACK_HEADER)
        with self._snapshot.fs.open_read(path) as file:
            region = Region(number, begin, max(0, file.size() - begin))
        for at, header in self.packs.sound_records(region, _passed_over):
            damaged: set[CodingPlace] = set()
            for i, member in enumerate(header.members):
                try:
                    self.packs.payload(number, at, header, member)
                except DamagedData:
                    damaged.add((number, at, i))
            self._add(number, at, header, damaged)

    def name(self, id_: bytes) -> None:
        """Adds an id. Of several objects with the same first bytes, the first is the base."""
        self._named.setdefault(id_[:BASE_BYTES], id_)

    def resolve_prefix(self, prefix: bytes) -> bytes | None:
        return self._named.get(prefix)

    def steps(self, id_: bytes) -> list[Step]:
        """Every sound coding of an object."""
        return self._to.get(id_, [])

    def _neighbours(
        self, node: tuple[bytes, int]
    ) -> Iterator[tuple[tuple[bytes, int] | None, Step]]:
        id_, start = node
        for step in self._to.get(id_, ()):
            base = step.member.base
            if step.member.start != start:
                continue
            if not base:
                yield None, step
            elif (origin := self.resolve_prefix(base)) is not None:
                yield (origin, start), step
        if self.nameable(id_):
            for step in self._from.get(id_[:BASE_BYTES], ()):
                if step.member.start == start and step.member.id != id_:
                    yield (step.member.id, start), step

    def close(self) -> None:
        self.packs.close()


def _passed_over(damage: DamagedData) -> None:
    """Ignores damage in the quarantine: it was reported when the bytes were put there."""
    del damage


class SoundRecovery(Recovery):
    """Recovers objects over a ``SoundGraph``."""

    def __init__(self, graph: SoundGraph, pool: Executor) -> None:
        self.packs = graph.packs
        self.graph = graph
        self.pool = pool
