"""Repair: reads everything stored, separates sound from damaged records, and finds paths.

An object whose record is damaged is in no pack and no index, but deltas may still lead to
it, and manifests give its id. ``SoundGraph`` knows all ids of manifests, and the records in the
quarantine. What is recovered over it is compared with its hash as usual.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field

from mvc.maintenance.graph import CodingPlace, StorageGraph, StoredRecord
from mvc.maintenance.quarantine import DamagedRange, QuarantinePacks
from mvc.maintenance.records import claimed_twice, damaged_payloads, records_and_gaps
from mvc.store.graph.memory import MemoryGraph
from mvc.store.graph.search import PathStep, Speed
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader, Placed
from mvc.store.packs.records import RecordHeader
from mvc.store.snapshot import Snapshot
from mvc.types import Progress


class DamageSurvey(Struct):
    """``found``: every record with a sound header. ``damaged``: those of its codings whose
    payload is not. ``ranges``: where damaged bytes lie.

    ``shared``: records (pack, offset) in bytes that two entries claim.
    """

    found: StorageGraph
    damaged: set[CodingPlace] = field(default_factory=set)
    ranges: list[DamagedRange] = field(default_factory=list)
    shared: set[tuple[int, int]] = field(default_factory=set)

    def take(self, packs: PackReader, recorded: Recorded) -> None:
        """Reads the records of the next entry."""
        records: list[Placed] = []
        for region in recorded.entry.regions:
            for at, end, header, why in records_and_gaps(packs, region):
                if header is None:
                    self.ranges.append(DamagedRange(region.pack, at, end, why))
                    continue
                records.append((region.pack, at, header))
                wrong = list(damaged_payloads(packs, records[-1]))
                self.damaged.update((region.pack, at, i) for hit, _ in wrong for i in hit)
                if wrong:
                    self.ranges.append(DamagedRange(region.pack, at, end, wrong[0][1].message))
        self.found.add(recorded, records)

    def distrust(self, ids: Collection[bytes]) -> None:
        """Takes every coding of these objects for damaged, because they decode to other bytes."""
        for record, place, member in self.found.all_members() if ids else ():
            if member.id in ids:
                self.damaged.add(place)
                why = f"object {member.id.hex()[:10]} decodes to other bytes"
                self.ranges.append(quarantined(record, why))


def quarantined(record: StoredRecord, why: str) -> DamagedRange:
    """The whole record, to be put into quarantine."""
    return DamagedRange(record.pack, record.offset, record.end, why)


def survey_damage(
    snapshot: Snapshot, wrong: Collection[bytes] = (), progress: Progress | None = None
) -> DamageSurvey:
    """Reads every byte of every record. ``wrong``: objects that decode to other bytes.

    Only bytes that are missing or do not fit their checksum count as damaged. Raises IoFailed
    if the disk cannot be read.
    """
    snapshot.refresh()
    snapshot.packs.forget()
    survey = DamageSurvey(StorageGraph(snapshot))
    entries = list(snapshot.entries())
    total = sum(region.length for recorded in entries for region in recorded.entry.regions)
    done = 0
    for recorded in entries:
        survey.take(snapshot.packs, recorded)
        done += sum(region.length for region in recorded.entry.regions)
        if progress is not None:
            progress(done, total, "packs")
    survey.found.settle()
    claims = ((region, r) for r in entries for region in r.entry.regions if region.length)
    twice = [part for part, _, _ in claimed_twice(claims)]
    for record in survey.found.all_records() if twice else ():
        if any(
            record.pack == part.pack
            and part.start < record.end
            and record.offset < part.start + part.length
            for part in twice
        ):
            survey.shared.add((record.pack, record.offset))
    survey.distrust(wrong)
    return survey


class SoundGraph(MemoryGraph):
    """All sound records in memory."""

    def __init__(self, snapshot: Snapshot, survey: DamageSurvey) -> None:
        super().__init__(snapshot, Speed())
        self.packs = QuarantinePacks(snapshot.fs, snapshot.folder)
        for record in survey.found.all_records():
            self._take(record.pack, record.offset, record.header, survey.damaged)
        for number in self.packs.files:
            # Damage in the quarantine was reported when the bytes were put there.
            region = self.packs.region(number)
            for at, header in self.packs.sound_records(region, lambda _: None):
                wrong = damaged_payloads(self.packs, (number, at, header))
                self._take(number, at, header, {(number, at, i) for hit, _ in wrong for i in hit})

    def _take(self, pack: int, at: int, header: RecordHeader, damaged: set[CodingPlace]) -> None:
        for i, member in enumerate(header.members):
            self.name(member.id)
            if (pack, at, i) in damaged:
                continue
            self.add(PathStep(pack, at, header, member, reverse=False))
