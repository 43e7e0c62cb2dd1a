"""The inventory: all entries, all records, and every coding of every object, in memory.

For the verbs that change how versions are stored. An object is a blob or a manifest. A
*coding* is one way to recover it: a full record, or a delta from its base. Memory grows
with the number of objects, by about 150 bytes each: entries and headers are read again
when they are asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain

import numpy as np
from msgspec import Struct

from mvc.errors import DamagedData, MvcError
from mvc.ids import DIGEST_SIZE, ManifestId
from mvc.maintenance.history import VersionHistory
from mvc.maintenance.storage_graph import Flags, Integers, StorageGraph, column
from mvc.model.manifest import Manifest, Shape
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.graph.search import PathStep
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader, Placed
from mvc.store.packs.records import BASE_BYTES, MANIFEST, Member, RecordHeader
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Progress

CodingPlace = tuple[int, int, int]
"""Pack, offset of a record, position of the member in it."""

_SHAPES = 64  # manifests' shapes in memory
# Objects that are known to have a slot: so many, and those of so many manifests.
_RECENT, _TIMES = 1 << 14, 4


class StoredRecord(Struct, frozen=True):
    """A record and its place. ``entry_index``: the entry of the inventory that names it."""

    entry_index: int
    pack: int
    offset: int
    header: RecordHeader

    @property
    def end(self) -> int:
        return self.offset + self.header.size

    def members(self) -> Iterator[tuple[CodingPlace, Member]]:
        """Every member with the place of its coding."""
        for i, member in enumerate(self.header.members):
            yield (self.pack, self.offset, i), member


class StoredCoding(Struct, frozen=True, kw_only=True):
    """One member of a record. ``base``: the id of its base, None for a full record; ``inputs``:
    the ids of what it needs as well.

    ``stored``: bytes of its payload; of a group's payload its share by raw size.
    ``reversible``: whether the base can be recovered from the object as well. Readers look for
    such deltas only in entries at or after the base's. ``row``: its row in the storage graph.
    """

    row: int
    record: StoredRecord
    place: CodingPlace
    member: Member
    base: bytes | None
    stored: int
    reversible: bool
    inputs: tuple[bytes, ...] = ()

    @property
    def needs(self) -> tuple[bytes, ...]:
        """What it cannot be decoded without: its base and its inputs."""
        return self.inputs if self.base is None else (self.base, *self.inputs)

    @property
    def step(self) -> PathStep:
        """The coding as a step of a path."""
        record = self.record
        return PathStep(record.pack, record.offset, record.header, self.member, reverse=False)


class Inventory:
    """``entries``: read from the journal again whenever they are asked for. ``history``: what
    they say of versions. ``graph``: every coding, as rows. ``damaged``: what is wrong with
    records that were left out. ``pack_reader`` reads the packs.

    Columns by record: ``packs``, ``offsets``, ``sizes`` (bytes of the whole record), ``heads``
    (bytes of its header), ``groups`` (whether its members share one payload), ``rows`` (its first
    row in the graph). By row: ``payloads``, bytes; of a group all count with its first member;
    ``kinds``, the position in ``texts`` of how it is coded.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.generation = snapshot.generation
        self.entries = snapshot.journal.entry_list()
        self.history = VersionHistory()
        self.graph = StorageGraph()
        self.damaged: list[DamagedData] = []
        self.packs, self.offsets = array("Q"), array("Q")
        self.sizes, self.heads = array("Q"), array("Q")
        self.groups, self.rows = array("B"), array("q", [0])
        self.payloads, self.kinds = array("Q"), array("I")
        self.texts: dict[str, int] = {}
        self._ends = array("q", [0])  # by entry: the records up to its last
        self.pack_reader = snapshot.packs

    def add(self, recorded: Recorded, records: Iterable[Placed]) -> None:
        """Adds an entry with its records. Call ``settle`` after the last one."""
        position = len(self.entries)
        self.entries.add(recorded)
        self.history.take(recorded)
        for pack, offset, header in records:
            self.packs.append(pack)
            self.offsets.append(offset)
            self.sizes.append(header.size)
            self.heads.append(header.size - header.body_size)
            self.groups.append(header.group)
            for i, member in enumerate(header.members):
                self.graph.add(member, 0.0, position)
                self.payloads.append(0 if header.group and i else member.stored)
                self.kinds.append(self.texts.setdefault(member.coding.text, len(self.texts)))
            self.rows.append(len(self.payloads))
        self._ends.append(len(self.packs))

    def settle(self) -> None:
        """Resolves the bases of all codings: a base may be published after its delta."""
        self.graph.settle()

    # -- records ---------------------------------------------------------------------------

    def all_records(self) -> Iterator[StoredRecord]:
        return map(self.record, range(len(self.packs)))

    def all_members(self) -> Iterator[tuple[StoredRecord, CodingPlace, Member]]:
        """Every member of every record, with its place; also those without a known base."""
        for record in self.all_records():
            for place, member in record.members():
                yield record, place, member

    def record(self, number: int) -> StoredRecord:
        """A record by its position in the columns; its header is read again."""
        pack, offset = self.packs[number], self.offsets[number]
        entry_index = bisect_right(self._ends, number) - 1
        return StoredRecord(entry_index, pack, offset, self.pack_reader.header(pack, offset))

    def records_of(self, entry_index: int) -> list[StoredRecord]:
        return [self.record(n) for n in range(*self._ends[entry_index : entry_index + 2])]

    def places(self, rows: Iterable[int]) -> Iterator[CodingPlace]:
        for row in rows:
            number = bisect_right(self.rows, row) - 1
            yield self.packs[number], self.offsets[number], row - self.rows[number]

    # -- codings ---------------------------------------------------------------------------

    @property
    def codings(self) -> Mapping[bytes, list[StoredCoding]]:
        """The codings of every object whose base is stored; objects oldest first."""
        return _Codings(self)

    def all_codings(self) -> Iterator[StoredCoding]:
        for codings in self.codings.values():
            yield from codings

    def codings_from(self, base: bytes) -> list[StoredCoding]:
        """The deltas that an object can be recovered from, being their base."""
        return [self.coding(row) for row in _group(self._by_base, self.graph.number(base))]

    def coding(self, row: int) -> StoredCoding:
        number = bisect_right(self.rows, row) - 1
        record, at = self.record(number), row - self.rows[number]
        member, base = record.header.members[at], int(self.graph.base[row])
        return StoredCoding(
            row=row,
            record=record,
            place=(record.pack, record.offset, at),
            member=member,
            base=None if base < 0 else self.graph.id_of(base),
            stored=record.header.share(member),
            reversible=bool(self.graph.reversible[row]),
            inputs=tuple(map(self.graph.id_of, self.graph.inputs_of(row))),
        )

    @property
    def records_by_row(self) -> Integers:
        """By row of the graph: the position of its record in the columns."""
        return np.repeat(np.arange(len(self.packs)), np.diff(column(self.rows)))

    def rows_of(self, number: int) -> list[int]:
        """The rows of an object's codings, but not of deltas whose base is lost."""
        return _group(self._by_object, number)

    @cached_property
    def _by_object(self) -> _Groups:
        return _grouped(self.graph.object, self.graph.sound, len(self.graph))

    @cached_property
    def _by_base(self) -> _Groups:
        return _grouped(self.graph.base, self.graph.reversible, len(self.graph))

    @cached_property
    def ambiguous(self) -> set[bytes]:
        """First bytes of ids that several objects share; such objects always stay."""
        numbers = np.flatnonzero(self.graph.ambiguous).tolist()
        return {self.graph.id_of(number)[:BASE_BYTES] for number in numbers}

    def base_of(self, member: Member) -> bytes | None:
        """The id of a member's base; None for a full record, and if the base is not stored.

        Of several objects with the same first bytes, the first that was published is the base.
        """
        number = self.graph.meant_by(member.base) if member.base else -1
        return None if number < 0 else self.graph.id_of(number)

    def needs_of(self, member: Member) -> set[bytes]:
        """The ids of a member's base and inputs, as far as they are stored."""
        numbers = [self.graph.meant_by(prefix) for prefix in member.needs]
        return {self.graph.id_of(number) for number in numbers if number >= 0}

    def entry_of(self, id_: bytes) -> int:
        """The position of the entry that first published an object; KeyError if none did."""
        number = self.graph.number(id_)
        if number < 0:
            raise KeyError(id_)
        return self.graph.first_entry(number)


