"""fsck, packs: every header, every payload, and bytes that no entry names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mvc.errors import IoFailed, MvcError
from mvc.repo.maintenance.report import Problem
from mvc.repo.maintenance.storage_graph import StorageGraph
from mvc.store.graph.cost import Speed
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER, pack_numbers, pack_path
from mvc.store.packs.records import MAGIC, Member, RecordHeader
from mvc.store.snapshot import PACKS, Snapshot

__all__ = ["PackCheck"]

_WINDOW = 1 << 20


@dataclass
class PackCheck:
    """Reads every region that the journal names. Sound payloads go to ``objects``.

    ``checked``: bytes read so far. ``found_keys``: by journal offset, the first bytes of the ids
    in the entry's records, which the index must have.
    """

    snapshot: Snapshot
    objects: StorageGraph = field(default_factory=StorageGraph)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    checked: int = 0
    found_keys: dict[int, set[bytes]] = field(default_factory=dict)
    _speed: Speed = field(default_factory=Speed)
    _claims: dict[int, list[tuple[Region, Recorded]]] = field(default_factory=dict)
    _sizes: dict[int, int | None] = field(default_factory=dict)
    _missing: dict[int, list[Region]] = field(default_factory=dict)

    def entry(self, recorded: Recorded) -> None:
        """Checks the records of one operation. Sound records after a damaged one are found."""
        sound: list[Member] = []
        whole = True
        keys: set[bytes] = set()
        for region in recorded.entry.regions:
            if region.length:
                self._claims.setdefault(region.pack, []).append((region, recorded))
            size = self._size(region.pack)
            if size is None:
                if region.length:
                    self._missing.setdefault(region.pack, []).append(region)
                    whole = False
                continue
            for at, header in self._headers(region):
                if header is None:
                    whole = False
                    continue
                self.records += 1
                keys.update(header.by_id)
                sound += self._payloads(region.pack, at, header)
            self.checked += max(0, min(region.length, size - region.start))
        if whole:
            self.found_keys[recorded.offset] = {k[:8] for k in keys}
        for member in sound:
            self.objects.add(member, self._speed.seconds(member))

    def _size(self, pack: int) -> int | None:
        """Bytes of a pack; None if it is missing."""
        if pack not in self._sizes:
            identity = self.snapshot.fs.stat(pack_path(self.snapshot.folder / PACKS, pack))
            self._sizes[pack] = None if identity is None else identity.size
        return self._sizes[pack]

    def _headers(self, region: Region) -> Iterator[tuple[int, RecordHeader | None]]:
        """Every record of a region; None for a damaged one, after which the search goes on."""
        at, end = region.start, region.start + region.length
        while at < end:
            try:
                header = self.snapshot.packs.header(region.pack, at)
                if at + header.size > end:
                    raise IoFailed(f"a record crosses byte {end}")
            except MvcError as error:
                path = pack_path(self.snapshot.folder / PACKS, region.pack)
                self.problems.append(Problem("record", path.name, f"byte {at}", error.message))
                yield at, None
                at = self._next_record(region.pack, at + 1, end)
                continue
            yield at, header
            at += header.size

    def _next_record(self, pack: int, at: int, end: int) -> int:
        """The offset of the next sound header, or ``end``."""
        path = pack_path(self.snapshot.folder / PACKS, pack)
        with self.snapshot.fs.open_read(path) as file:
            while at < end:
                data = file.read(at, min(_WINDOW, end - at))
                found = data.find(MAGIC)
                if found < 0:
                    if len(data) < len(MAGIC):
                        return end
                    at += len(data) - len(MAGIC) + 1
                    continue
                try:
                    self.snapshot.packs.header(pack, at + found)
                except MvcError:
                    at += found + 1
                else:
                    return at + found
        return end

    def _payloads(self, pack: int, at: int, header: RecordHeader) -> list[Member]:
        sound: list[Member] = []
        group_is_sound = True
        for i, member in enumerate(header.members):
            if not (header.group and i):
                group_is_sound = self._payload(pack, at, header, member)
            if group_is_sound:
                sound.append(member)
            else:
                self.objects.name(member.id)
        return sound

    def _payload(self, pack: int, at: int, header: RecordHeader, member: Member) -> bool:
        try:
            self.snapshot.packs.payload(pack, at, header, member)
        except MvcError as error:
            ids = tuple(m.id for m in header.members) if header.group else ()
            where = f"pack {pack}, byte {at}"
            self.problems.append(
                Problem("payload", member.id.hex(), where, error.message, also=ids)
            )
            return False
        return True

    def rest(self) -> None:
        """Checks missing packs, bytes claimed twice, the first bytes of packs, unused bytes."""
        fs, folder = self.snapshot.fs, self.snapshot.folder / PACKS
        if fs.stat(folder) is None:
            self.problems.insert(
                0, Problem("pack", PACKS, str(folder), "the folder with all packs is missing")
            )
            self.notes.append(f"restore the folder {PACKS} from a copy: it holds every tensor")
            return
        self.problems[:0] = [self._gone(*each) for each in sorted(self._missing.items())]
        for number, claims in sorted(self._claims.items()):
            self.problems += self._claimed_twice(pack_path(folder, number).name, claims)
        unused = 0
        for number in pack_numbers(fs, folder):
            path = pack_path(folder, number)
            regions = [region for region, _ in self._claims.get(number, ())]
            try:
                with fs.open_read(path) as file:
                    size, head = file.size(), file.read(0, len(PACK_HEADER))
            except IoFailed:
                if fs.stat(path) is not None:
                    raise
                if regions:  # maintenance has moved them: then the check looks again
                    self.problems.append(Problem("pack", path.name, "", f"{path.name} is gone"))
                continue
            if regions and head != PACK_HEADER:
                self.problems.append(
                    Problem("pack", path.name, "byte 0", f"{path.name} does not begin as a pack")
                )
            used = sum(r.length for r in regions) + (len(PACK_HEADER) if regions else 0)
            unused += max(0, size - used)
        if unused:
            self.notes.append(
                f"{unused:,} bytes in packs belong to no version: interrupted or running commits, "
                "or what was collected; gc rewrites a pack once 5 % of it would go"
            )

    def _claimed_twice(self, name: str, claims: list[tuple[Region, Recorded]]) -> Iterator[Problem]:
        """Bytes that two regions claim: one of the two operations lost what it wrote."""
        open_: list[tuple[int, Recorded]] = []  # (end, entry) of regions that may reach further
        for region, recorded in sorted(claims, key=lambda c: (c[0].start, c[1].sequence)):
            open_ = [each for each in open_ if each[0] > region.start]
            for end, other in open_:
                first, second = sorted((other, recorded), key=lambda r: r.sequence)
                shared = min(end, region.start + region.length)
                ids = (c.id for each in (first, second) for c in each.entry.commits)
                yield Problem(
                    "region",
                    name,
                    f"bytes {region.start} to {shared}",
                    f"operations {first.sequence} and {second.sequence} claim the same bytes",
                    tuple(dict.fromkeys(ids)),
                )
            open_.append((region.start + region.length, recorded))

    def _gone(self, pack: int, regions: list[Region]) -> Problem:
        path = pack_path(self.snapshot.folder / PACKS, pack)
        held = f"{sum(region.length for region in regions):,} bytes of records"
        return Problem("pack", path.name, "", f"the file is missing, with {held}")
