"""The storage graph of a whole repository: how each stored object can be decoded.

gc, forget, repack, fsck, repair and stats read this graph. An *object* is a blob (a tensor's bytes)
or a manifest (the list of a version's files). A *coding* stores an object in full or as a delta
from another object, the *base*. A *record* is a part of a pack file: a header and one or more
codings, called *members*. A *node* of the graph is a piece (up to 32 MiB) of an object. An edge is
a delta. A path begins at a piece that is stored in full. The graph is in memory, as columns
(arrays): about 150 bytes for each coding.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.errors import DamagedData
from mvc.ids import DIGEST_SIZE, ManifestId
from mvc.maintenance.history import VersionHistory
from mvc.model.manifest import Shape
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.graph.search import PathStep
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PackReader, Placed
from mvc.store.packs.records import BASE_BYTES, MANIFEST, Member, RecordHeader
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.types import Counted, Progress

Piece = tuple[bytes, int]
"""An object's id, and the offset of one of its pieces."""

CodingPlace = tuple[int, int, int]
"""Pack, offset of a record, position of the member in the record."""

_SHAPES = 64  # shapes (manifests without their ids) in memory
# ``Contents._recent`` is cleared when it has more than _RECENT objects, and more than _TIMES as
# many objects as the current manifest.
_RECENT, _TIMES = 1 << 14, 4


class StoredRecord(Struct, frozen=True):
    """A record and its location.

    ``entry_index``: the position of the journal entry that names the record.
    """

    entry_index: int
    pack: int
    offset: int
    header: RecordHeader

    @property
    def end(self) -> int:
        return self.offset + self.header.size

    def members(self) -> Iterator[tuple[CodingPlace, Member]]:
        """Yields every member with the location of its coding."""
        members = enumerate(self.header.members)
        return (((self.pack, self.offset, i), member) for i, member in members)


