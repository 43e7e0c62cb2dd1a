"""Finds sound records, damaged ranges, and ranges that two journal entries claim, in packs.

A pack is a file in which a repository stores its data. A *region* is a range of a pack that a
journal entry names. A region consists of *records*. A record has a header and stored data.
"""

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
    """Yields (first byte, end, header, "") for each sound record of a region.

    For a damaged range between records, the header is None and the last item describes the damage.
    """
    reasons: list[DamagedData] = []
    end = region.start
    headers: Iterator[tuple[int, RecordHeader | None]] = chain(
        packs.sound_records(region, reasons.append), [(region.end, None)]
    )
    for at, header in headers:
        if end < at:
            why = reasons[0].message if reasons else "no record begins there"
            yield end, at, None, why
        reasons.clear()
        if header is not None:
            end = at + header.size
            yield at, end, header, ""


def claimed_twice(
    claims: Iterable[tuple[Region, Recorded]],
) -> Iterator[tuple[Region, Recorded, Recorded]]:
    """Yields each range that two entries claim, with the earlier and the later entry.

    The ranges are sorted by pack and offset.
    """
    open_regions: list[tuple[Region, Recorded]] = []  # regions that may overlap the current one
    for region, recorded in sorted(claims, key=lambda c: (c[0].pack, c[0].start, c[1].sequence)):
        open_regions = [
            open_region
            for open_region in open_regions
            if open_region[0].pack == region.pack and open_region[0].end > region.start
        ]
        for other, owner in open_regions:
            length = min(other.end, region.end) - region.start
            first, second = sorted((owner, recorded), key=lambda r: r.sequence)
            yield Region(region.pack, region.start, length), first, second
        open_regions.append((region, recorded))


def damaged_payloads(
    packs: PackReader, record: Placed, catch: type[MvcError] = DamagedData
) -> Iterator[tuple[range, MvcError]]:
    """Yields (objects, error) for each damaged payload (stored data) of a record.

    ``objects``: the range of positions that the payload's objects have in the record. Raises
    IoFailed if the disk cannot be read, unless ``catch`` includes IoFailed.
    """
    pack, at, header = record
    for i, member in enumerate(header.members[:1] if header.group else header.members):
        try:
            packs.payload(pack, at, header, member)
        except catch as error:
            yield range(len(header.members)) if header.group else range(i, i + 1), error
