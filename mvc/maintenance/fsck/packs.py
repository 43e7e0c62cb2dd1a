"""The part of fsck that checks packs, the files with the stored data.

A pack consists of records. A record has a header and payloads, which contain the data. A journal
entry names the regions (ranges of packs) with its records. ``PackCheck`` checks every header and
payload. It also finds bytes that two entries name, and bytes that no entry names.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from mvc.errors import IoFailed, MvcError
from mvc.maintenance.graph import CodingPlace, StorageGraph
from mvc.maintenance.quarantine import DamagedRange
from mvc.maintenance.records import claimed_twice, damaged_payloads, records_and_gaps
from mvc.maintenance.report import Problem
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER, Placed, pack_numbers, pack_path
from mvc.store.snapshot import PACKS, Snapshot


class PackCheck(Struct):
    """Checks packs. Call ``entry`` for each journal entry, and then ``finish``.

    ``objects``: all entries are added to this graph. ``catch``: the type of payload errors that
    become ``problems``; other errors are raised. ``ranges``: damaged bytes. ``damaged``: codings
    (objects in full, or deltas) with a sound header and a damaged payload. ``indexed``: maps the
    journal offset of an entry to the first 8 bytes of the ids in its records, which the index must
    have. It leaves out entries with a missing or damaged header.
    """

    snapshot: Snapshot
    objects: StorageGraph
    catch: type[MvcError] = MvcError
    ranges: list[DamagedRange] = field(default_factory=list)
    damaged: set[CodingPlace] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    indexed: dict[int, set[bytes]] = field(default_factory=dict)
    _claims: dict[int, list[tuple[Region, Recorded]]] = field(default_factory=dict)
    _sizes: dict[int, int | None] = field(default_factory=dict)
    _missing: dict[int, int] = field(default_factory=dict)  # maps a missing pack to its size

    def claim(self, region: Region, recorded: Recorded) -> None:
        """Remembers that the journal entry ``recorded`` names the region."""
        self._claims.setdefault(region.pack, []).append((region, recorded))

    def entry(self, recorded: Recorded) -> int:
        """Checks the records of one journal entry. Returns the number of bytes that were read.

        If a record is damaged, continues with the next record.
        """
        records: list[Placed] = []
        prefixes: set[bytes] = set()
        is_complete, checked = True, 0
        for region in filter(lambda region: region.length, recorded.entry.regions):
            self.claim(region, recorded)
            size, end = self._size(region.pack), region.end
            if size is None:
                self._missing[region.pack] = self._missing.get(region.pack, 0) + region.length
                self.ranges.append(DamagedRange(region.pack, region.start, end, "it is missing"))
                is_complete = False
                continue
            for at, end, header, why in records_and_gaps(self.snapshot.packs, region):
                if header is None:
                    self._damaged("record", region.pack, f"byte {at}", why)
                    self.ranges.append(DamagedRange(region.pack, at, end, why))
                    is_complete = False
                    continue
                prefixes.update(id_[:8] for id_ in header.by_id)
                records.append((region.pack, at, header))
                self._read_payloads(records[-1])
            checked += max(0, min(region.length, size - region.start))
        if is_complete:
            self.indexed[recorded.offset] = prefixes
        self.objects.add(recorded, records, self.damaged)
        return checked

    def _read_payloads(self, record: Placed) -> None:
        self.records += 1
        pack, at, header = record
        members = header.members
        damaged_ = list(damaged_payloads(self.snapshot.packs, record, self.catch))
        for members_, error in damaged_:
            self.damaged.update((pack, at, i) for i in members_)
            name, where = members[members_[0]].id.hex(), f"pack {pack}, byte {at}"
            ids = tuple(member.id for member in members) if header.group else ()
            self.problems.append(Problem("payload", name, where, error.message, also=ids))
        if damaged_:
            why = damaged_[0][1].message
            self.ranges.append(DamagedRange(pack, at, at + header.size, why))

    def _damaged(self, kind: str, pack: int, where: str, why: str) -> None:
        name = pack_path(self.snapshot.folder / PACKS, pack).name
        self.problems.append(Problem(kind, name, where, why))

    def _size(self, pack: int) -> int | None:
        if pack not in self._sizes:
            identity = self.snapshot.fs.stat(pack_path(self.snapshot.folder / PACKS, pack))
            self._sizes[pack] = None if identity is None else identity.size
        return self._sizes[pack]

    def finish(self) -> None:
        """Reports missing packs, ranges claimed twice, damaged pack headers, and unused bytes."""
        folder = self.snapshot.folder / PACKS
        if self.snapshot.fs.stat(folder) is None:
            why = "the folder with all packs is missing"
            self.problems.insert(0, Problem("pack", PACKS, str(folder), why))
            self.notes.append(f"restore {PACKS} from a copy: this folder has every tensor")
            return
        problems, self.problems = self.problems, []
        for pack, nbytes in sorted(self._missing.items()):
            self._damaged(
                "pack", pack, "", f"the file is missing, with {nbytes:,} bytes of records"
            )
        self.problems += problems
        self._claimed_twice()
        unused = sum(map(self._unused, pack_numbers(self.snapshot.fs, folder)))
        if unused:
            self.notes.append(
                f"{unused:,} bytes in packs belong to no version: they are from interrupted "
                "or running commits, or from deleted data; 'mvc gc' rewrites a pack if at least "
                "5 % of its bytes are unused"
            )

    def _unused(self, pack: int) -> int:
        """Checks the header of a pack. Returns how many bytes of the pack no entry names."""
        fs, path = self.snapshot.fs, pack_path(self.snapshot.folder / PACKS, pack)
        claims = self._claims.get(pack, ())
        try:
            with fs.open_read(path) as file:
                size, head = file.size(), file.read(0, len(PACK_HEADER))
        except IoFailed:
            if fs.stat(path) is not None:
                raise
            if claims:  # maintenance may have deleted the pack: then the check is repeated
                self._damaged("pack", pack, "", f"{path.name} is missing")
            return 0
        if claims and head != PACK_HEADER:
            self._damaged("pack", pack, "byte 0", f"{path.name} has no pack header")
        used = sum(region.length for region, _ in claims) + (len(PACK_HEADER) if claims else 0)
        return max(0, size - used)

    def claimed_twice(self) -> Iterator[tuple[Region, Recorded, Recorded]]:
        """Yields each range of a pack that two entries name, with these entries."""
        return claimed_twice(claim for claims in self._claims.values() for claim in claims)

    def _claimed_twice(self) -> None:
        """Reports ranges that two entries name. The data of one of these entries is lost."""
        for part, first, second in self.claimed_twice():
            ids = dict.fromkeys(
                c.id for recorded in (first, second) for c in recorded.entry.commits
            )
            self.problems.append(
                Problem(
                    "region",
                    pack_path(self.snapshot.folder / PACKS, part.pack).name,
                    f"bytes {part.start} to {part.end}",
                    f"operations {first.sequence} and {second.sequence} claim the same bytes",
                    versions=tuple(ids),
                )
            )