class StoredCoding(Struct, frozen=True, kw_only=True):
    """One member of a record: a coding.

    ``base``: None for a full record. ``inputs``: objects that decoding needs in addition to the
    base. ``stored``: the number of encoded bytes. If several members are encoded together,
    ``stored`` is the member's part, in proportion to the member's raw size. ``reversible``: whether
    the base can be recovered from the object, too. Readers find such a delta only in the entry that
    first published the base, and in later entries. ``row``: the coding's position in the columns.
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
        """The base and inputs that decoding needs."""
        return self.inputs if self.base is None else (self.base, *self.inputs)

    @property
    def step(self) -> PathStep:
        record = self.record
        return PathStep(record.pack, record.offset, record.header, self.member, reverse=False)


Integers = NDArray[np.signedinteger[Any]]
"""Indexes of rows, objects or nodes. -1 means none."""
Flags = NDArray[np.bool_]

_TYPES = {"B": np.uint8, "I": np.uint32, "Q": np.uint64, "q": np.int64, "d": np.float64}


def column(values: array[Any]) -> NDArray[Any]:
    """A numpy array that shares the memory of ``values``.

    Delete the array before you append to ``values``.
    """
    return np.frombuffer(values, _TYPES[values.typecode]) if values else np.empty(0, np.int64)


def _words(data: bytes | bytearray) -> NDArray[np.uint64]:
    """The bytes as 8-byte integers. A delta names its base by the first 8 bytes of an id."""
    return np.frombuffer(data, np.uint64) if data else np.empty(0, np.uint64)


_NAMED, _DELTA, _FORWARD, _MANIFEST = 1, 2, 4, 8
_WORDS = DIGEST_SIZE // BASE_BYTES
_AT_ONCE = 1 << 16  # ids in one lookup


def _short(numbers: Integers) -> Integers:
    """Converts to 32-bit integers, which are large enough for all rows that fit in memory."""
    return numbers.astype(np.int32)


class StorageGraph:
    """Records and codings in columns. Call ``add`` for every journal entry, then ``settle``. Then
    the other methods can be called.

    ``history``: versions. ``contents``: manifests. ``damaged``: errors of skipped records.
    ``named``: the numbers of packs that entries name.

    Columns with one item per record: ``packs``, ``offsets``, ``lengths`` (number of bytes),
    ``heads`` (number of bytes of the header), ``groups`` (whether the members share one payload),
    ``rows`` (the record's first row).

    Each member of a record is a *row*. Rows are in the order of publication. Objects are numbered
    in the order of their first rows, and nodes by object and offset. Columns with one item per row:
    ``payloads`` (number of bytes; the first member of a group has all bytes, the others have 0),
    ``forms`` (position in ``texts``, the names of pipelines). ``settle`` adds ``object``, ``base``
    (-1 without a stored base), ``node``, ``base_node``, ``entry``, ``sound`` (whether base and
    inputs are stored), ``reversible`` (whether the base can be recovered from the object),
    ``delta``, ``manifest``. Columns with one item per input of a row: ``input_row`` (ascending),
    ``input_object``, ``input_node``.
    """

    def __init__(self, snapshot: Snapshot, contents: Contents | None = None) -> None:
        self.generation = snapshot.generation
        self.entries = snapshot.journal.entry_list()
        self.history = VersionHistory()
        self.contents = Contents() if contents is None else contents
        self.damaged: list[DamagedData] = []
        self.pack_reader = snapshot.packs
        self.packs, self.offsets = array("Q"), array("Q")
        self.lengths, self.heads = array("Q"), array("Q")
        self.groups, self.rows, self.named = array("B"), array("q", [0]), set[int]()
        self.payloads, self.forms = array("Q"), array("I")
        self.texts: dict[str, int] = {}
        # The number of records up to the end of each entry.
        self._ends = array("q", [0])
        self._ids = bytearray()
        self._bases = bytearray()
        self._entries = array("q")
        self._starts = array("Q")
        self._sizes = array("Q")
        self._kinds = array("B")
        self._inputs, self._input_rows = bytearray(), array("q")

    # -- collecting ------------------------------------------------------------------------

    def add(
        self,
        recorded: Recorded,
        records: Iterable[Placed],
        damaged: Collection[CodingPlace] = (),
    ) -> None:
        """Adds a journal entry with its records.

        If a coding is ``damaged``, only the id of its object is added.
        """
        position = len(self.entries)
        self.entries.add(recorded)
        self.history.add(recorded)
        # A region that ends at byte 0 is the mark of a deleted pack (``rewrite_plan``).
        self.named.update(r.pack for r in recorded.entry.regions if r.end)
        for pack, offset, header in records:
            self.packs.append(pack)
            self.offsets.append(offset)
            self.lengths.append(header.size)
            self.heads.append(header.size - header.body_size)
            self.groups.append(header.group)
            for i, member in enumerate(header.members):
                is_damaged = bool(damaged) and (pack, offset, i) in damaged
                self._add(member, position, damaged=is_damaged)
                self.payloads.append(0 if header.group and i else member.stored)
                self.forms.append(self.texts.setdefault(member.coding.text, len(self.texts)))
            self.rows.append(len(self.payloads))
        self._ends.append(len(self.packs))

    def _add(self, member: Member, entry: int, *, damaged: bool) -> None:
        kind = _MANIFEST if member.kind == MANIFEST else 0
        if member.base:
            kind |= (_DELTA | _FORWARD) if member.coding.forward_only else _DELTA
        if damaged:
            kind = _NAMED
        for input_ in () if damaged else member.inputs:
            self._inputs += input_
            self._input_rows.append(len(self._kinds))
        self._ids += member.id
        self._bases += member.base or _NO_BASE
        self._entries.append(entry)
        self._kinds.append(kind)
        self._starts.append(member.start)
        self._sizes.append(member.nbytes)

    def settle(self) -> None:
        """Numbers objects and nodes. Call ``settle`` once, after the last ``add``."""
        kinds = column(self._kinds)
        named, self.delta, forward = ((kinds & bit) != 0 for bit in (_NAMED, _DELTA, _FORWARD))
        self.manifest: Flags = (kinds & _MANIFEST) != 0
        self.entry: Integers = column(self._entries)
        self._number_objects()
        bases = _words(self._bases)
        self.base: Integers = _short(np.where(self.delta, self._resolved(bases), -1))
        self.input_row: Integers = column(self._input_rows)
        self.input_object: Integers = _short(self._resolved(_words(self._inputs)))
        self._bases, self._inputs = bytearray(), bytearray()
        self.sound: Flags = ~named & (~self.delta | (self.base >= 0))
        self.sound[self.input_row[self.input_object < 0]] = False
        published = self.entry[self._first_rows]
        early = self.sound & self.delta
        early[early] = published[self.base[early]] <= self.entry[early]
        self.reversible: Flags = early & ~forward
        self._number_nodes(~named)

    def _number_objects(self) -> None:
        """Sorts the ids, so that objects are found by bisection."""
        ids = _words(self._ids).reshape(-1, _WORDS)
        order = np.lexsort(ids.T[::-1])
        ids = ids[order]
        is_new = np.ones(len(ids), np.bool_)
        is_new[1:] = (ids[1:] != ids[:-1]).any(axis=1)
        first = order[is_new]  # the sort is stable: each object's earliest row
        by_age = _short(np.argsort(first))
        numbers = np.empty_like(by_age)
        numbers[by_age] = np.arange(len(by_age))
        self.object: Integers = np.empty(len(order), np.int32)
        self.object[order] = numbers[np.cumsum(is_new) - 1]
        self._first_rows = _short(first[by_age])
        self._ids = bytearray()
        # These columns are sorted by id: the ids, their first bytes, and the numbers of their
        # objects. ``_places`` maps the number of an object to its position in these columns.
        self._sorted = ids[is_new]
        self._prefixes = np.ascontiguousarray(self._sorted[:, 0])
        self._numbers = numbers
        self._places = by_age
        runs = np.flatnonzero(np.append(True, self._prefixes[1:] != self._prefixes[:-1]))
        runs = runs[: len(self._prefixes)]
        lengths = np.diff(np.append(runs, len(self._prefixes)))
        earliest = np.minimum.reduceat(numbers, runs) if len(runs) else numbers
        self._by_prefix = np.repeat(earliest, lengths)  # the object that each prefix names
        self.shares_prefix: Flags = np.zeros(len(numbers), np.bool_)
        self.shares_prefix[numbers] = np.repeat(lengths > 1, lengths)

    def _resolved(self, prefixes: NDArray[np.uint64]) -> Integers:
        """The numbers of the objects whose ids begin with these prefixes; -1 for an
        unknown prefix.
        """
        places = np.searchsorted(self._prefixes, prefixes)
        known = places < len(self._prefixes)
        known[known] = self._prefixes[places[known]] == prefixes[known]
        numbers = np.full(len(prefixes), -1)
        numbers[known] = self._by_prefix[places[known]]
        return numbers

    def _number_nodes(self, coded: Flags) -> None:
        """Numbers every piece that a row encodes or that a row needs as base or input."""
        starts = column(self._starts)
        self._offsets = np.unique(starts)
        part = np.searchsorted(self._offsets, starts)
        keys = np.where(coded, len(self._offsets) * self.object.astype(np.int64) + part, -1)
        base_keys = np.where(
            self.base >= 0, len(self._offsets) * self.base.astype(np.int64) + part, -1
        )
        input_keys = np.where(
            self.input_object >= 0,
            len(self._offsets) * self.input_object.astype(np.int64) + part[self.input_row],
            -1,
        )
        self._pieces = np.unique(np.concatenate((keys, base_keys, input_keys)))
        self._pieces = self._pieces[self._pieces >= 0]
        self.node: Integers = _short(self._place_of(keys))
        self.base_node: Integers = _short(self._place_of(base_keys))
        self.input_node: Integers = _short(self._place_of(input_keys))

    @property
    def sizes(self) -> NDArray[np.uint64]:
        return column(self._sizes)

    def price(self, seconds: NDArray[np.float64]) -> None:
        """Sets the seconds to decode each row, and finds the fastest paths."""
        self._seconds = seconds
        self._paths = self._search(self.sound, seconds)

    def _place_of(self, keys: Integers) -> Integers:
        places = np.searchsorted(self._pieces, keys)
        known = (places < len(self._pieces)) & (keys >= 0)
        known[known] = self._pieces[places[known]] == keys[known]
        return np.where(known, places, -1)

    def inputs_of(self, row: int) -> list[int]:
        """The inputs of a row in the order that decoding needs. The base is not included."""
        begin, end = np.searchsorted(self.input_row, (row, row + 1))
        inputs: list[int] = self.input_object[begin:end].tolist()
        return inputs

    def decodable_from(self, rows: Flags, objects: Flags) -> Flags:
        """The ``rows`` whose base and inputs are among ``objects``."""
        chosen: Flags = rows & (~self.delta | objects[self.base])
        chosen[self.input_row[~objects[self.input_object]]] = False
        return chosen

    def refuse_damage(self) -> None:
        """Raises DamagedData if damaged records were skipped while the graph was read."""
        if self.damaged:
            raise DamagedData(
                f"the repository is damaged: {self.damaged[0].message}",
                hint="run 'mvc fsck --repair' first",
            )

    # -- objects and nodes -----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._numbers)

    def id_of(self, number: int) -> bytes:
        id_: bytes = self._sorted[self._places[number]].tobytes()
        return id_

    @cached_property
    def _bisected(self) -> array[int]:
        return array("Q", self._prefixes.tobytes())

    def number(self, id_: bytes) -> int:
        """The number of an object; -1 if the object is unknown."""
        prefix = int.from_bytes(id_[:BASE_BYTES], sys.byteorder)
        place = bisect_left(self._bisected, prefix)
        while place < len(self._bisected) and self._bisected[place] == prefix:
            if self._sorted[place].tobytes() == id_:
                return int(self._numbers[place])
            place += 1
        return -1

    def with_prefix(self, prefix: bytes) -> int:
        """The number of the object whose id begins with ``prefix``; -1 if there is none."""
        return int(self._resolved(_words(prefix))[0])

    def numbers(self, ids: bytes | bytearray) -> Integers:
        """The numbers of many objects, whose ids are concatenated in ``ids``."""
        wanted = _words(ids).reshape(-1, _WORDS)
        parts = range(0, len(wanted), _AT_ONCE)
        return np.concatenate(
            [np.empty(0, np.int64), *(self._look_up(wanted[at : at + _AT_ONCE]) for at in parts)]
        )

    def _look_up(self, wanted: NDArray[np.uint64]) -> Integers:
        numbers = np.full(len(wanted), -1)
        places = np.searchsorted(self._prefixes, wanted[:, 0])
        left = np.flatnonzero(places < len(self._prefixes))
        while len(left):
            candidates = self._sorted[places[left]]
            hit = (candidates == wanted[left]).all(axis=1)
            numbers[left[hit]] = self._numbers[places[left[hit]]]
            left = left[
                ~hit & (candidates[:, 0] == wanted[left, 0])
            ]  # another id with the same prefix was found
            places[left] += 1
            left = left[places[left] < len(self._prefixes)]
        return numbers

    def nodes(self, objects: Integers, starts: NDArray[np.uint64]) -> Integers:
        part = np.searchsorted(self._offsets, starts)
        known = (part < len(self._offsets)) & (objects >= 0)
        known[known] = self._offsets[part[known]] == starts[known]
        return self._place_of(np.where(known, objects * len(self._offsets) + part, -1))

    def has(self, nodes: Flags, piece: Piece) -> bool:
        node = self._node(*piece)
        return node >= 0 and bool(nodes[node])

    def _node(self, id_: bytes, start: int) -> int:
        number = self.number(id_)
        part = bisect_left(self._offsets, start)
        if number < 0 or part == len(self._offsets) or self._offsets[part] != start:
            return -1
        key = number * len(self._offsets) + part
        place = bisect_left(self._pieces, key)
        exists = place < len(self._pieces) and self._pieces[place] == key
        return place if exists else -1

    # -- paths -----------------------------------------------------------------------------

    @cached_property
    def _paths(self) -> tuple[NDArray[np.float64], Integers, Integers]:
        return self._search(self.sound, np.zeros(len(self.sound)))

    @property
    def costs(self) -> NDArray[np.float64]:
        """For each node: CPU seconds to decode the fastest path; infinite if there is no path."""
        return self._paths[0]

    @property
    def depths(self) -> Integers:
        """For each node: the number of deltas on the fastest path."""
        return self._paths[1]

    @property
    def sources(self) -> Integers:
        """For each node: the row of the full record at which the fastest path begins; -1 without a
        path.
        """
        return self._paths[2]

    @cached_property
    def last_steps(self) -> tuple[Integers, Integers]:
        """For each node: the last row of the fastest path, and the node at which this row starts.

        -1 means none. Call ``price`` first.
        """
        rows, before = self.sources.copy(), np.full(len(self._pieces), -1)
        rows[self.depths > 0] = -1
        leads = self.sound & self.delta
        leads[self.input_row[~np.isfinite(self.costs[self.input_node])]] = False
        forth = np.flatnonzero(leads)
        back = forth[self.reversible[forth]]
        for chosen, origins, targets in (
            (forth, self.base_node[forth], self.node[forth]),
            (back, self.node[back], self.base_node[back]),
        ):
            costs = self.costs[origins] + self._seconds[chosen]
            leads = (costs == self.costs[targets]) & np.isfinite(costs)
            leads &= self.depths[origins] + 1 == self.depths[targets]
            rows[targets[leads]], before[targets[leads]] = chosen[leads], origins[leads]
        return rows, before

    @cached_property
    def full(self) -> Flags:
        """For each node: whether the piece has a full record."""
        full: Flags = np.zeros(len(self._pieces), np.bool_)
        full[self.node[self.sound & ~self.delta]] = True
        return full

    def reached(self, rows: Flags) -> Flags:
        """For each node: whether a path that uses only ``rows`` leads to the node."""
        return np.isfinite(self._search(rows, np.zeros(len(rows)))[0])

    def _search(
        self, rows: Flags, seconds: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], Integers, Integers]:
        """The fastest paths that use only ``rows``, by the algorithm of Bellman and Ford.

        Each round follows the edges from the nodes that the previous round changed. If two paths
        take the same time, the path with fewer deltas is chosen. If two full records take the same
        time, the first record is chosen. A row with inputs is usable when paths lead to all inputs
        of the row. Returns ``costs``, ``depths`` and ``sources``.
        """
        full, forth = np.flatnonzero(rows & ~self.delta)[::-1], rows & self.delta
        # The slowest record of a node comes first. A faster record then overwrites it.
        full = full[np.argsort(-seconds[full], kind="stable")]
        back = forth & self.reversible
        costs = np.full(len(self._pieces), np.inf)
        depths = np.zeros(len(self._pieces), np.int64)
        sources = np.full(len(self._pieces), -1)
        costs[self.node[full]], sources[self.node[full]] = seconds[full], full
        targets = np.concatenate((self.node[forth], self.base_node[back]))
        prices = np.concatenate((seconds[forth], seconds[back]))
        origins = np.concatenate((self.base_node[forth], self.node[back]))
        order = np.argsort(origins, kind="stable")
        begins = np.searchsorted(origins[order], np.arange(len(costs) + 1, dtype=np.int32))
        targets, prices = targets[order], prices[order]
        inputs = _OpenRows(self, forth, order, nodes=len(costs)) if len(self.input_row) else None
        del origins, order
        changed = np.flatnonzero(np.isfinite(costs))
        while len(changed):
            if inputs is not None:
                changed = np.union1d(changed, inputs.reached(changed, costs))
            counts = begins[changed + 1] - begins[changed]
            ends = np.cumsum(counts)
            edges = np.arange(ends[-1]) + np.repeat(begins[changed] - ends + counts, counts)
            reached_nodes = targets[edges]
            cost = np.repeat(costs[changed], counts) + prices[edges]
            depth = np.repeat(depths[changed], counts) + 1
            source = np.repeat(sources[changed], counts)
            better = (cost < costs[reached_nodes]) | (
                (cost == costs[reached_nodes]) & (depth < depths[reached_nodes])
            )
            if inputs is not None:
                better &= inputs.open[edges]
            reached_nodes, cost, depth, source = (
                reached_nodes[better],
                cost[better],
                depth[better],
                source[better],
            )
            best = np.lexsort((depth, cost, reached_nodes))
            reached_nodes = reached_nodes[best]
            is_first = np.ones(len(reached_nodes), np.bool_)
            is_first[1:] = reached_nodes[1:] != reached_nodes[:-1]
            best, changed = best[is_first], reached_nodes[is_first]
            costs[changed], depths[changed] = cost[best], depth[best]
            sources[changed] = source[best]
        return costs, depths, sources

    def reach(self, id_: bytes, start: int = 0) -> tuple[float, int] | None:
        """(CPU seconds, number of deltas to apply) to decode the piece at ``start``; None without a
        path.
        """
        node = self._node(id_, start)
        if node < 0 or not np.isfinite(self.costs[node]):
            return None
        return float(self.costs[node]), int(self.depths[node])

    # -- records ---------------------------------------------------------------------------

    def all_records(self) -> Iterator[StoredRecord]:
        return map(self.record, range(len(self.packs)))

    def all_members(self) -> Iterator[tuple[StoredRecord, CodingPlace, Member]]:
        """Yields every member of every record with its location, even if the member's
        base is lost.
        """
        return (
            (record, place, member)
            for record in self.all_records()
            for place, member in record.members()
        )

    def record(self, number: int) -> StoredRecord:
        """A record by its position in the columns. Reads the header again."""
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

    def codings(self, id_: bytes) -> list[StoredCoding]:
        """The codings of an object, except damaged codings and those whose base or input is lost.

        Empty for an unknown object.
        """
        return list(map(self.coding, self.rows_of(id_)))

    def all_codings(self) -> Iterator[StoredCoding]:
        """The codings of every object, oldest objects first."""
        return map(self.coding, self._by_object[0].tolist())

    def codings_from(self, base: bytes) -> list[StoredCoding]:
        """The deltas from ``base`` that can be undone to recover ``base``."""
        return [self.coding(row) for row in _group(self._by_base, self.number(base))]

    def coding(self, row: int) -> StoredCoding:
        number = bisect_right(self.rows, row) - 1
        record, at = self.record(number), row - self.rows[number]
        member, base = record.header.members[at], int(self.base[row])
        return StoredCoding(
            row=row,
            record=record,
            place=(record.pack, record.offset, at),
            member=member,
            base=None if base < 0 else self.id_of(base),
            stored=record.header.share(member),
            reversible=bool(self.reversible[row]),
            inputs=tuple(map(self.id_of, self.inputs_of(row))),
        )

    @property
    def records_by_row(self) -> Integers:
        """For each row: the position of its record in the columns."""
        return np.repeat(np.arange(len(self.packs)), np.diff(column(self.rows)))

    def rows_of(self, id_: bytes) -> list[int]:
        """The rows of the codings that ``codings`` returns."""
        return _group(self._by_object, self.number(id_))

    @cached_property
    def coded(self) -> Flags:
        """For each object: whether ``codings`` returns at least one coding."""
        coded: Flags = np.zeros(len(self), np.bool_)
        coded[self.object[self.sound]] = True
        return coded

    @cached_property
    def _by_object(self) -> _Groups:
        return _grouped(self.object, self.sound, len(self))

    @cached_property
    def _by_base(self) -> _Groups:
        return _grouped(self.base, self.reversible, len(self))

    def base_of(self, member: Member) -> bytes | None:
        """The id of a member's base; None for a full record, or if the base is not stored.

        A member has only the first bytes of the base's id. If the ids of several objects begin with
        these bytes, the object that was published first is the base.
        """
        number = self.with_prefix(member.base) if member.base else -1
        return None if number < 0 else self.id_of(number)

    def needs_of(self, member: Member) -> set[bytes]:
        """The ids of a member's base and inputs that are stored."""
        numbers = [self.with_prefix(prefix) for prefix in member.needs]
        return {self.id_of(number) for number in numbers if number >= 0}

    def entry_of(self, id_: bytes) -> int:
        """The position of the first entry that published an object.

        Raises KeyError for an unknown object.
        """
        number = self.number(id_)
        if number < 0:
            raise KeyError(id_)
        return int(self.entry[self._first_rows[number]])


_Groups = tuple[Integers, Integers]
"""Rows sorted by object (or base), and the position where the rows of each object begin."""


def _grouped(owners: Integers, rows: Flags, count: int) -> _Groups:
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.argsort(owners[chosen], kind="stable")]
    return chosen, np.searchsorted(owners[chosen], np.arange(count + 1))


