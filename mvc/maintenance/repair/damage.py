"""Repair, first part: reads all stored bytes, and finds sound and damaged records.

A *record* is a part of a pack file that stores objects (tensors and manifests), in full or as
deltas. If the record of an object is damaged, sound deltas may still lead to the object.
``SoundGraph`` finds such deltas, in packs and in the quarantine (damaged parts of packs, retained
for repair). Objects that it recovers are compared with their hashes, as all objects are.
"""

from __future__ import annotations

from collections.abc import Collection

from mvc.errors import DamagedData
from mvc.maintenance.fsck.packs import PackCheck
from mvc.maintenance.graph import CodingPlace, StorageGraph, StoredRecord
from mvc.maintenance.quarantine import DamagedRange, QuarantinePacks
from mvc.maintenance.records import damaged_payloads
from mvc.store.graph.memory import MemoryGraph
from mvc.store.graph.search import PathStep, Speed
from mvc.store.packs.records import RecordHeader
from mvc.store.snapshot import Snapshot
from mvc.types import Counted, Progress


def quarantined(record: StoredRecord, why: str) -> DamagedRange:
    """The range of a record. ``why``: the reason to put the record into quarantine."""
    return DamagedRange(record.pack, record.offset, record.end, why)


def survey_damage(
    snapshot: Snapshot, wrong: Collection[bytes] = (), progress: Progress | None = None
) -> PackCheck:
    """Reads every byte of every record. ``wrong``: objects that decode to other bytes than
    committed.

    Bytes count as damaged if they are missing or do not match their checksum. All records of
    ``wrong`` objects count as damaged, too. Raises IoFailed if the disk cannot be read.
    """
    snapshot.refresh()
    snapshot.packs.forget()
    survey = PackCheck(snapshot, StorageGraph(snapshot), catch=DamagedData)
    entries = list(snapshot.entries())
    total = sum(region.length for recorded in entries for region in recorded.entry.regions)
    read = Counted(progress, total)
    for recorded in entries:
        read.add(survey.entry(recorded), "packs")
    survey.objects.settle()
    for record, place, member in survey.objects.all_members() if wrong else ():
        if member.id in wrong:
            survey.damaged.add(place)
            why = f"object {member.id.hex()[:10]} decodes to other bytes"
            survey.ranges.append(quarantined(record, why))
    return survey


def shared_records(survey: PackCheck) -> set[tuple[int, int]]:
    """The records (pack, offset) in ranges that two journal entries claim."""
    twice = [part for part, _, _ in survey.claimed_twice()]
    return {
        (record.pack, record.offset)
        for record in (survey.objects.all_records() if twice else ())
        for part in twice
        if record.pack == part.pack and part.start < record.end and record.offset < part.end
    }


class SoundGraph(MemoryGraph):
    """The graph of all sound records, including those in the quarantine."""

    def __init__(self, snapshot: Snapshot, survey: PackCheck) -> None:
        super().__init__(snapshot, Speed())
        self.packs = QuarantinePacks(snapshot.fs, snapshot.folder)
        for record in survey.objects.all_records():
            self._add_record(record.pack, record.offset, record.header, survey.damaged)
        for number in self.packs.files:
            # do not report known damage again
            for at, header in self.packs.sound_records(self.packs.region(number), lambda _: None):
                wrong = damaged_payloads(self.packs, (number, at, header))
                self._add_record(
                    number, at, header, {(number, at, i) for hit, _ in wrong for i in hit}
                )

    def _add_record(
        self, pack: int, at: int, header: RecordHeader, damaged: set[CodingPlace]
    ) -> None:
        for i, member in enumerate(header.members):
            self.name(member.id)
            if (pack, at, i) in damaged:
                continue
            self.add(PathStep(pack, at, header, member, reverse=False))
