"""The storage graph: its nodes are objects, its edges are deltas (docs/architecture.md).

An object, such as the bytes of a tensor, is stored in full or as a delta from another object, its
base. Large objects are stored in pieces of 32 MiB. A path to an object begins at a full record,
which needs no base. A delta without a transform can be applied and undone, so it is an edge in both
directions: a version can be recovered from a full record of an earlier or a later version, as in
C. Heitenberger's thesis (§3.2.8). A delta with a transform, such as a change of dtype, can only
be applied (``Coding``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

from msgspec import Struct, field

from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.store.index import keys
from mvc.store.journal.frames import Position
from mvc.store.packs.records import Member, RecordHeader
from mvc.store.snapshot import Snapshot

_MAX_VISITED = 100_000
_CACHED = 8192  # maximum number of cached key prefixes, and of cached paths

Place = tuple[int, int, int]
"""Position of a payload: number of the pack, offset of the record, offset in the record's body.

A payload is the encoded bytes of one piece of an object.
"""


class Speed(Struct, frozen=True):
    """Rough speeds of decoding, sufficient to choose between paths.

    ``full``, ``delta`` and ``read``: bytes per second of one thread. ``latency``: seconds per
    payload.
    """

    full: float = 3e9
    delta: float = 1e9
    read: float = 1e9
    latency: float = 30e-6

    def seconds(self, member: Member) -> float:
        """Estimated time to read, check and decode one payload."""
        rate = self.delta if member.base else self.full
        once = self.latency + member.stored / self.read + member.nbytes / rate
        return once * (1 + len(member.inputs))  # an input takes as long as a base


class PathStep(Struct, frozen=True, gc=False):
    """One payload to decode. ``reverse``: the delta is undone instead of applied.

    ``entry``: offset of the journal entry that published the payload; -1 if unknown.
    """

    pack: int
    offset: int
    header: RecordHeader
    member: Member
    reverse: bool
    entry: int = -1

    @property
    def place(self) -> Place:
        return self.pack, self.offset, self.member.at


class Path(Struct, frozen=True, gc=False):
    """A path to an object: a full record, then deltas in the order in which they are applied.

    ``cost`` is the estimated time in seconds of one decoding thread. ``origin`` is the id of an
    object in memory, or None. With ``origin``, there is no full record: the first delta is applied
    to this object.
    """

    steps: tuple[PathStep, ...]
    cost: float
    origin: bytes | None = None

    @property
    def depth(self) -> int:
        """The number of deltas to apply after the full record."""
        return len(self.steps) - 1

    @property
    def stored(self) -> int:
        """Size of the path's payloads.

        If a payload contains several objects, only the part of the object on the path counts.
        """
        return sum(step.header.share(step.member) for step in self.steps)


class Link(Struct, frozen=True, gc=False):
    """One object on a path (``Graph.chain``). ``nbytes``: size of the object's piece.

    ``sequence``: number of the journal entry that published the object. ``depth``: number of deltas
    from the full record to the object. ``stored``: size of these deltas and of the full record.
    ``predicted``: whether an optimizer's step predicts the object, or an earlier object on the
    path.
    """

    id: bytes
    sequence: int
    depth: int
    stored: int
    nbytes: int
    predicted: bool = False


class _Route(Struct, frozen=True, gc=False):
    step: PathStep
    rest: _Route | None


class _Cache(Struct):
    """Results of searches, valid for one generation and position of the journal (``at``).

    ``entries``: maps a key prefix of the index to offsets of journal entries. ``ids``: maps the
    first bytes of an id to the id. ``paths``: maps an object's id and a piece's offset to a path.
    """

    at: tuple[int, Position] | None = None
    entries: dict[bytes, list[int]] = field(default_factory=dict)
    ids: dict[bytes, bytes] = field(default_factory=dict)
    paths: dict[tuple[bytes, int], Path] = field(default_factory=dict)


class Graph:
    """Finds paths over the records of a snapshot (the repository up to some journal entry)."""

    def __init__(self, snapshot: Snapshot, speed: Speed, *, undo: int | None = None) -> None:
        """``undo``: deltas of journal entries at this offset or later must not be undone."""
        self._snapshot = snapshot
        self._speed = speed
        self._undo = undo
        self._damaged: set[Place] = set()
        self._cache = _Cache()

    def exclude(self, steps: Iterable[PathStep]) -> None:
        """Excludes the damaged payloads of these steps from later paths."""
        self._damaged.update(step.place for step in steps)
        self._cache = _Cache()

    @property
    def damaged(self) -> AbstractSet[Place]:
        """Payloads that paths avoid."""
        return self._damaged

    def was_rewritten(self, generation: int) -> bool:
        """Whether gc or repack has replaced the journal since ``generation`` was read."""
        self._snapshot.refresh()
        return self._snapshot.generation != generation

    @property
    def generation(self) -> int:
        """How many times gc or repack has replaced the journal."""
        return self._snapshot.generation

    def entries_holding(self, id_: bytes) -> list[int]:
        """Offsets, ascending, of the journal entries that published records of this object.

        Only the first 8 bytes of ids are compared.
        """
        return self._under(keys.BLOB + id_[: keys.ID_BYTES])

    def _under(self, prefix: bytes) -> list[int]:
        """Offsets of the entries with index keys under ``prefix``."""
        known = self._known().entries
        offsets = known.get(prefix)
        if offsets is None:
            offsets = known[prefix] = [keys.offset_of(key) for key in self._snapshot.under(prefix)]
        return offsets

    def _known(self) -> _Cache:
        """The cache, emptied if it is outdated or full."""
        known, now = self._cache, (self._snapshot.generation, self._snapshot.position)
        if now != known.at or max(len(known.entries), len(known.paths)) > _CACHED:
            known = self._cache = _Cache(now)
        return known

    def codings(self, id_: bytes, start: int | None = None) -> list[PathStep]:
        """Every stored payload of the object, or of its piece at ``start``."""
        return self._snapshot.retry_on_rewrite(
            lambda: [
                s for home in self.entries_holding(id_) for s in self._in_entry(home, id_, start)
            ]
        )

    def _in_entry(self, offset: int, id_: bytes, start: int | None) -> Iterator[PathStep]:
        for placed, member in self._snapshot.records(offset).by_prefix.get(
            id_[: keys.ID_BYTES], ()
        ):
            if member.id == id_ and start in (None, member.start):
                yield PathStep(*placed, member, reverse=False, entry=offset)

    def holds(self, id_: bytes) -> bool:
        return bool(self.entries_holding(id_)) and bool(self.codings(id_))

    def stores(self, id_: bytes, nbytes: int) -> bool:
        """Whether all pieces of an object are stored. Their bases may be missing."""
        stored_pieces = {(step.member.start, step.member.nbytes) for step in self.codings(id_)}
        starts = range(0, nbytes, PIECE)
        return all((start, min(PIECE, nbytes - start)) in stored_pieces for start in starts)

    def nameable(self, id_: bytes) -> bool:
        """Whether records can name this object as a base.

        A record names a base by the first bytes of the base's id. If several ids begin with these
        bytes, the object that was published first is meant.
        """
        return self.resolve_prefix(id_[: keys.ID_BYTES]) == id_

    def resolve_prefix(self, prefix: bytes) -> bytes | None:
        """The id of the first published object with these first bytes."""
        known = self._known().ids
        id_ = known.get(prefix)
        if id_ is None:
            id_ = self._snapshot.retry_on_rewrite(lambda: self._first_with(prefix))
            if id_ is not None:
                known[prefix] = id_
        return id_

    def _first_with(self, prefix: bytes) -> bytes | None:
        for home in self.entries_holding(prefix):
            for _, member in self._snapshot.records(home).by_prefix.get(prefix, ()):
                return member.id
        return None

    @property
    def next_sequence(self) -> int:
        """The number of the next journal entry, unless another process publishes first."""
        return self._snapshot.position.sequence

    def chain(self, id_: bytes, start: int = 0) -> tuple[Link, ...]:
        """The objects on the cheapest path to a piece. The last object is ``id_``.

        The result begins with the full record. But if a step changes the dtype or the length, the
        result begins with the object of this step, because earlier objects cannot be bases of new
        versions.
        """
        return self._snapshot.retry_on_rewrite(lambda: self._chain(id_, start))

    def _chain(self, id_: bytes, start: int) -> tuple[Link, ...]:
        links: list[Link] = []
        stored = 0
        for depth, step in enumerate(self.path(id_, start).steps):
            member = step.member
            stored += step.header.share(member)
            predicted = member.coding.predicted or (bool(links) and links[-1].predicted)
            if not (member.base and (predicted or member.coding.transform in ("", "patch"))):
                links.clear()
            end, entry = self.end_of(step), step.entry
            if step.reverse:
                entry = self.entries_holding(end)[0]
            sequence = self._snapshot.entry(entry).sequence
            links.append(
                Link(end, sequence, depth, stored, nbytes=member.nbytes, predicted=predicted)
            )
        return tuple(links)

    def end_of(self, step: PathStep) -> bytes:
        """The id of the object that a step recovers."""
        if not step.reverse:
            return step.member.id
        return self.resolve_prefix(step.member.base) or b""

    def path(
        self,
        id_: bytes,
        start: int = 0,
        available: Container[bytes] = (),
        *,
        avoid: AbstractSet[Place] | None = None,
    ) -> Path:
        """The cheapest path to the piece at ``start`` of an object.

        ``available``: ids of objects in memory. A path may begin at these objects. ``avoid``:
        payloads that the path must not use, by default the payloads known to be damaged. Raises
        DamagedData if there is no path.
        """
        if available or avoid is not None:
            avoided = self._damaged if avoid is None else avoid
            return self._snapshot.retry_on_rewrite(
                lambda: self._search(id_, start, available, avoided)
            )
        known = self._known().paths
        cached = known.get((id_, start))
        if cached is None:
            cached = known[id_, start] = self._snapshot.retry_on_rewrite(
                lambda: self._search(id_, start, (), self._damaged)
            )
        return cached

    def _search(
        self, id_: bytes, start: int, available: Container[bytes], avoided: AbstractSet[Place]
    ) -> Path:
        """Dijkstra's search from the piece back to the nearest full record or object in memory."""
        heap: list[tuple[float, int, tuple[bytes, int] | None, _Route | None]] = []
        heappush(heap, (0.0, 0, (id_, start), None))
        settled: set[tuple[bytes, int]] = set()
        ticket = 0
        while heap and len(settled) < _MAX_VISITED:
            cost, _, node, link = heappop(heap)
            if node is None:
                return _unwind(cost, link)
            if node[0] in available:
                return _unwind(cost, link, node[0])
            if node in settled:
                continue
            settled.add(node)
            for step in self._leading_to(*node):
                member, target = step.member, None
                if step.reverse:
                    target = (member.id, start)
                elif member.base:
                    if (origin := self.resolve_prefix(member.base)) is None:
                        continue
                    target = (origin, start)
                if target in settled or (avoided and step.place in avoided):
                    continue
                ticket += 1
                more = cost + self._speed.seconds(member)
                heappush(heap, (more, ticket, target, _Route(step, link)))
        known = f" ({self._snapshot.damage.message})" if self._snapshot.damage else ""
        raise DamagedData(
            f"object {id_.hex()[:10]} cannot be recovered: no full record leads to it{known}",
            hint="run 'mvc fsck' to list the affected versions",
        )

    def _leading_to(self, id_: bytes, start: int) -> Iterator[PathStep]:
        """Steps that recover a piece: its payloads, and deltas that are undone to get the piece."""
        prefix = id_[: keys.ID_BYTES]
        nameable = self.resolve_prefix(prefix) == id_
        for home in self.entries_holding(id_):
            yield from self._in_entry(home, id_, start)
            for offset in (*self._under(keys.EDGE + keys.number(home)), home) if nameable else ():
                if self._undo is not None and offset >= self._undo:
                    continue
                for placed, member in self._snapshot.records(offset).by_base.get(prefix, ()):
                    if member.start == start and member.id != id_:
                        yield PathStep(*placed, member, reverse=True, entry=offset)


def _unwind(cost: float, link: _Route | None, origin: bytes | None = None) -> Path:
    steps = []
    while link is not None:
        steps.append(link.step)
        link = link.rest
    return Path(tuple(steps), cost, origin)
