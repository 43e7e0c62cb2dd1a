"""What lies in regions of packs: records, damaged bytes between them, bytes claimed twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from mvc.errors import DamagedData, MvcError
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader, Placed
from mvc.store.packs.records import RecordHeader


def records_and_gaps(
    packs: PackReader, region: Region
) -> Iterator[tuple[int, int, RecordHeader | None, str]]:
    """(first byte, end, header, "") of the sound records of a region.

    Of damaged bytes between them the header is None and the last item says what is wrong.
    """
    reasons: list[DamagedData] = []
    reached = region.start
    found: Iterator[tuple[int, RecordHeader | None]] = chain(
        packs.sound_records(region, reasons.append), [(region.end, None)]
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
            each for each in begun if each[0].pack == region.pack and each[0].end > region.start
        ]
        for other, owner in begun:
            length = min(other.end, region.end) - region.start
            first, second = sorted((owner, recorded), key=lambda r: r.sequence)
            yield Region(region.pack, region.start, length), first, second
        begun.append((region, recorded))


def damaged_payloads(
    packs: PackReader, record: Placed, catch: type[MvcError] = DamagedData
) -> Iterator[tuple[range, MvcError]]:
    """Reads all payloads of a record; yields the members of each damaged one, and the error.

    Raises IoFailed if the disk cannot be read, unless ``catch`` covers that error as well.
    """
    pack, at, header = record
    for i, member in enumerate(header.members[:1] if header.group else header.members):
        try:
            packs.payload(pack, at, header, member)
        except catch as error:
            yield range(len(header.members)) if header.group else range(i, i + 1), error