def _group(groups: _Groups, number: int) -> list[int]:
    rows, begins = groups
    members: list[int] = rows[begins[number] : begins[number + 1]].tolist() if number >= 0 else []
    return members


class Contents:
    """The objects that manifests mention, as columns: a few bytes for each mention.

    ``manifests``: maps the id of a manifest to its number. Columns with one item per manifest:
    ``raw`` (total size of the files), ``files`` (number of files), ``ends`` (the position after the
    last mention). Columns with one item per mention: ``slots``, ``skeletons`` (whether the object
    is a skeleton: a file without its tensors). A *slot* is a number of an object. An object may
    have several slots. Columns with one item per slot: ``ids``, ``specs`` (the position of dtype
    and shape in ``known_specs``).
    """

    def __init__(self, stream: ManifestStream | None = None) -> None:
        self.manifests: dict[ManifestId, int] = {}
        self.raw, self.files, self.ends = array("Q"), array("I"), array("q", [0])
        self.slots, self.skeletons = array("I"), array("B")
        self.ids, self.specs = bytearray(), array("I")
        self._stream = stream
        self._numbers: dict[TensorSpec, int] = {}
        self._shapes: dict[int, Shape] = {}  # maps a size to the newest shape
        self._shape: tuple[Shape | None, list[int]] = None, []
        self._recent: dict[bytes, int] = {}  # maps an id to its slot

    def read_manifests(self, records: Iterable[Placed], packs: PackReader) -> None:
        """Reads the manifests of an entry. Call it for all entries, in the order of the journal."""
        for pack, offset, header in records:
            for member in header.members:
                if member.kind == MANIFEST and member.id not in self.manifests:
                    id_ = ManifestId(member.id)
                    step = PathStep(pack, offset, header, member, reverse=False)
                    data = self.stream.near(id_, [step], packs)
                    if data is not None:
                        self.add(id_, data)

    @property
    def known_specs(self) -> list[TensorSpec]:
        return list(self._numbers)

    @property
    def stream(self) -> ManifestStream:
        """The reader of manifests."""
        assert self._stream is not None, "the graph was read without manifests"
        return self._stream

    def require(self, id_: ManifestId, codings: Iterable[PathStep] | None = None) -> None:
        """Reads a manifest, unless the manifest was read before.

        Raises DamagedData if the manifest cannot be recovered.
        """
        if id_ not in self.manifests:
            self.add(id_, self.stream.read(id_, codings))

    def objects(self, id_: ManifestId) -> list[bytes]:
        """The ids of the objects that a manifest mentions. Calls ``require`` first."""
        self.require(id_)
        at = self.manifests[id_]
        return [self.id_of(slot) for slot in self.slots[self.ends[at] : self.ends[at + 1]]]

    def add(self, id_: ManifestId, data: bytes) -> None:
        shape = self._shapes.get(len(data))
        ids = None if shape is None else shape.ids(data)
        if shape is None or ids is None:
            shape = self._shapes[len(data)] = Shape(data)
            ids = shape.ids(data) or b""
            if len(self._shapes) > _SHAPES:
                self._shapes = {len(data): shape}
        if shape is not self._shape[0]:
            known = self._numbers
            self._shape = shape, [known.setdefault(spec, len(known)) for spec in shape.specs]
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
        return bytes(self.ids[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE])

    def _slot(self, id_: bytes, spec: int) -> int:
        slot = self._recent.get(id_)
        if slot is None:
            slot = self._recent[id_] = len(self.specs)
            self.ids += id_
            self.specs.append(spec)
        return slot


