"""The storage graph: objects are nodes, full records sources, deltas edges (docs/architecture.md).

An undirected delta can be walked from either end; one with a forward transform only forward. So a
version is recovered from the nearer reset point on either side (VSOL §3.2.8).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.store.index import keys
from mvc.store.journal.frames import Position
from mvc.store.packs.records import Member, RecordHeader
from mvc.store.snapshot import Snapshot

_MAX_VISITED = 100_000
_REMEMBERED = 100_000
_SEARCHED = 4096  # paths in memory

Place = tuple[int, int, int]
"""Where a payload lies: pack, byte offset of its record, its own offset in there."""


class Speed(Struct, frozen=True):
    """What decoding costs, roughly: enough to choose between paths.

    Raw bytes per second of one thread; ``latency`` is seconds per payload. Times of recoveries on
    the machine at hand: ``mvc.store.recovery.rates``.
    """

    full: float = 3e9
    delta: float = 1e9
    read: float = 1e9
    latency: float = 30e-6

    def seconds(self, member: Member) -> float:
        """Estimated time to read, check and decode one payload."""
        rate = self.delta if member.base else self.full
        once = self.latency + member.stored / self.read + member.nbytes / rate
        return once * (1 + len(member.inputs))  # each of them takes about as long


class PathStep(Struct, frozen=True):
    """One payload to decode. ``reverse``: the delta is undone, not applied.

    ``entry``: where in the journal the entry stands that published it, if that was looked up.
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


class Path(Struct, frozen=True):
    """A full record first, then deltas in the order they apply.

    ``cost`` is the estimated time in seconds of one decoding thread. With ``origin`` there
    is no full record: the first delta applies to that object, which is in memory.
    """

    steps: tuple[PathStep, ...]
    cost: float
    origin: bytes | None = None

    @property
    def depth(self) -> int:
        """Deltas to apply after the full record."""
        return len(self.steps) - 1

    @property
    def stored(self) -> int:
        """Payload bytes of the deltas and the record; of a shared payload this object's share."""
        return sum(step.header.share(step.member) for step in self.steps)


class Link(Struct, frozen=True):
    """An object on the way to another one: a base that costs no more to recover.

    ``sequence``: the operation that published it. ``depth`` deltas of ``stored`` bytes, the
    full record included, lead to it; its piece has ``nbytes``. ``predicted``: one of them follows
    an optimizer's step.
    """

    id: bytes
    sequence: int
    depth: int
    stored: int
    nbytes: int
    predicted: bool = False


class _Way(Struct, frozen=True):
    step: PathStep
    rest: _Way | None


