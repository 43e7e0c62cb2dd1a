"""Repair: reads everything stored and separates sound from damaged records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mvc.errors import DamagedData
from mvc.repo.context import Progress
from mvc.repo.maintenance.inventory import CodingPlace, Inventory
from mvc.repo.maintenance.quarantine import DamagedRange
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import BASE_BYTES, RecordHeader
from mvc.store.snapshot import Snapshot

__all__ = ["DamageSurvey", "survey_damage"]


@dataclass
class DamageSurvey:
    """``found``: every record with a sound header. ``damaged``: those of its codings whose
    payload is not. ``ranges``: where damaged bytes lie.

    ``first``: by the first bytes of an id, the earliest entry that stores the object or names
    it as a base; a new record of it belongs there. ``shared``: records (pack, offset) in bytes
    that two entries claim.
    """

    found: Inventory
    damaged: set[CodingPlace] = field(default_factory=set)
    ranges: list[DamagedRange] = field(default_factory=list)
    first: dict[bytes, int] = field(default_factory=dict)
    shared: set[tuple[int, int]] = field(default_factory=set)


def survey_damage(snapshot: Snapshot, progress: Progress | None = None) -> DamageSurvey:
    """Reads every byte of every record.

    Only bytes that are missing or do not fit their checksum count as damaged. Raises IoFailed
    if the disk cannot be read.
    """
    snapshot.refresh()
    snapshot.packs.forget()
    made = DamageSurvey(Inventory(snapshot.generation))
    entries = list(snapshot.entries())
    total = sum(region.length for recorded in entries for region in recorded.entry.regions)
    done = 0
    for recorded in entries:
        _entry(made, snapshot.packs, recorded)
        done += sum(region.length for region in recorded.entry.regions)
        if progress is not None:
            progress(done, total, "packs")
    _share(made)
    return made


def _share(made: DamageSurvey) -> None:
    """Finds records in bytes that more than one entry claims."""
    claimed: dict[int, list[tuple[int, int, int]]] = {}
    for entry_index, recorded in enumerate(made.found.entries):
        for region in recorded.entry.regions:
            if region.length:
                end = region.start + region.length
                claimed.setdefault(region.pack, []).append((region.start, end, entry_index))
    twice: dict[int, list[tuple[int, int]]] = {}
    for pack, claims in claimed.items():
        reached = 0
        for start, end, _ in sorted(claims):
            if start < reached:
                twice.setdefault(pack, []).append((start, min(end, reached)))
            reached = max(reached, end)
    for records in made.found.records if twice else ():
        for record in records:
            end = record.offset + record.header.size
            if any(a < end and record.offset < b for a, b in twice.get(record.pack, ())):
                made.shared.add((record.pack, record.offset))


def _entry(made: DamageSurvey, packs: PackReader, recorded: Recorded) -> None:
    entry_index = len(made.found.entries)
    records: list[tuple[int, int, RecordHeader]] = []
    for region in recorded.entry.regions:
        for at, header in _sound(made, packs, region):
            records.append((region.pack, at, header))
            for member in header.members:
                made.first.setdefault(member.id[:BASE_BYTES], entry_index)
                if member.base:
                    made.first.setdefault(member.base, entry_index)
            _payloads(made, packs, region.pack, at, header)
    made.found.add(recorded, records)


def _sound(
    made: DamageSurvey, packs: PackReader, region: Region
) -> Iterator[tuple[int, RecordHeader]]:
    """The sound records of a region; the bytes between them are damaged."""
    reasons: list[DamagedData] = []
    reached, end = region.start, region.start + region.length
    for at, header in packs.sound_records(region, reasons.append):
        _give_up(made, region.pack, reached, at, reasons)
        reached = at + header.size
        yield at, header
    _give_up(made, region.pack, reached, end, reasons)


def _give_up(
    made: DamageSurvey, pack: int, start: int, end: int, reasons: list[DamagedData]
) -> None:
    if end > start:
        why = reasons[0].message if reasons else "no record stands there"
        made.ranges.append(DamagedRange(pack, start, end, why))
    reasons.clear()


def _payloads(
    made: DamageSurvey, packs: PackReader, pack: int, at: int, header: RecordHeader
) -> None:
    why = ""
    for i, member in enumerate(header.members[:1] if header.group else header.members):
        try:
            packs.payload(pack, at, header, member)
        except DamagedData as error:
            why = why or error.message
            hit = range(len(header.members)) if header.group else (i,)
            made.damaged.update((pack, at, j) for j in hit)
    if why:
        made.ranges.append(DamagedRange(pack, at, at + header.size, why))