def read(store: Store, progress: Progress | None = None) -> StorageGraph:
    """Calls ``read_records``. Reads manifests, too, if they can be read in the same pass."""
    return read_records(store.snapshot, ManifestStream(store), progress)


def read_records(
    snapshot: Snapshot, stream: ManifestStream | None = None, progress: Progress | None = None
) -> StorageGraph:
    """Reads the journal and every record's header. Damaged records are skipped and listed.

    ``progress`` counts bytes of the journal.
    """
    snapshot.refresh()
    graph, packs = StorageGraph(snapshot, Contents(stream)), snapshot.packs.ahead()
    for recorded in Counted(progress, snapshot.position.offset).iterate(
        snapshot.entries(), "versions", lambda recorded: recorded.after.offset - recorded.offset
    ):
        records = [
            (region.pack, at, header)
            for region in recorded.entry.regions
            for at, header in packs.sound_records(region, graph.damaged.append)
        ]
        graph.add(recorded, records)
        if stream is not None:
            graph.contents.read_manifests(records, packs)
    graph.settle()
    return graph


class Reachability:
    """The pieces that can be decoded (*reached*) with the codings that were added.

    A coding with inputs is usable when its base and all inputs are reached. ``before``: a function
    that says whether a piece counts as reached from the start.
    """

    def __init__(self, before: Callable[[Piece], bool] | None = None) -> None:
        self._before = before
        self._reached: set[Piece] = set()
        # Maps a piece to the pieces that are decoded from it. Each decoded piece comes with the
        # other pieces that are needed to decode it.
        self._edges: dict[Piece, list[tuple[Piece, tuple[Piece, ...]]]] = {}

    def __contains__(self, piece: Piece) -> bool:
        return piece in self._reached or (self._before is not None and self._before(piece))

    def copy(self) -> Reachability:
        """A copy that can ``reach`` more pieces.

        Do not ``add`` codings to the original or to the copy, because both share the codings.
        """
        copy = Reachability(self._before)
        copy._reached, copy._edges = set(self._reached), self._edges
        return copy

    def has_all(self, pieces: Iterable[Piece]) -> bool:
        return all(piece in self for piece in pieces)

    def add(
        self,
        id_: bytes,
        start: int,
        base: bytes | None,
        *,
        reversible: bool,
        inputs: Sequence[bytes] = (),
    ) -> None:
        """Adds the coding of the piece of ``id_`` at ``start``.

        ``reversible``: whether the base can be decoded from the piece, too.
        """
        piece = (id_, start)
        if base is None:
            self.reach([piece])
            return
        self._lead([(needed, start) for needed in dict.fromkeys((base, *inputs))], piece)
        if reversible:
            self._lead([piece], (base, start))

    def _lead(self, needs: Sequence[Piece], target: Piece) -> None:
        for at in needs:
            further = tuple(other for other in needs if other != at) if len(needs) > 1 else ()
            self._edges.setdefault(at, []).append((target, further))
        if self.has_all(needs):
            self.reach([target])

    def reach(self, pieces: Iterable[Piece]) -> None:
        """Marks pieces as reached, and all pieces that can then be decoded."""
        waiting = list(pieces)
        while waiting:
            piece = waiting.pop()
            if piece not in self:
                self._reached.add(piece)
                edges = self._edges.get(piece, ())
                waiting.extend(target for target, further in edges if self.has_all(further))


