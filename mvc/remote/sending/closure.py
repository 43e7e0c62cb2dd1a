"""Chooses the records that a receiver needs for a version, in as few bytes as possible.

A record stores contents (such as the bytes of a tensor), in full or as deltas from other contents,
their bases. There are three ways to send a content:

- Records that were stored by the commit of the version are sent unchanged.
- Otherwise, the stored deltas that lead from a content of the receiver to this content are sent. Of
  several such lists of deltas, the list with the fewest bytes is chosen.
- The content is encoded again if a base cannot be sent, for example because it was purged, or if
  the bases that the receiver lacks are larger than the contents of the version.

If several contents share a payload (compressed bytes), all of them are sent.
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
    """Makes a search choose the path (list of deltas) with the fewest bytes, not the fastest."""

    def seconds(self, member: Member) -> float:
        return member.stored + 1


class Needed(Struct, frozen=True):
    """The contents that versions need. ``blobs``: maps ids of tensors to dtypes and shapes."""

    manifests: frozenset[ManifestId] = frozenset()
    blobs: Mapping[bytes, TensorSpec] = field(default_factory=dict)

    def __contains__(self, id_: object) -> bool:
        return id_ in self.blobs or id_ in self.manifests


class ChosenRecords(Struct, frozen=True):
    """The records to send: ``size`` bytes, which ``read`` yields.

    ``shapes``: dtypes and shapes of the tensors that are sent, although no sent version has them.
    """

    size: int
    shapes: tuple[SentShape, ...]
    read: Callable[[], Iterator[Bytes]]


NOTHING = ChosenRecords(0, (), lambda: iter(()))

_Place = tuple[int, int]
_Own = Mapping[bytes, Sequence[PathStep]]
_Reencoded = tuple[TensorSpec, tuple[bytes, TensorSpec] | None]
"""The spec of a content to encode again, and the id and spec of its base, if any."""


class Closure:
    """Chooses the records for each journal entry, in the order in which the entries are sent.

    ``has_entry``: whether the receiver probably has the contents that an entry published.
    ``is_purged``: whether all versions of an entry are purged. ``whole``: contents that the
    receiver reported as missing. ``known``: contents of versions that the receiver has.

    The other arguments are for a receiver that writes files and stores no versions. ``file``: all
    contents that the receiver has. ``manifest``: one of these contents, the manifest from which a
    new manifest is encoded as a patch. ``near``: maps a content to a similar content in ``file``,
    from which the content can be encoded as a delta. Only such a receiver may decode deltas
    backwards, because it verifies the files.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        has_entry: Callable[[Recorded], bool],
        is_purged: Callable[[Recorded], bool],
        whole: Collection[bytes] = (),
        *,
        file: Collection[bytes] | None = None,
        manifest: ManifestId | None = None,
        near: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._store, self._config = store, config
        self.file, self.near = file, near or {}
        self._manifest_base = manifest
        self._snapshot = store.snapshot
        # This reader keeps pack files open, so that they stay readable if gc deletes them.
        self.packs = PackReader(self._snapshot.fs, self._snapshot.folder / PACKS)
        self._graph = Graph(self._snapshot, _Bytes(), undo=0 if file is None else None)
        self.manifests = ManifestStream(store)
        # The caches do not refer to self: a reference cycle would leave pack files open.
        holding = self._graph.entries_holding  # the first of these entries published the content
        self.home = lru_cache(_RESOLVED)(lambda id_: next(iter(holding(id_)), None))
        self._has_entry = lru_cache(_RESOLVED)(
            lambda at, of=self._snapshot.entry: has_entry(of(at))
        )
        self._is_purged = is_purged
        self.lacking = {self._graph.resolve_prefix(id_) or id_ for id_ in whole}
        self._done: set[int] = set()  # entries whose contents were sent
        self._left: set[bytes] = set()  # contents of the entries in ``_done`` that were not sent
        self._extra: set[bytes] = set()  # contents that were sent with another entry
        # A receiver that lacks a content probably lacks older contents, too. Older contents are
        # sent without a question, which saves round trips.
        self._doubted = max((self.home(id_) or 0 for id_ in self.lacking), default=-1)
        self._specs: dict[bytes, TensorSpec | None] = {}
        self.known: set[bytes] = set()

    def choose(self, recorded: Recorded, needed: Needed) -> ChosenRecords:
        """The records that an entry's versions need and that were not sent before."""
        work = _Choice(self, recorded.offset, needed)
        work.run()
        if work.bases_exceed_gain:
            work = _Choice(self, recorded.offset, needed, include_bases=False)
            work.run()
        self._done.add(recorded.offset)
        self._extra.update(work.moved)
        self._left.update(work.left)
        self._left -= work.moved
        return work.chosen()

    # -- contents at the receiver --------------------------------------------------------

    def __contains__(self, id_: object) -> bool:
        """Whether the receiver has a content, or gets it with an earlier entry."""
        if self.file is not None or not isinstance(id_, bytes):
            return id_ in (self.file or ())
        home = self.home(id_)
        if id_ in self._extra or home in self._done:
            return id_ not in self._left
        if home is None or home <= self._doubted or id_ in self.lacking:
            return False
        return id_ in self.known or self._has_entry(home)

    # -- contents that can be sent -----------------------------------------------------------

    def spec(self, id_: bytes, like: Iterable[TensorSpec]) -> TensorSpec | None:
        """Dtype and shape of a blob (the bytes of a tensor).

        None if dtype and shape are unknown, or if the blob must not be sent. Dtype and shape are
        read from a version that has the blob. Without such a version, the candidates ``like`` are
        tried, because the id of a blob is a hash that includes dtype and shape.
        """
        if id_ not in self._specs:
            if len(self._specs) > _RESOLVED:
                self._specs.clear()
            self._specs[id_] = self._search_spec(id_, like)
        return self._specs[id_]

    def _search_spec(self, id_: bytes, like: Iterable[TensorSpec]) -> TensorSpec | None:
        for recorded in map(self._snapshot.entry, self._graph.entries_holding(id_)):
            if self._is_purged(recorded):
                return None
            for commit in recorded.entry.commits:
                with suppress(DamagedData):
                    if self._graph.entries_holding(commit.manifest):
                        files = self.manifests.load(commit.manifest).all_entries
                        if (spec := manifests.objects(files).get(id_)) is not None:
                            return spec
        sizes = {step.member.nbytes for step in self._graph.codings(id_, 0)}
        fitting = {spec for spec in like if min(PIECE, spec.nbytes) in sizes}
        return next((spec for spec in sorted(fitting, key=str) if self._is_spec(id_, spec)), None)

    def _is_spec(self, id_: bytes, spec: TensorSpec) -> bool:
        read = piece_reader(self._store.recovery.piece, id_, spec)
        with suppress(DamagedData):
            for _ in verify_pieces(id_, spec, read, DamagedData("another spec")):
                pass
            return True
        return False

    # -- queries of _Choice ----------------------------------------------------------------

    def own(self, offset: int) -> dict[bytes, list[PathStep]]:
        """Maps each content in the records of an entry to its codings (encoded forms)."""
        codings: dict[bytes, list[PathStep]] = {}
        for pack, at, header in self._snapshot.records(offset):
            for member in header.members:
                step = PathStep(pack, at, header, member, reverse=False, entry=offset)
                codings.setdefault(member.id, []).append(step)
        return codings

    def needs_of(self, member: Member) -> list[bytes | None]:
        """The ids of the base and inputs of a coding. None for a content that is not stored."""
        return [self._graph.resolve_prefix(prefix) for prefix in member.needs]

    def path(self, id_: bytes, start: int) -> Path:
        """The deltas with the fewest bytes that lead from a content of the receiver to a piece.

        If the receiver reported the content ``id_`` as missing, the path begins with a full record.
        Then all bases on the path are regarded as missing, too.
        """
        if id_ not in self.lacking:
            return self._graph.path(id_, start, self)
        path = self._graph.path(id_, start)
        needs = (id_ for step in path.steps for id_ in self.needs_of(step.member))
        self.lacking.update(filter(None, needs))
        return path

    def encoded(
        self, manifests_: Sequence[ManifestId], blobs: Mapping[bytes, _Reencoded]
    ) -> RecordSpool:
        """Encodes contents again, from verified bytes.

        A manifest is encoded as a patch of ``manifest`` (see the class), or in full without it.
        """
        from mvc.maintenance.rewrite_plan import encoding_policy  # a slow import, rarely needed

        store, spool = self._store, RecordSpool()
        with closing(store.object_writer(spool, encoding_policy(self._config))) as writer:
            for id_, (spec, against) in blobs.items():
                writer.put_recovered(id_, spec, store.recovery, against)
            writer.drain()
            writer.flush()
            for manifest in manifests_:
                if self._manifest_base is not None:
                    spool.append(*self._patch(manifest, self._manifest_base))
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
    """Newly encoded records in a temporary file, which takes the place of a pack."""

    def __init__(self) -> None:
        import tempfile

        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # ``read`` closes it
        self.size = 0

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        at = self.size
        for part in (head, *body):
            self._file.write(part)
            self.size += len(part)
        return 0, at

    def push(self) -> None:
        """Does nothing: the file need not be durable."""

    def sync(self) -> tuple[Region, ...]:
        return ()

    def read(self) -> Iterator[Bytes]:
        """The bytes of all records. Call it once."""
        with self._file:
            self._file.seek(0)
            while part := self._file.read(_PART):
                yield part


