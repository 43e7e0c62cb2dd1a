"""The inventory: all entries, all records, and every coding of every object, in memory.

For the verbs that change how versions are stored. An object is a blob or a manifest. A
*coding* is one way to recover it: a full record, or a delta from its base. Memory grows
with the number of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import chain

from mvc.dataclasses import dataclass
from mvc.errors import DamagedData, MvcError
from mvc.store.graph.search import Step
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import BASE_BYTES, Member, RecordHeader
from mvc.store.snapshot import Snapshot

__all__ = [
    "CodingPlace",
    "Inventory",
    "StoredCoding",
    "StoredRecord",
    "claimed_twice",
    "damaged_payloads",
    "inventory",
    "records_and_gaps",
]

CodingPlace = tuple[int, int, int]
"""Pack, offset of a record, position of the member in it."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and its place. ``entry_index``: the entry of the inventory that names it."""

    entry_index: int
    pack: int
    offset: int
    header: RecordHeader

    @property
    def end(self) -> int:
        """The first byte behind the record."""
        return self.offset + self.header.size

    def members(self) -> Iterator[tuple[CodingPlace, Member]]:
        """Every member with the place of its coding."""
        for i, member in enumerate(self.header.members):
            yield (self.pack, self.offset, i), member


@dataclass(frozen=True, slots=True)
class StoredCoding:
    """One member of a record. ``base``: the id of its base, None for a full record.

    ``stored``: bytes of its payload; of a group's payload its share by raw size.
    ``reversible``: whether the base can be recovered from the object as well. Readers look for
    such deltas only in entries at or after the base's.
    """

    record: StoredRecord
    place: CodingPlace
    member: Member
    base: bytes | None
    stored: int
    reversible: bool

    @property
    def step(self) -> Step:
        """The coding as a step of a path."""
        return Step(self.record.pack, self.record.offset, self.record.header, self.member, False)


@dataclass
class Inventory:
    """``records`` by entry; ``codings`` by object; ``entry_of``: an object's first entry.

    ``ambiguous``: first bytes of ids that several objects share; such objects always stay.
    ``damaged``: what is wrong with records that were left out.
    """

    generation: int
    entries: list[Recorded] = field(default_factory=list)
    records: list[list[StoredRecord]] = field(default_factory=list)
    codings: dict[bytes, list[StoredCoding]] = field(default_factory=dict)
    entry_of: dict[bytes, int] = field(default_factory=dict)
    ambiguous: set[bytes] = field(default_factory=set)
    damaged: list[DamagedData] = field(default_factory=list)
    _by_prefix: dict[bytes, bytes] = field(default_factory=dict)

    def resolve_prefix(self, prefix: bytes) -> bytes | None:
        """The id of a base, from its first bytes: the first object published with them."""
        return self._by_prefix.get(prefix)

    def base_of(self, member: Member) -> bytes | None:
        """The id of a member's base; None for a full record, and if the base is not stored."""
        return self._by_prefix.get(member.base) if member.base else None

    def all_codings(self) -> Iterator[StoredCoding]:
        for codings in self.codings.values():
            yield from codings

    def all_records(self) -> Iterator[StoredRecord]:
        for records in self.records:
            yield from records

    def all_members(self) -> Iterator[tuple[StoredRecord, CodingPlace, Member]]:
        """Every member of every record, with its place; also those without a known base."""
        for record in self.all_records():
            for place, member in record.members():
                yield record, place, member

    def add(self, recorded: Recorded, records: list[tuple[int, int, RecordHeader]]) -> None:
        """Adds an entry with its records. Call ``resolve`` after the last one."""
        entry_index = len(self.entries)
        self.entries.append(recorded)
        placed = [StoredRecord(entry_index, *each) for each in records]
        self.records.append(placed)
        for record in placed:
            for member in record.header.members:
                first = self._by_prefix.setdefault(member.id[:BASE_BYTES], member.id)
                if first != member.id:
                    self.ambiguous.add(member.id[:BASE_BYTES])
                self.entry_of.setdefault(member.id, entry_index)

    def resolve(self) -> None:
        """Resolves the bases of all codings: a base may be published after its delta."""
        for record, place, member in self.all_members():
            base = self.base_of(member)
            if member.base and base is None:
                continue  # its base is lost
            share = record.header.share(member)
            later = base is not None and self.entry_of[base] <= record.entry_index
            reversible = later and not member.coding.transform
            self.codings.setdefault(member.id, []).append(
                StoredCoding(record, place, member, base, share, reversible)
            )


def inventory(snapshot: Snapshot) -> Inventory:
    """Reads the journal and every record's header. Damaged records are left out and listed."""
    snapshot.refresh()
    found = Inventory(snapshot.generation)
    for recorded in snapshot.entries():
        records = [
            (region.pack, at, header)
            for region in recorded.entry.regions
            for at, header in snapshot.packs.sound_records(region, found.damaged.append)
        ]
        found.add(recorded, records)
    found.resolve()
    return found


def records_and_gaps(
    packs: PackReader, region: Region
) -> Iterator[tuple[int, int, RecordHeader | None, str]]:
    """(first byte, end, header, "") of the sound records of a region.

    Of damaged bytes between them the header is None and the last item says what is wrong.
    """
    reasons: list[DamagedData] = []
    reached = region.start
    found: Iterator[tuple[int, RecordHeader | None]] = chain(
        packs.sound_records(region, reasons.append), [(_end(region), None)]
    )
    for at, header in found:
        if reached < at:
            why = reasons[0].message if reasons else "no record stands there"
            yield reached, at, None, why
        reasons.clear()
        if header is not None:
            reached = at + header.size
            yield at, reached, header, ""


def claimed_twice(
    claims: Iterable[tuple[Region, Recorded]],
) -> Iterator[tuple[Region, Recorded, Recorded]]:
    """Bytes that two entries claim, by pack and offset, with the earlier and the later entry."""
    begun: list[tuple[Region, Recorded]] = []  # regions that may reach further
    for region, recorded in sorted(claims, key=lambda c: (c[0].pack, c[0].start, c[1].sequence)):
        begun = [
            each for each in begun if each[0].pack == region.pack and _end(each[0]) > region.start
        ]
        for other, owner in begun:
            length = min(_end(other), _end(region)) - region.start
            first, second = sorted((owner, recorded), key=lambda r: r.sequence)
            yield Region(region.pack, region.start, length), first, second
        begun.append((region, recorded))


def _end(region: Region) -> int:
    return region.start + region.length


def damaged_payloads(
    packs: PackReader, pack: int, at: int, header: RecordHeader, catch: type[MvcError] = DamagedData
) -> Iterator[tuple[range, MvcError]]:
    """Reads all payloads of a record; yields the members of each damaged one, and the error.

    Raises IoFailed if the disk cannot be read, unless ``catch`` covers that error as well.
    """
    for i, member in enumerate(header.members[:1] if header.group else header.members):
        try:
            packs.payload(pack, at, header, member)
        except catch as error:
            yield range(len(header.members)) if header.group else range(i, i + 1), error