class _OpenRows:
    """The usable edges of a search: edges whose inputs are all reached.

    ``open``: for each edge whether it can be used.
    """

    def __init__(self, graph: StorageGraph, forth: Flags, order: Integers, *, nodes: int) -> None:
        """``forth``: the rows with an edge from base to object.

        The search first numbers the edges of ``forth``, then the reverse edges. ``order``: the
        numbers of all edges, in the order in which the search sorts the edges.
        """
        edge_of = np.full(len(forth), -1)
        edge_of[forth] = np.argsort(order, kind="stable")[: np.count_nonzero(forth)]
        chosen = forth[graph.input_row]
        self._edges = edge_of[graph.input_row[chosen]]  # the edge of each input
        self._origins = graph.base_node[graph.input_row[chosen]]
        inputs = graph.input_node[chosen]
        self._left = np.bincount(self._edges, minlength=len(order))
        self._by_node = np.argsort(inputs, kind="stable")
        self._begins = np.searchsorted(inputs[self._by_node], np.arange(nodes + 1))
        self._seen = np.zeros(nodes, np.bool_)
        self.open: Flags = self._left == 0

    def reached(self, nodes: Integers, costs: NDArray[np.float64]) -> Integers:
        """Marks nodes as reached.

        Returns the start nodes of edges that became usable, if these start nodes are reached.
        """
        nodes = nodes[~self._seen[nodes]]
        self._seen[nodes] = True
        counts = self._begins[nodes + 1] - self._begins[nodes]
        ends = np.cumsum(counts)
        if not len(ends) or not ends[-1]:
            return nodes[:0]
        places = np.arange(ends[-1]) + np.repeat(self._begins[nodes] - ends + counts, counts)
        hit = self._by_node[places]
        np.subtract.at(self._left, self._edges[hit], 1)
        hit = hit[self._left[self._edges[hit]] == 0]
        self.open[self._edges[hit]] = True
        origins: Integers = np.unique(self._origins[hit])
        fit: Integers = origins[np.isfinite(costs[origins])]
        return fit


_NO_BASE = bytes(BASE_BYTES)
