"""Which records a version needs at the receiver, in as few bytes as may be.

The records of the version's own entry go as they are. What they build on, or what another entry
published, goes along the cheapest path in bytes from what the receiver has. A payload that several
objects share goes with all of them. A content whose dtype and shape are unknown, or that a version
forgotten by name published, is sent as a stored record only if a version that is sent has it; other
contents that need it as a base are encoded again. A version is encoded again, too, if bases that
the receiver has no other use for take more bytes than the version has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial

from msgspec import Struct, field

from mvc.errors import DamagedData
from mvc.ids import ManifestId
from mvc.limits import MIB, PIECE
from mvc.model.hashing import pieces, verify_pieces
from mvc.model.tensor import TensorSpec
from mvc.remote.slices import SentShape
from mvc.repo.config import Config
from mvc.repo.lookup import manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.graph.search import Graph, Path, PathStep, Speed
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACKS, PackReader
from mvc.store.packs.records import (
    BASE_BYTES,
    BLOB,
    MANIFEST,
    Coding,
    Member,
    RecordHeader,
    encode_header,
    payload_check,
)
from mvc.store.recovery.recover import piece_reader
from mvc.store.store import Store
from mvc.types import Bytes

_RESOLVED = 1 << 16
_PART = MIB


class _Bytes(Speed, frozen=True):
    """Counts the bytes of payloads in place of the time to decode them."""

    def seconds(self, member: Member) -> float:
        return member.stored + 1


class Needed(Struct, frozen=True):
    """What versions need: ``manifests``, and ``blobs`` with their specs."""

    manifests: frozenset[ManifestId] = frozenset()
    blobs: Mapping[bytes, TensorSpec] = field(default_factory=dict)

    def __contains__(self, id_: object) -> bool:
        return id_ in self.blobs or id_ in self.manifests


class ChosenRecords(Struct, frozen=True):
    """Records of ``size`` bytes, read when they are asked for."""

    size: int
    shapes: tuple[SentShape, ...]
    read: Callable[[], Iterator[Bytes]]


NOTHING = ChosenRecords(0, (), lambda: iter(()))

_Place = tuple[int, int]
_Own = Mapping[bytes, Sequence[PathStep]]
_Anew = tuple[TensorSpec, tuple[bytes, TensorSpec] | None]
"""What an object is, and what the receiver has that it is coded against."""


class Closure:
    """Chooses the records for one entry after the other, in the order in which they are sent.

    ``held``: whether the receiver has what an entry published, as far as known; it is asked of the
    one that published an object first. ``banned``: whether all versions of an entry were forgotten
    by name. ``whole``: ids that the receiver lacks, as it said. ``there``: objects of versions that
    it has.
    ``file``: in place of that the only objects that it has, of one who makes a file of what comes,
    which is compared with its hash: so deltas may lead there backwards. ``manifest`` is one of
    them, against which the new one is coded if it has to be coded anew. ``near``: what it
    may have of the tensor that an object is, which is coded against that if only a full record
    leads to it.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        held: Callable[[Recorded], bool],
        banned: Callable[[Recorded], bool],
        whole: Collection[bytes] = (),
        *,
        file: Collection[bytes] | None = None,
        manifest: ManifestId | None = None,
        near: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._store, self._config = store, config
        self.file, self.near = file, near or {}
        self._against = manifest
        self._snapshot = store.snapshot
        # Of its own: what it has opened can be read although maintenance deletes it.
        self.packs = PackReader(self._snapshot.fs, self._snapshot.folder / PACKS)
        self._graph = Graph(self._snapshot, _Bytes(), undo=0 if file is None else None)
        self.manifests = ManifestStream(store)
        # Neither refers to this, so that files of packs are closed as soon as it is gone.
        holding = self._graph.entries_holding  # the first of these has published the object
        self.home = lru_cache(_RESOLVED)(lambda id_: next(iter(holding(id_)), None))
        self._is_held = lru_cache(_RESOLVED)(lambda at, of=self._snapshot.entry: held(of(at)))
        self._is_banned = banned
        self.lacking = {self._graph.resolve_prefix(id_) or id_ for id_ in whole}
        self._done: set[int] = set()  # entries whose objects were sent
        self._left: set[bytes] = set()  # objects of these that were not
        self._extra: set[bytes] = set()  # objects that were sent with others' entries
        # Who lacks an object mostly lacks what is older, too, which the next answer would say.
        self._doubted = max((self.home(id_) or 0 for id_ in self.lacking), default=-1)
        self._found: dict[bytes, TensorSpec | None] = {}
        self.there: set[bytes] = set()

    def choose(self, recorded: Recorded, needed: Needed) -> ChosenRecords:
        """The records that an entry's versions need and that were not sent yet."""
        work = _Choice(self, recorded.offset, needed)
        work.run()
        if work.drags_along_too_much:
            work = _Choice(self, recorded.offset, needed, drags_along=False)
            work.run()
        self._done.add(recorded.offset)
        self._extra.update(work.moved)
        self._left.update(work.left)
        self._left -= work.moved
        return work.chosen()

    # -- what the receiver has -----------------------------------------------------------

    def __contains__(self, id_: object) -> bool:
        """Whether the receiver has an object, or was sent it."""
        if self.file is not None or not isinstance(id_, bytes):
            return id_ in (self.file or ())
        home = self.home(id_)
        if id_ in self._extra or home in self._done:
            return id_ not in self._left
        if home is None or home <= self._doubted or id_ in self.lacking:
            return False
        return id_ in self.there or self._is_held(home)

    # -- what may go -----------------------------------------------------------------------

    def spec(self, id_: bytes, like: Iterable[TensorSpec]) -> TensorSpec | None:
        """Dtype and shape of a blob that may go; None if it may not, or nobody knows them.

        By a version that has it; else one of those of objects stored next to it (``like``), if its
        hash says so. The first answer counts, whatever ``like`` is later.
        """
        if id_ not in self._found:
            if len(self._found) > _RESOLVED:
                self._found.clear()
            self._found[id_] = self._look(id_, like)
        return self._found[id_]

    def _look(self, id_: bytes, like: Iterable[TensorSpec]) -> TensorSpec | None:
        for recorded in map(self._snapshot.entry, self._graph.entries_holding(id_)):
            if self._is_banned(recorded):
                return None
            for commit in recorded.entry.commits:
                with suppress(DamagedData):
                    if self._graph.entries_holding(commit.manifest):
                        files = self.manifests.load(commit.manifest).all_entries
                        if (found := manifests.objects(files).get(id_)) is not None:
                            return found
        sizes = {step.member.nbytes for step in self._graph.codings(id_, 0)}
        fitting = {spec for spec in like if min(PIECE, spec.nbytes) in sizes}
        return next((spec for spec in sorted(fitting, key=str) if self._is_spec(id_, spec)), None)

    def _is_spec(self, id_: bytes, spec: TensorSpec) -> bool:
        read = piece_reader(self._store.recovery.piece, id_, spec)
        with suppress(DamagedData):
            for _ in verify_pieces(id_, spec, read, DamagedData("another one")):
                pass
            return True
        return False

    # -- what _Choice asks -----------------------------------------------------------------

    def own(self, offset: int) -> dict[bytes, list[PathStep]]:
        """The codings in the records of an entry, by object."""
        found: dict[bytes, list[PathStep]] = {}
        for pack, at, header in self._snapshot.records(offset):
            for member in header.members:
                step = PathStep(pack, at, header, member, reverse=False, entry=offset)
                found.setdefault(member.id, []).append(step)
        return found

    def needs_of(self, member: Member) -> list[bytes | None]:
        """The base of a coding and its inputs; None in place of one that is not stored."""
        return [self._graph.resolve_prefix(prefix) for prefix in member.needs]

    def path(self, id_: bytes, start: int) -> Path:
        """The cheapest path to a piece from what the receiver has, in bytes of payloads.

        To what it lacks from a full record: it may lack all that lies between, and named this only.
        """
        if id_ not in self.lacking:
            return self._graph.path(id_, start, self)
        path = self._graph.path(id_, start)
        needs = (each for step in path.steps for each in self.needs_of(step.member))
        self.lacking.update(filter(None, needs))
        return path

    def encoded(
        self, manifests_: Sequence[ManifestId], blobs: Mapping[bytes, _Anew]
    ) -> RecordSpool:
        """Objects encoded anew from verified bytes, manifests in full."""
        from mvc.maintenance.rewrite_plan import encoding_policy  # all seldom needed

        store, spool = self._store, RecordSpool()
        with closing(store.object_writer(spool, encoding_policy(self._config))) as writer:
            for id_, (spec, against) in blobs.items():
                writer.put_recovered(id_, spec, store.recovery, against)
            writer.drain()
            writer.flush()
            for manifest in manifests_:
                if self._against is not None:
                    spool.append(*self._patch(manifest, self._against))
                    continue
                writer.put_bytes(MANIFEST, manifest, self.manifests.read(manifest), None)
                writer.flush()
        return spool

    def _patch(self, id_: ManifestId, base: ManifestId) -> tuple[bytes, list[Bytes]]:
        from mvc.store.writing.pieces import encode_proven_patch

        data, old = self.manifests.read(id_), self.manifests.read(base)
        payload = encode_proven_patch(memoryview(data), memoryview(old), b"")
        member = Member(
            MANIFEST, bytes(id_), 0, len(data), coding=Coding("patch"), base=base[:BASE_BYTES],
            at=0, stored=len(payload), check=payload_check([payload]),
        )  # fmt: skip
        return encode_header([member], group=False, body_size=len(payload)), [payload]