class Graph:
    """Plans paths over a view's records."""

    def __init__(self, snapshot: Snapshot, speed: Speed, *, undo: int | None = None) -> None:
        """``undo``: only deltas of entries before this byte of the journal are walked backwards."""
        self._snapshot = snapshot
        self._speed = speed
        self._undo = undo
        self._meanings: dict[bytes, bytes] = {}
        self._generation = snapshot.generation
        self._damaged: set[Place] = set()
        self._searched: dict[tuple[bytes, int], Path] = {}
        self._searched_at: tuple[int, Position] | None = None

    def exclude(self, steps: Iterable[PathStep]) -> None:
        """Plans no path over these payloads any more, because they are damaged."""
        self._damaged.update(step.place for step in steps)
        self._searched.clear()

    @property
    def damaged(self) -> AbstractSet[Place]:
        """The payloads over which no path is planned."""
        return self._damaged

    def was_rewritten(self, generation: int) -> bool:
        """Whether maintenance has replaced the journal since ``generation`` was read."""
        self._snapshot.refresh()
        return self._snapshot.generation != generation

    @property
    def generation(self) -> int:
        """How often maintenance has replaced the journal under the snapshot."""
        return self._snapshot.generation

    def entries_holding(self, id_: bytes) -> list[int]:
        """Offsets of the entries whose records hold an object with this id, oldest first."""
        return [keys.offset_of(key) for key in self._snapshot.under(keys.BLOB + id_[:8])]

    def codings(self, id_: bytes, start: int | None = None) -> list[PathStep]:
        """Every stored coding of the object, or of its piece at ``start``."""
        return self._snapshot.retry_on_rewrite(
            lambda: [
                s for home in self.entries_holding(id_) for s in self._in_entry(home, id_, start)
            ]
        )

    def _in_entry(self, offset: int, id_: bytes, start: int | None) -> Iterator[PathStep]:
        for pack, at, header in self._snapshot.records(offset):
            for i in header.by_id.get(id_, ()):
                member = header.members[i]
                if start is None or member.start == start:
                    yield PathStep(pack, at, header, member, reverse=False, entry=offset)

    def holds(self, id_: bytes) -> bool:
        return bool(self.entries_holding(id_)) and self._snapshot.retry_on_rewrite(
            lambda: any(
                id_ in header.by_id
                for home in self.entries_holding(id_)
                for _, _, header in self._snapshot.records(home)
            )
        )

    def stores(self, id_: bytes, nbytes: int) -> bool:
        """Whether there are codings of all pieces of an object."""
        found = {(step.member.start, step.member.nbytes) for step in self.codings(id_)}
        starts = range(0, nbytes, PIECE)
        return all((start, min(PIECE, nbytes - start)) in found for start in starts)

    def nameable(self, id_: bytes) -> bool:
        """Whether the first bytes of its id, by which a base is named, resolve to this object."""
        return self.resolve_prefix(id_[: keys.ID_BYTES]) == id_

    def resolve_prefix(self, prefix: bytes) -> bytes | None:
        """The id of a base from its first bytes: that of the first object published with them."""
        # Where the journal was replaced, what was resolved no longer counts.
        if self._generation != self._snapshot.generation:
            self._meanings.clear()
            self._generation = self._snapshot.generation
        found = self._meanings.get(prefix)
        if found is None:
            found = self._snapshot.retry_on_rewrite(lambda: self._look_up(prefix))
            if found is not None:
                if len(self._meanings) > _REMEMBERED:
                    self._meanings.clear()
                self._meanings[prefix] = found
        return found

    def _look_up(self, prefix: bytes) -> bytes | None:
        for key in self._snapshot.under(keys.BLOB + prefix):
            for _, _, header in self._snapshot.records(keys.offset_of(key)):
                if (id_ := header.by_prefix.get(prefix)) is not None:
                    return id_
        return None

    @property
    def next_sequence(self) -> int:
        """The number of the operation that is published next, unless others come first."""
        return self._snapshot.position.sequence

    def chain(self, id_: bytes, start: int = 0) -> tuple[Link, ...]:
        """The objects on the cheapest path to one piece, itself the last.

        It begins with the full record, or behind the last step that changes the element type or
        the length: what comes before is no base for later versions.
        """
        return self._snapshot.retry_on_rewrite(lambda: self._chain(id_, start))

    def _chain(self, id_: bytes, start: int) -> tuple[Link, ...]:
        found: list[Link] = []
        stored = 0
        for depth, step in enumerate(self.path(id_, start).steps):
            member = step.member
            stored += step.header.share(member)
            predicted = member.coding.predicted or (bool(found) and found[-1].predicted)
            if not (member.base and (predicted or member.coding.transform in ("", "patch"))):
                found.clear()
            made, entry = self.end_of(step), step.entry
            if step.reverse:
                entry = self.entries_holding(made)[0]
            sequence = self._snapshot.entry(entry).sequence
            found.append(
                Link(made, sequence, depth, stored, nbytes=member.nbytes, predicted=predicted)
            )
        return tuple(found)

    def end_of(self, step: PathStep) -> bytes:
        """The object to which a step leads."""
        if not step.reverse:
            return step.member.id
        return self.resolve_prefix(step.member.base) or b""

    def path(
        self,
        id_: bytes,
        start: int = 0,
        held: Container[bytes] = (),
        *,
        avoid: AbstractSet[Place] | None = None,
    ) -> Path:
        """The cheapest path to one piece; DamagedData if no full record reaches it.

        ``held`` are ids of objects that are in memory and cost nothing to begin at. ``avoid``:
        the payloads that no path may use, by default those that are known to be damaged.
        """
        if held or avoid is not None:
            avoided = self._damaged if avoid is None else avoid
            return self._snapshot.retry_on_rewrite(lambda: self._search(id_, start, held, avoided))
        return self._snapshot.retry_on_rewrite(lambda: self._known(id_, start))

    def _known(self, id_: bytes, start: int) -> Path:
        """As ``path``, from memory if nothing has changed: a base is asked for several times."""
        now = (self._snapshot.generation, self._snapshot.position)
        if now != self._searched_at or len(self._searched) > _SEARCHED:
            self._searched, self._searched_at = {}, now
        found = self._searched.get((id_, start))
        if found is None:
            found = self._searched[id_, start] = self._search(id_, start, (), self._damaged)
        return found

    def _search(
        self, id_: bytes, start: int, held: Container[bytes], avoided: AbstractSet[Place]
    ) -> Path:
        """Dijkstra's search from the wanted piece to the nearest full record or held object."""
        heap: list[tuple[float, int, tuple[bytes, int] | None, _Way | None]] = []
        heappush(heap, (0.0, 0, (id_, start), None))
        settled: set[tuple[bytes, int]] = set()
        ticket = 0
        while heap and len(settled) < _MAX_VISITED:
            cost, _, node, link = heappop(heap)
            if node is None:
                return _unwind(cost, link)
            if node[0] in held:
                return _unwind(cost, link, node[0])
            if node in settled:
                continue
            settled.add(node)
            for target, step in self._neighbours(node):
                if target is not None and target in settled:
                    continue
                if avoided and step.place in avoided:
                    continue
                ticket += 1
                more = cost + self._speed.seconds(step.member)
                heappush(heap, (more, ticket, target, _Way(step, link)))
        known = f" ({self._snapshot.damage.message})" if self._snapshot.damage else ""
        raise DamagedData(
            f"object {id_.hex()[:10]} cannot be recovered: no full record leads to it{known}",
            hint="run 'mvc fsck' to see which versions it touches",
        )

    def _neighbours(
        self, node: tuple[bytes, int]
    ) -> Iterator[tuple[tuple[bytes, int] | None, PathStep]]:
        """(node to recover first, payload that then leads here); None for a full record."""
        id_, start = node
        for step in self._leading_to(id_, start):
            base = step.member.base
            if step.reverse:
                yield (step.member.id, start), step
            elif not base:
                yield None, step
            elif (origin := self.resolve_prefix(base)) is not None:
                yield (origin, start), step

    def _leading_to(self, id_: bytes, start: int) -> Iterator[PathStep]:
        """Codings of a piece, and deltas *from* it: undone, they lead back to it."""
        for home in self.entries_holding(id_):
            yield from self._in_entry(home, id_, start)
            for key in self._snapshot.under(keys.EDGE + keys.number(home)):
                yield from self._undone(keys.offset_of(key), id_, start)
            yield from self._undone(home, id_, start)

    def _undone(self, offset: int, id_: bytes, start: int) -> Iterator[PathStep]:
        if (self._undo is not None and offset >= self._undo) or not self.nameable(id_):
            return
        for pack, at, header in self._snapshot.records(offset):
            for i in header.by_base.get(id_[: keys.ID_BYTES], ()):
                member = header.members[i]
                if member.start == start and member.id != id_:
                    yield PathStep(pack, at, header, member, reverse=True, entry=offset)


def _unwind(cost: float, link: _Way | None, origin: bytes | None = None) -> Path:
    steps = []
    while link is not None:
        steps.append(link.step)
        link = link.rest
    return Path(tuple(steps), cost, origin)