class _Choice:
    """The choice of records for one entry.

    ``moved``: contents that are sent with this entry, although another entry published them.
    """

    def __init__(
        self, closure: Closure, offset: int, needed: Needed, *, include_bases: bool = True
    ) -> None:
        """``include_bases``: whether bases that the receiver lacks may be sent, too."""
        self._closure, self._needed, self._offset = closure, needed, offset
        self._include_bases = include_bases
        self._with_bases: set[bytes] = set()  # needed blobs that are sent with bases
        self._own: _Own = closure.own(offset)
        self._records: dict[_Place, tuple[RecordHeader, set[int]]] = {}
        self._specs = dict(needed.blobs)
        self._chosen: set[bytes] = set()
        self._waiting: deque[bytes] = deque()
        self._reencoded: dict[bytes, _Reencoded] = {}
        self._new_manifests: list[ManifestId] = []
        self.moved: set[bytes] = set()

    def run(self) -> None:
        closure = self._closure
        self._waiting += (id_ for id_ in self._needed.blobs if id_ not in closure)
        while self._waiting:
            id_ = self._waiting.popleft()
            if id_ not in self._chosen:
                self._chosen.add(id_)
                self._blob(id_)
        for manifest in sorted(self._needed.manifests):
            if manifest not in closure:
                self._manifest(manifest)
        self.moved = {id_ for id_ in self._chosen if closure.home(id_) != self._offset}

    def _blob(self, id_: bytes) -> None:
        """Chooses how to send a blob: in records of this entry, by a path, or encoded again."""
        spec, steps, origin = self._specs[id_], list[PathStep](), None
        if self._closure.file is None and id_ not in self._closure.lacking:
            steps += (s for s in self._own.get(id_, ()) if self._can_send(s) and self._is_free(s))
        covered = {step.member.start for step in steps}
        try:
            for start, _ in pieces(spec):
                if start not in covered:
                    path = self._closure.path(id_, start)
                    steps += path.steps
                    origin = path.origin
        except DamagedData:
            steps = []
        near = self._closure.near.get(id_)
        if origin is None and near and near in self._closure and self._has_spec(near, ()):
            origin, steps = near, []
        needs_bases = id_ in self._needed and not all(map(self._is_free, steps))
        if steps and (self._include_bases or not needs_bases) and all(map(self._can_send, steps)):
            if needs_bases:
                self._with_bases.add(id_)
            for step in steps:
                self._choose(step)
            return
        known = origin is not None and self._has_spec(origin, [step.member for step in steps])
        self._reencoded[id_] = spec, (origin, self._specs[origin]) if known and origin else None

    def _is_free(self, step: PathStep) -> bool:
        """Whether the receiver has or gets all contents from which a delta is decoded."""
        needs = [step.member.id] if step.reverse else self._closure.needs_of(step.member)
        return all(
            id_ is not None and (id_ in self._chosen or id_ in self._needed or id_ in self._closure)
            for id_ in needs
        )

    @property
    def bases_exceed_gain(self) -> bool:
        """Whether the sent bases have more bytes than the needed blobs that require them."""
        members = (header.members[i] for header, some in self._records.values() for i in some)
        bases = sum(member.stored for member in members if member.id not in self._needed)
        return bases > sum(self._specs[id_].nbytes for id_ in self._with_bases) > 0

    def _can_send(self, step: PathStep) -> bool:
        """Whether the receiver can verify a coding, and the codings that share its payload."""
        mates = step.header.members if step.header.group else (step.member,)
        return all(
            member.kind != MANIFEST
            and self._has_spec(member.id, mates)
            and all(
                id_ is not None and (id_ in self._closure or self._has_spec(id_, (member,)))
                for id_ in self._closure.needs_of(member)
            )
            for member in mates
        )

    def _has_spec(self, id_: bytes, neighbours: Iterable[Member]) -> bool:
        """Whether the dtype and shape of a content can be found. ``neighbours``: see ``spec``."""
        if id_ not in self._specs:
            like = (self._specs[member.id] for member in neighbours if member.id in self._specs)
            spec = self._closure.spec(id_, like)
            if spec is None:
                return False
            self._specs[id_] = spec
        return True

    def _choose(self, step: PathStep) -> None:
        header = step.header
        _, members = self._records.setdefault((step.pack, step.offset), (header, set()))
        chosen = range(len(header.members)) if header.group else [_index(header, step.member)]
        for i in chosen:
            if i in members:
                continue
            members.add(i)
            member = header.members[i]
            for id_ in (member.id, *self._closure.needs_of(member)):
                if id_ is not None and id_ not in self._chosen and id_ not in self._closure:
                    self._waiting.append(id_)

    def _manifest(self, id_: ManifestId) -> None:
        """Chooses the stored coding of a manifest if the receiver has its base.

        Otherwise the manifest is encoded again.

        A coding that is a patch may refer to ids of the blobs in its record. So these blobs must be
        sent, too.
        """
        for step in self._own.get(id_, ()):
            header, member = step.header, step.member
            place = step.pack, step.offset
            blobs = {i for i, other in enumerate(header.members) if other.kind == BLOB}
            chosen = self._records.get(place, (header, set()))[1]
            needs = self._closure.needs_of(member)
            has_bases = all(base is not None and base in self._closure for base in needs)
            if has_bases and blobs <= chosen and not header.group:
                _, members = self._records.setdefault(place, (header, set()))
                members.add(_index(header, member))
                return
        self._new_manifests.append(id_)

    @property
    def left(self) -> set[bytes]:
        """Contents in the entry's records that were not sent."""
        return self._own.keys() - self._chosen - self._needed.manifests

    def chosen(self) -> ChosenRecords:
        closure = self._closure
        parts: list[Callable[[], Iterable[Bytes]]] = []
        size = 0
        own = {(step.pack, step.offset) for steps in self._own.values() for step in steps}
        order = sorted(self._records, key=lambda place: (place in own, place))
        for place in order:
            closure.packs.header(*place)  # opens the pack
        if self._reencoded or self._new_manifests:
            spool = closure.encoded(self._new_manifests, self._reencoded)
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
        sent_now = (header.members[i] for header, some in self._records.values() for i in some)
        sent = {member.id for member in sent_now if member.kind == BLOB}
        sent |= self._reencoded.keys() | self._chosen  # also results of deltas decoded backwards
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
    """The header of a new record with some contents (members) of another record."""
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