_Groups = tuple[Integers, Integers]
"""Rows in the order of what they belong to, and where the rows of each begin."""


def _grouped(owners: Integers, rows: Flags, count: int) -> _Groups:
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.argsort(owners[chosen], kind="stable")]
    return chosen, np.searchsorted(owners[chosen], np.arange(count + 1))


def _group(groups: _Groups, number: int) -> list[int]:
    rows, begins = groups
    found: list[int] = rows[begins[number] : begins[number + 1]].tolist() if number >= 0 else []
    return found


class _Codings(Mapping[bytes, list[StoredCoding]]):
    def __init__(self, found: Inventory) -> None:
        self._found = found

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[bytes]:
        graph = self._found.graph
        for number in np.unique(graph.object[graph.sound]).tolist():
            yield graph.id_of(number)

    def __contains__(self, id_: object) -> bool:
        number = self._found.graph.number(id_) if isinstance(id_, bytes) else -1
        return bool(self._found.rows_of(number))

    def __getitem__(self, id_: bytes) -> list[StoredCoding]:
        rows = self._found.rows_of(self._found.graph.number(id_))
        if not rows:
            raise KeyError(id_)
        return [self._found.coding(row) for row in rows]


class Contents:
    """The objects of manifests, as columns: some bytes for each mention of an object.

    ``manifests``: numbers of the manifests; ``raw``: bytes of the files of each; ``files``: how
    many; ``ends``: where the mentions of each end. By mention: ``slots`` and ``skeletons`` (whether
    it is a skeleton).
    A *slot* is an object, which may have several: ``ids`` holds 32 bytes for each, ``specs`` the
    position in ``known_specs``.
    """

    def __init__(self, stream: ManifestStream) -> None:
        self.manifests: dict[ManifestId, int] = {}
        self.raw, self.files, self.ends = array("Q"), array("I"), array("q", [0])
        self.slots, self.skeletons = array("I"), array("B")
        self.ids, self.specs = bytearray(), array("I")
        self.known_specs: list[TensorSpec] = []
        self.stream = stream
        self._numbers: dict[TensorSpec, int] = {}
        self._shapes: dict[int, Shape] = {}  # by length, the last one
        self._shape: tuple[Shape | None, list[int]] = None, []
        self._recent: dict[bytes, int] = {}  # slots

    def look(self, records: Iterable[Placed], packs: PackReader) -> None:
        """Reads the manifests of an entry, as far as their bases were read just before."""
        for pack, offset, header in records:
            for member in header.members:
                if member.kind == MANIFEST and member.id not in self.manifests:
                    id_, step = (
                        ManifestId(member.id),
                        PathStep(pack, offset, header, member, reverse=False),
                    )
                    data = self.stream.near(id_, [step], packs)
                    if data is not None:
                        self.add(id_, data)

    def require(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> None:
        """Reads a manifest if that was not done; DamagedData if it cannot be recovered."""
        if id_ not in self.manifests:
            self.add(id_, self.stream.read(id_, codings))

    def load(self, id_: ManifestId) -> Manifest:
        """A manifest itself; DamagedData if it cannot be recovered."""
        return self.stream.load(id_)

    def add(self, id_: ManifestId, data: bytes) -> None:
        shape = self._shapes.get(len(data))
        ids = None if shape is None else shape.ids(data)
        if shape is None or ids is None:
            shape = self._shapes[len(data)] = Shape(data)
            ids = shape.ids(data) or b""
            if len(self._shapes) > _SHAPES:
                self._shapes = {len(data): shape}
        if shape is not self._shape[0]:
            numbers = [self._spec(spec) for spec in shape.specs]
            self._shape = shape, numbers
        if len(self._recent) > max(_RECENT, _TIMES * len(self._shape[1])):
            self._recent.clear()
        begin = len(self.slots)
        slots = [
            self._slot(ids[at : at + DIGEST_SIZE], spec)
            for at, spec in zip(range(0, len(ids), DIGEST_SIZE), self._shape[1], strict=True)
        ]
        self.slots.extend(slots)
        self.skeletons.frombytes(bytes(len(slots)))
        for at in shape.skeletons:
            self.skeletons[begin + at] = 1
        self.manifests[id_] = len(self.raw)
        self.raw.append(shape.raw)
        self.files.append(shape.files)
        self.ends.append(len(self.slots))

    def id_of(self, slot: int) -> bytes:
        """The id of a slot's object."""
        return bytes(self.ids[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE])

    def _spec(self, spec: TensorSpec) -> int:
        number = self._numbers.setdefault(spec, len(self._numbers))
        if number == len(self.known_specs):
            self.known_specs.append(spec)
        return number

    def _slot(self, id_: bytes, spec: int) -> int:
        found = self._recent.get(id_)
        if found is None:
            found = self._recent[id_] = len(self.specs)
            self.ids += id_
            self.specs.append(spec)
        return found


def inventory(
    snapshot: Snapshot,
    contents: Contents | None = None,
    progress: Progress | None = None,
) -> Inventory:
    """Reads the journal and every record's header. Damaged records are left out and listed.

    ``contents``: is given the manifests, as far as they can be read on the way. ``progress``
    counts bytes of the journal.
    """
    snapshot.refresh()
    found, packs = Inventory(snapshot), snapshot.packs.ahead()
    for recorded in snapshot.entries():
        records = [
            (region.pack, at, header)
            for region in recorded.entry.regions
            for at, header in packs.sound_records(region, found.damaged.append)
        ]
        found.add(recorded, records)
        if contents is not None:
            contents.look(records, packs)
        if progress is not None:
            progress(recorded.after.offset, snapshot.position.offset, "versions")
    found.settle()
    return found


def inventory_and_contents(
    store: Store, progress: Progress | None = None
) -> tuple[Inventory, Contents]:
    """An inventory, and the contents of the manifests that could be read on the way."""
    contents = Contents(ManifestStream(store))
    return inventory(store.snapshot, contents, progress), contents


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