class RecordSpool:
    """Records that were encoded anew, in a temporary file."""

    def __init__(self) -> None:
        import tempfile

        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the spool
        self.size = 0

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        at = self.size
        for part in (head, *body):
            self._file.write(part)
            self.size += len(part)
        return 0, at

    def push(self) -> None:
        """Nothing of it has to be durable."""

    def sync(self) -> tuple[Region, ...]:
        return ()

    def read(self) -> Iterator[Bytes]:
        """All records, once."""
        with self._file:
            self._file.seek(0)
            while part := self._file.read(_PART):
                yield part


class _Choice:
    """The choice for one entry. ``moved``: objects that went and that others published first."""

    def __init__(
        self, closure: Closure, offset: int, needed: Needed, *, drags_along: bool = True
    ) -> None:
        """``drags_along``: also what the receiver has no use for but to make what it needs."""
        self._closure, self._needed, self._offset = closure, needed, offset
        self._drags_along = drags_along
        self._dragging: set[bytes] = set()  # needed blobs to which such objects lead
        self._own: _Own = closure.own(offset)
        self._records: dict[_Place, tuple[RecordHeader, set[int]]] = {}
        self._specs = dict(needed.blobs)
        self._taken: set[bytes] = set()
        self._waiting: deque[bytes] = deque()
        self._anew: dict[bytes, _Anew] = {}
        self._anew_manifests: list[ManifestId] = []
        self.moved: set[bytes] = set()

    def run(self) -> None:
        closure = self._closure
        self._waiting += (id_ for id_ in self._needed.blobs if id_ not in closure)
        while self._waiting:
            id_ = self._waiting.popleft()
            if id_ not in self._taken:
                self._taken.add(id_)
                self._blob(id_)
        for manifest in sorted(self._needed.manifests):
            if manifest not in closure:
                self._manifest(manifest)
        self.moved = {id_ for id_ in self._taken if closure.home(id_) != self._offset}

    def _blob(self, id_: bytes) -> None:
        """Takes the codings of a blob: those of its own entry, or the cheapest paths."""
        spec, steps, origin = self._specs[id_], list[PathStep](), None
        if self._closure.file is None and id_ not in self._closure.lacking:
            steps += (s for s in self._own.get(id_, ()) if self._may_go(s) and self._is_free(s))
        there = {step.member.start for step in steps}
        try:
            for start, _ in pieces(spec):
                if start not in there:
                    path = self._closure.path(id_, start)
                    steps += path.steps
                    origin = path.origin
        except DamagedData:
            steps = []
        near = self._closure.near.get(id_)
        if origin is None and near and near in self._closure and self._know(near, ()):
            origin, steps = near, []
        drags = id_ in self._needed and not all(map(self._is_free, steps))
        if steps and (self._drags_along or not drags) and all(map(self._may_go, steps)):
            if drags:
                self._dragging.add(id_)
            for step in steps:
                self._take(step)
            return
        known = origin is not None and self._know(origin, [step.member for step in steps])
        self._anew[id_] = spec, (origin, self._specs[origin]) if known and origin else None

    def _is_free(self, step: PathStep) -> bool:
        """Whether a step needs nothing more than what goes anyway."""
        needs = [step.member.id] if step.reverse else self._closure.needs_of(step.member)
        return all(
            id_ is not None and (id_ in self._taken or id_ in self._needed or id_ in self._closure)
            for id_ in needs
        )

    @property
    def drags_along_too_much(self) -> bool:
        """Whether what leads to needed blobs alone takes more bytes than these have."""
        members = (header.members[i] for header, some in self._records.values() for i in some)
        dragged = sum(member.stored for member in members if member.id not in self._needed)
        return dragged > sum(self._specs[id_].nbytes for id_ in self._dragging) > 0

    def _may_go(self, step: PathStep) -> bool:
        """Whether the receiver can prove what comes with a coding."""
        mates = step.header.members if step.header.group else (step.member,)
        return all(
            member.kind != MANIFEST
            and self._know(member.id, mates)
            and all(
                id_ is not None and (id_ in self._closure or self._know(id_, (member,)))
                for id_ in self._closure.needs_of(member)
            )
            for member in mates
        )

    def _know(self, id_: bytes, beside: Iterable[Member]) -> bool:
        """Whether an object's dtype and shape are known; or are like those of others ``beside``."""
        if id_ not in self._specs:
            like = (self._specs[each.id] for each in beside if each.id in self._specs)
            spec = self._closure.spec(id_, like)
            if spec is None:
                return False
            self._specs[id_] = spec
        return True

    def _take(self, step: PathStep) -> None:
        header = step.header
        _, members = self._records.setdefault((step.pack, step.offset), (header, set()))
        chosen = range(len(header.members)) if header.group else [_index(header, step.member)]
        for i in chosen:
            if i in members:
                continue
            members.add(i)
            member = header.members[i]
            for id_ in (member.id, *self._closure.needs_of(member)):
                if id_ is not None and id_ not in self._taken and id_ not in self._closure:
                    self._waiting.append(id_)

    def _manifest(self, id_: ManifestId) -> None:
        """Takes a manifest's own coding if its base is there, or else encodes it anew.

        A patch may refer to the ids of the blobs in its record: these must go with it.
        """
        for step in self._own.get(id_, ()):
            header, member = step.header, step.member
            place = step.pack, step.offset
            blobs = {i for i, each in enumerate(header.members) if each.kind == BLOB}
            chosen = self._records.get(place, (header, set()))[1]
            needs = self._closure.needs_of(member)
            sound = all(each is not None and each in self._closure for each in needs)
            if sound and blobs <= chosen and not header.group:
                _, members = self._records.setdefault(place, (header, set()))
                members.add(_index(header, member))
                return
        self._anew_manifests.append(id_)

    @property
    def left(self) -> set[bytes]:
        """Objects in the entry's records that did not go."""
        return self._own.keys() - self._taken - self._needed.manifests

    def chosen(self) -> ChosenRecords:
        closure = self._closure
        parts: list[Callable[[], Iterable[Bytes]]] = []
        size = 0
        own = {(step.pack, step.offset) for steps in self._own.values() for step in steps}
        order = sorted(self._records, key=lambda place: (place in own, place))
        for place in order:
            closure.packs.header(*place)  # opens them
        if self._anew or self._anew_manifests:
            spool = closure.encoded(self._anew_manifests, self._anew)
            parts.append(spool.read)
            size += spool.size
        for place in order:
            header, members = self._records[place]
            if len(members) == len(header.members):
                parts.append(partial(closure.packs.raw, *place, header))
                size += header.size
            else:
                some = sorted(members)
                parts.append(partial(_part, closure.packs, place, header, members=some))
                size += len(_cut(header, some)) + sum(header.members[i].stored for i in some)
        going = (header.members[i] for header, some in self._records.values() for i in some)
        sent = {member.id for member in going if member.kind == BLOB} | self._anew.keys()
        sent |= self._taken  # a delta that is undone leads to what is no member of a record
        shapes = tuple(
            SentShape(id_, self._specs[id_].dtype, self._specs[id_].shape)
            for id_ in sorted(sent - self._needed.blobs.keys())
        )
        return ChosenRecords(size, shapes, lambda: (data for part in parts for data in part()))


def _index(header: RecordHeader, member: Member) -> int:
    return next(
        i
        for i in header.by_id[member.id]
        if header.members[i].start == member.start and header.members[i].at == member.at
    )


def _cut(header: RecordHeader, members: Sequence[int]) -> bytes:
    """The head of a record of some members of another one."""
    at, moved = 0, []
    for i in members:
        moved.append(header.members[i]._replace(at=at))
        at += header.members[i].stored
    return encode_header(moved, group=False, body_size=at)


def _part(
    packs: PackReader, place: _Place, header: RecordHeader, members: Sequence[int]
) -> Iterator[Bytes]:
    yield _cut(header, members)
    yield from (packs.payload(*place, header, header.members[i]) for i in members)
