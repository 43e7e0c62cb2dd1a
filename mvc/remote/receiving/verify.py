"""Verifies a received *slice* (journal entries and their records) before it becomes visible.

A *content* is the bytes of a tensor. A *coding* is a stored form of a content: in full, or as a
delta from another content, the *base*. A delta may also need other contents, its *inputs*, to
predict the content. Every received coding is decoded, even if a content has several codings, and
the result is hashed. Then the Merkle root of each version's manifest (list of files) is compared
with the root in the commit. If a version needs a content that was not received, and that none of
its parents has, this content is recovered and hashed, too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial

import numpy as np
from blake3 import blake3
from msgspec import Struct, field

from mvc.adapters.views import extract
from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.limits import MAX_MANIFEST, MAX_SKELETON, PIECE
from mvc.model.commit import Commit
from mvc.model.hashing import BlobHasher, blob_id, hash_threads, pieces, verify_pieces
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest, View
from mvc.model.tensor import TensorSpec
from mvc.names import ATTACHED, RECIPE
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.graph.plan import related
from mvc.store.graph.search import Graph, Path, PathStep, Speed
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import encode_entry
from mvc.store.packs.reader import Placed
from mvc.store.packs.records import BASE_BYTES, MANIFEST, Member
from mvc.store.publishing.publish import heal
from mvc.store.recovery.grouped import MOST_GROUPED, MOST_JOINT, walk_together
from mvc.store.recovery.planned import in_batches
from mvc.store.recovery.recover import Recovery, piece_reader
from mvc.store.snapshot import JOURNAL, Snapshot
from mvc.store.store import Store

_CACHED = 48 << 20  # limit of bytes of cached bases
_AT_ONCE = 32 << 20  # limit of bytes of pieces that are decoded together
_MOST_TOGETHER = 4 * PIECE  # limit of bytes of pieces in a unit
_LITTLE = 256 << 10  # bytes of pieces below which one thread decodes
_LOADED = 8  # limit of cached manifests
_MOST_MISSING = 100_000


class Missing(Exception):
    """Contents that a slice needs, and that neither the slice nor the repository has.

    ``ids``: each is a full id (32 bytes), or only its first 8 bytes, if a coding names its base or
    an input by them.
    """

    def __init__(self, ids: Iterable[bytes]) -> None:
        super().__init__()
        self.ids = tuple(ids)


def is_reached(graph: Graph, id_: bytes, start: int) -> bool:
    """Whether the piece of a content that begins at byte ``start`` can be recovered."""
    with suppress(DamagedData):
        graph.path(id_, start)
        return True
    return False


@contextmanager
def opened_ahead(snapshot: Snapshot, entries: Sequence[Entry]) -> Iterator[Snapshot]:
    """Yields a snapshot of the repository that shows these entries as if they were published."""
    if snapshot.tip is not None and snapshot.tip.copies < 2:
        path = snapshot.folder / JOURNAL
        with snapshot.fs.lock(path), snapshot.fs.open_write(path) as file:
            snapshot.refresh()
            heal(snapshot, file)
    begin = at = snapshot.position
    parts = list[bytes]()
    for entry in entries:
        data, at = encode_entry(entry, at)
        parts.append(data)
    ahead = begin.offset, b"".join(parts)
    with closing(Snapshot(snapshot.fs, snapshot.folder, writable=False, ahead=ahead)) as view:
        yield view


class ReceivedVersion(Struct, frozen=True):
    """A version whose state was received. ``dropped``: files that were sent without weights."""

    commit: Commit
    dropped: frozenset[str] = frozenset()


class Delivered(Struct, frozen=True):
    """The received data of one journal entry.

    ``shapes``: dtypes and shapes of contents that belong to no received version.
    """

    records: Sequence[Placed]
    versions: Sequence[ReceivedVersion]
    shapes: Mapping[bytes, TensorSpec]


class ProvenSlice(Struct, frozen=True):
    """The result of a verification. ``features``: format features of the versions' manifests.

    ``marks``: maps each version to the keys under which the index lists its new files.
    """

    marks: Mapping[CommitId, tuple[bytes, ...]] = field(default_factory=dict)
    features: frozenset[str] = frozenset()


def prove(store: Store, view: Snapshot, parts: Sequence[Delivered]) -> ProvenSlice:
    """Verifies every record and version. Raises DamagedData or Missing.

    ``view``: the snapshot of ``opened_ahead``. ``parts``: the received data of each entry. Only few
    decoded pieces are in memory at a time.
    """
    return _Proof(store, view).run(parts)


class _Object(Struct):
    """The hashes of a content of several pieces. ``hasher`` hashes the bytes before ``reached``.

    ``digests``: maps offsets to the hashes of pieces that were decoded out of order, or that have
    several codings.
    """

    hasher: BlobHasher
    reached: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)


class _Proof:
    def __init__(self, store: Store, view: Snapshot) -> None:
        self._view = view
        # A stored delta may be decoded backwards, to compute its base from its content. A received
        # delta may not: its base would be computed from the very content that the delta must prove.
        self._graph = Graph(view, Speed(), undo=view.journal.fixed)
        self._pool: Executor = store.pool
        self._provided = store.provided  # dropped weights that a replay recomputed
        self._recovery = Recovery(view.packs, self._graph, self._pool, self._provided)
        stream = ManifestStream(store, recovery=self._recovery)
        self._specs: dict[bytes, TensorSpec] = {}  # specs of all contents that the slice names
        self._missing: dict[bytes, None] = {}
        self._received: set[bytes] = set()
        self._proven: set[bytes] = set()
        self._large: dict[bytes, _Object] = {}
        self._load = lru_cache(_LOADED)(stream.load)  # a cache: children need a manifest again
        self._cached: OrderedDict[tuple[bytes, int], memoryview] = OrderedDict()
        self._cached_bytes = 0
        self._uses: Counter[_Name] = Counter()  # how many batches still need a base or input
        self._codes: Counter[tuple[bytes, int]] = Counter()  # number of codings of each piece
        # Hashes the most recently decoded piece of a large content, while the next is decoded.
        self._hashing = self._pool.submit(lambda: None)
        self._hashed_last: memoryview | None = None  # this piece; None if a later coding needs it
        self._spare: memoryview | None = None  # memory to use again: new memory costs page faults

    def run(self, parts: Sequence[Delivered]) -> ProvenSlice:
        marks: dict[CommitId, tuple[bytes, ...]] = {}
        features = frozenset[str]()
        for part in parts:
            for _, _, header in part.records:
                self._received.update(header.by_id)
        for part in parts:
            self._check_bases_reachable(part.records)
            for version in part.versions:
                self._check_version_reachable(version)
        if self._missing:
            raise Missing(self._missing)
        for part in parts:
            self._name(part)
        self._records([part.records for part in parts])
        for id_ in self._large.keys() - self._proven:  # some pieces were decoded out of order
            self._check_content(id_, self._specs[id_])
        self._large.clear()
        for version in (version for part in parts for version in part.versions):
            manifest = self._version(version)
            features |= manifest.features
            marks[version.commit.id] = self._marks(version.commit, manifest)
        return ProvenSlice(marks, features)

    # -- reachable contents --------------------------------------------------------------

    def _miss(self, id_: bytes) -> None:
        if len(self._missing) < _MOST_MISSING:
            self._missing[id_] = None

    def _check_reachable(self, id_: bytes, start: int) -> bool:
        """Whether a piece can be recovered. If it cannot, notes the content as missing."""
        is_reachable = is_reached(self._graph, id_, start)
        if not is_reachable:
            self._miss(id_)
        return is_reachable

    def _check_bases_reachable(self, records: Sequence[Placed]) -> None:
        """Notes bases and inputs of codings as missing if they cannot be recovered."""
        members = (member for _, _, header in records for member in header.members)
        needed = dict.fromkeys((name, member.start) for member in members for name in member.needs)
        for name, start in needed:
            id_ = self._graph.resolve_prefix(name)
            if id_ is None:
                self._miss(name)
            elif id_ not in self._received:
                self._check_reachable(id_, start)

    def _check_version_reachable(self, version: ReceivedVersion) -> None:
        """Notes contents of a version as missing if they cannot be recovered."""
        if self._check_reachable(version.commit.manifest, 0):
            for id_, spec in self._fresh(version, self._load(version.commit.manifest)).items():
                if id_ not in self._received:
                    all(self._check_reachable(id_, start) for start, _ in pieces(spec))

    def _fresh(self, version: ReceivedVersion, manifest: Manifest) -> dict[bytes, TensorSpec]:
        """The contents of a version that were received now, or that no parent version has.

        The other contents need no check, because the states of parents are complete.
        """
        known = self._in_parents(version.commit)
        objects = manifests.objects(manifest.all_entries, version.dropped)
        return {i: s for i, s in objects.items() if i in self._received or known.get(i) != s}

    # -- specs and parents ---------------------------------------------------------------

    def _name(self, part: Delivered) -> None:
        """Records the specs (dtypes and shapes) of an entry's contents.

        The hash of a content covers its dtype and shape, so two specs for one id are an error.
        """
        named = [*part.shapes.items()]
        for version in part.versions:
            manifest = self._load(version.commit.manifest)
            if version.dropped and not _is_recomputable(version, manifest):
                raise DamagedData(
                    f"the weights of version {version.commit.id.short} were not sent, and it has "
                    "no recipe to recompute them"
                )
            named += manifests.objects(manifest.all_entries).items()
        for id_, spec in named:
            if self._specs.setdefault(id_, spec) != spec:
                raise _wrong(id_)
        for member in (member for _, _, header in part.records for member in header.members):
            if member.kind != MANIFEST and member.id not in self._specs:
                raise DamagedData(
                    f"content {member.id.hex()[:10]} was sent, but belongs to no sent version"
                )

    def _manifest_of(self, id_: CommitId) -> Manifest | None:
        """The manifest of a version whose complete state is stored. None if the state is absent."""
        placed = commits.find(self._view, id_)
        if placed is None or availability.recorded_absence(self._view, id_) is not None:
            return None
        manifest = placed[1].manifest
        return self._load(manifest) if is_reached(self._graph, manifest, 0) else None

    def _in_parents(self, commit: Commit) -> dict[bytes, TensorSpec]:
        """The contents of a version's parents, which are stored and verified."""
        known: dict[bytes, TensorSpec] = {}
        for id_ in commit.parents:
            marks = (mark for _, mark in self._view.state_marks(id_, weights=True))
            dropped = set(availability.dropped_paths(marks).values())
            known |= manifests.objects(
                (self._manifest_of(id_) or manifests.EMPTY).all_entries, dropped
            )
        return known

    def _marks(self, commit: Commit, manifest: Manifest) -> tuple[bytes, ...]:
        """The first 8 bytes of the state id of each file that differs from the first parent."""
        parent = self._manifest_of(commit.parents[0]) if commit.parents else None
        old = (parent or manifests.EMPTY).by_path
        new = (
            entry
            for path, entry in manifest.by_path.items()
            if path not in old or old[path].content_id != entry.content_id
        )
        ids = {bytes(entry.state_id)[:8] for entry in new} - {bytes(manifest.root)[:8]}
        return tuple(sorted(ids))

    # -- codings -------------------------------------------------------------------------

    def _records(self, parts: Sequence[Sequence[Placed]]) -> None:
        """Verifies all codings of a slice.

        Codings that are predicted from each other, or that share a payload (compressed bytes), are
        decoded together. A base is decoded before the deltas from this base, whatever the order of
        sending, and stays in a cache (of limited size) until all these deltas are decoded. So the
        work grows with the number of codings.
        """
        nodes = [node for records in parts for node in _nodes(self._graph, records)]
        self._uses = Counter(key for node in nodes for key in node.needs)
        members = (m for records in parts for _, _, header in records for m in header.members)
        self._codes = Counter((member.id, member.start) for member in members)
        for batch in _after_bases(nodes):
            self._codings([u for node in batch for u in node.units], grouped=batch[0].grouped)
            for key in (key for node in batch for key in node.needs):
                self._uses[key] -= 1
                if not self._uses[key] and (id_ := self._graph.resolve_prefix(key[0])) is not None:
                    self._cached_bytes -= len(self._cached.pop((id_, key[1]), b""))
        self._hashing.result()

    def _codings(self, units: Sequence[Sequence[PathStep]], *, grouped: bool) -> None:
        """Decodes codings, and hashes the results.

        ``units``: lists of codings that are predicted from each other. ``grouped``: whether all
        codings share a payload.
        """
        walks = [[(s, self._path(s), self._room(s.member)) for s in unit] for unit in units]
        every = [walk for unit in walks for walk in unit]
        if grouped:
            self._shared([walk for walk in every if not _has_transform(walk[1])])
        little = sum(len(out) for _, _, out in every) < _LITTLE
        code = partial(self._coded, grouped=grouped)
        if little or len(walks) == 1:  # one unit at a time, whose chunks the threads share
            coded = [code(unit, parallel=not little) for unit in walks]
        else:
            running = [self._pool.submit(code, unit) for unit in walks]
            wait(running)
            coded = [future.result() for future in running]
        digests = [digest for unit in coded for digest in unit]
        for (step, _, out), digest in zip(every, digests, strict=True):
            self._note(step.member, out, digest)

    def _shared(self, walks: Sequence[_Walk]) -> None:
        """Decodes codings that share a payload."""
        for step, path, out in walks:
            if path.origin is not None:
                origin = self._at(step.member.start)[path.origin]
                if len(origin) != len(out):
                    raise _wrong(step.member.id)
                out[:] = origin
        walk_together(self._recovery.packs, [(path, out) for _, path, out in walks], self._pool)

    def _path(self, step: PathStep) -> Path:
        """The codings to decode one after another, to get the content of ``step``."""
        member = step.member
        if not member.base:
            return Path((step,), 0.0)
        id_ = self._graph.resolve_prefix(member.base)
        if id_ is None:
            raise _wrong(member.id)
        base = self._graph.path(id_, member.start, self._at(member.start))
        return Path((*base.steps, step), 0.0, base.origin)

    def _at(self, start: int) -> _At:
        return _At(self._cached, self._provided, start)

    def _coded(
        self, unit: Sequence[_Walk], *, grouped: bool, parallel: bool = False
    ) -> list[bytes]:
        """Decodes the codings of a unit, and returns the hashes of the results.

        ``grouped``: whether the codings share a payload. If they do, ``_shared`` has already
        decoded the codings without a transform.
        """
        left = [(path, out) for _, path, out in unit if not grouped or _has_transform(path)]
        cached = self._at(unit[0][0].member.start)
        if len(left) > 1:
            # After an error, decoding one by one shows which coding is wrong.
            with suppress(DamagedData):
                self._recovery.walk(left, cached, parallel=parallel)
                left = []
        for walk in left:
            self._recovery.walk([walk], cached, parallel=parallel)
        return [self._hashed(step.member, out, parallel=parallel) for step, _, out in unit]

    def _hashed(self, member: Member, out: memoryview, *, parallel: bool) -> bytes:
        """The id of the content ``out``. Empty if ``out`` is only a piece of the content.

        ``_piece`` hashes such pieces.
        """
        if member.kind == MANIFEST:
            return Manifest.id_of(bytes(out))
        spec = self._specs[member.id]
        if member.start == 0 and len(out) == spec.nbytes:
            return blob_id(spec, out, parallel=parallel)
        if (member.start, len(out)) not in pieces(spec):
            raise _wrong(member.id)
        return b""

    def _note(self, member: Member, out: memoryview, digest: bytes) -> None:
        """Checks the hash of a decoded content or piece. Caches it if a later coding needs it."""
        if member.kind == MANIFEST or len(out) == self._specs[member.id].nbytes:
            if digest != member.id:
                raise _wrong(member.id)
            self._proven.add(member.id)
        else:
            self._piece(member, self._specs[member.id], out)
        key = member.id, member.start
        if key not in self._cached and self._is_needed(member):
            self._cached[key] = out
            self._cached_bytes += len(out)
        while self._cached_bytes > _CACHED and len(self._cached) > 1:
            self._cached_bytes -= len(self._cached.popitem(last=False)[1])

    def _is_needed(self, member: Member) -> bool:
        """Whether this content is a base or an input of a coding that is not decoded yet."""
        return self._uses[member.id[:BASE_BYTES], member.start] > 0

    def _room(self, member: Member) -> memoryview:
        """Memory for the result of decoding."""
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) == member.nbytes:
            return spare
        return _room(member)

    def _piece(self, member: Member, spec: TensorSpec, out: memoryview) -> None:
        """Checks a piece of a content that has several pieces.

        All codings of the piece must decode to the same bytes. All pieces together must have the
        hash of the content.
        """
        large = self._large.get(member.id)
        if large is None:
            large = self._large[member.id] = _Object(BlobHasher(spec, parallel=True))
        if member.start != large.reached or self._codes[member.id, member.start] > 1:
            digest = blake3(out, max_threads=hash_threads(parallel=True)).digest()
            if large.digests.setdefault(member.start, digest) != digest:
                raise _wrong(member.id)
        if member.start == large.reached:
            large.reached += len(out)
            self._hashing.result()
            self._spare = self._hashed_last
            self._hashed_last = None if self._is_needed(member) else out
            work = partial(self._hash_on, member.id, large.hasher, out)
            self._hashing = self._pool.submit(work, ends=large.reached == spec.nbytes)

    def _hash_on(self, id_: bytes, hasher: BlobHasher, out: memoryview, *, ends: bool) -> None:
        """Hashes a piece while the next piece is decoded."""
        hasher.update(out)
        if ends:
            if hasher.done() != id_:
                raise _wrong(id_)
            self._proven.add(id_)

    # -- versions ------------------------------------------------------------------------

    def _version(self, version: ReceivedVersion) -> Manifest:
        """Verifies a version: its Merkle root, and its contents that are not yet verified."""
        manifest = self._load(version.commit.manifest)
        if manifest.root != version.commit.root:
            raise DamagedData(
                f"the Merkle root of version {version.commit.id.short} does not match its files"
            )
        for id_, spec in self._fresh(version, manifest).items():
            if id_ not in self._proven:
                self._check_content(id_, spec)
        parents = (
            self._manifest_of(parent) or manifests.EMPTY for parent in version.commit.parents
        )
        olds = [_views_of(entry) for parent in parents for entry in parent.all_entries]
        views = {id_: place for old in olds for id_, place in old.items()}
        for entry in manifest.all_entries:
            if entry.path not in version.dropped:
                self._check_views(entry, views)
        return manifest

    def _check_content(self, id_: bytes, spec: TensorSpec) -> None:
        """Recovers a content piece by piece, and verifies its hash.

        If pieces were already decoded from received codings, the recovered pieces must have the
        same bytes. Before ``large.reached``, ``large.hasher`` has hashed the decoded pieces, and
        ``hasher`` hashes the recovered pieces. Later pieces are compared by ``large.digests``.
        """
        large = self._large.get(id_) or _Object(BlobHasher(spec))
        hasher = BlobHasher(spec)
        for start, part in verify_pieces(
            id_, spec, piece_reader(self._recovery.piece, id_, spec), _wrong(id_)
        ):
            if start < large.reached:
                hasher.update(part)
            elif large.digests.get(start, digest := blake3(part).digest()) != digest:
                raise _wrong(id_)
        if hasher.done() != large.hasher.done():
            raise _wrong(id_)
        self._proven.add(id_)

    def _check_views(self, entry: FileEntry, known: dict[bytes, tuple[bytes, View]]) -> None:
        """Verifies the hashes of tensors that are views into a content.

        Omits views that a parent version has, too.
        """
        views = _views_of(entry)
        fresh = {id_ for id_, view in views.items() if known.get(id_) != view}
        by_content: dict[int, list[LogicalTensor]] = {}
        for tensor in entry.tensors:
            if tensor.view is not None and tensor.id in fresh:
                by_content.setdefault(tensor.content, []).append(tensor)
        for at, tensors in by_content.items():
            content = entry.contents[at]
            data = memoryview(self._recovery.blob(content.id, content.spec))
            for tensor in tensors:
                assert tensor.view is not None
                if blob_id(tensor.spec, extract(data, tensor.spec, tensor.view)) != tensor.id:
                    raise _wrong(tensor.id)
        known.update(views)


class _At(Struct, frozen=True):
    """Maps the id of a content to its piece that begins at ``start``, if the piece is in memory."""

    cached: Mapping[tuple[bytes, int], memoryview]
    recomputed: Mapping[bytes, memoryview]
    start: int

    def __contains__(self, id_: object) -> bool:
        return (id_, self.start) in self.cached or id_ in self.recomputed

    def __getitem__(self, id_: bytes) -> memoryview:
        cached = self.cached.get((id_, self.start))
        return self.recomputed[id_][self.start : self.start + PIECE] if cached is None else cached


def _is_recomputable(version: ReceivedVersion, manifest: Manifest) -> bool:
    has_recipe = (
        RECIPE in version.commit.attached and ATTACHED + RECIPE in manifest.attached_by_path
    )
    return has_recipe and version.dropped <= manifest.by_path.keys()


def _has_transform(path: Path) -> bool:
    return any(step.member.coding.transform for step in path.steps)


def _views_of(entry: FileEntry) -> dict[bytes, tuple[bytes, View]]:
    return {
        tensor.id: (entry.contents[tensor.content].id, tensor.view)
        for tensor in entry.tensors
        if tensor.view is not None
    }


_Name = tuple[bytes, int]
"""First bytes of a content's id, and the start of one of its pieces."""


class _Batch(Struct, frozen=True):
    """Codings that are decoded together.

    ``provides``: the pieces that the codings contain. ``needs``: the pieces that must be decoded
    before this batch. ``grouped``: whether the codings share a payload.
    """

    units: list[list[PathStep]]
    provides: set[_Name]
    needs: set[_Name]
    nbytes: int
    start: int
    grouped: bool = False


def _node(units: list[list[PathStep]], *, grouped: bool = False) -> _Batch:
    members = [step.member for unit in units for step in unit]
    provides = {(member.id[:BASE_BYTES], member.start) for member in members}
    needs = {(name, member.start) for member in members for name in member.needs}
    size, start = sum(member.nbytes for member in members), min(m.start for m in members)
    return _Batch(units, provides, needs - provides, size, start=start, grouped=grouped)


def _nodes(graph: Graph, records: Iterable[Placed]) -> Iterator[_Batch]:
    """Batches of all codings in an entry's records.

    Raises DamagedData for a group (codings with one payload) that exceeds the limit.
    """
    predicted: list[PathStep] = []
    for pack, at, header in records:
        joint = header.members[0].coding.joint if header.group else 0
        if header.group and header.raw_bytes > (MOST_JOINT if joint else MOST_GROUPED):
            raise DamagedData("a record claims more bytes than the limit")
        steps = [PathStep(pack, at, header, member, reverse=False) for member in header.members]
        if header.group:
            for batch in _batches(steps, joint):
                yield _node([[step] for step in batch], grouped=True)
        elif any(step.member.coding.predicted for step in steps):
            predicted += steps
        else:
            yield from (_node([[step]]) for step in steps)
    yield from (_node([unit]) for unit in _units(graph, predicted))


def _after_bases(nodes: Sequence[_Batch]) -> Iterator[list[_Batch]]:
    """Yields lists of batches to decode together, in an order that decodes bases first.

    The order is depth first, so that few decoded pieces must be in memory. Batches with the first
    pieces of contents come first. If batches need each other in a cycle, any of them comes first.
    """
    provided = set[_Name]().union(*(node.provides for node in nodes))
    waiting: dict[_Name, list[int]] = {}
    lacks = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for key in node.needs & provided:
            waiting.setdefault(key, []).append(i)
            lacks[i] += 1
    order = sorted(range(len(nodes)), key=lambda i: nodes[i].start)
    left, ready = set(order), [i for i in reversed(order) if not lacks[i]]
    for first in order:
        if not ready and first in left:  # a cycle
            ready.append(first)
        while ready:
            batch = [ready.pop()]
            size, grouped = nodes[batch[0]].nbytes, nodes[batch[0]].grouped
            while ready and not grouped and not nodes[ready[-1]].grouped:
                size += nodes[ready[-1]].nbytes
                if size > _AT_ONCE:
                    break
                batch.append(ready.pop())
            left.difference_update(batch)
            yield [nodes[i] for i in batch]
            freed = [j for i in batch for key in nodes[i].provides for j in waiting.pop(key, ())]
            for j in reversed(freed):
                lacks[j] -= 1
                if not lacks[j] and j in left:
                    ready.append(j)


_Walk = tuple[PathStep, Path, memoryview]
"""A coding, the codings to decode for it (itself the last), and the buffer for the result."""


def _units(graph: Graph, steps: Iterable[PathStep]) -> Iterator[list[PathStep]]:
    """Yields units: groups of codings that are predicted from each other.

    If a group has two codings of the same piece, or is too large, each of its codings is a unit by
    itself.
    """
    by_start: dict[int, list[PathStep]] = {}
    for step in steps:
        by_start.setdefault(step.member.start, []).append(step)
    for same_start in by_start.values():
        for numbers in related(graph, [Path((step,), 0.0) for step in same_start]):
            unit = [same_start[i] for i in numbers]
            ids = {step.member.id for step in unit}
            size = sum(step.member.nbytes for step in unit)
            fits = size <= _MOST_TOGETHER and len(ids) == len(unit)
            yield from [unit] if fits else ([step] for step in unit)


def _batches(steps: Sequence[PathStep], joint: int) -> Iterator[Sequence[PathStep]]:
    """The codings of a group (codings with one payload), in batches to decode together.

    ``joint``: 0, or, if the group is a super-step, the number of successive versions whose deltas
    the payload has. In a super-step, each batch has the deltas of one version.
    """
    if not joint:
        return in_batches(steps, lambda step: step.member.nbytes, _AT_ONCE)
    size = len(steps) // joint or 1
    return (steps[at : at + size] for at in range(0, len(steps), size))


def _room(member: Member) -> memoryview:
    most = MAX_MANIFEST if member.kind == MANIFEST else max(PIECE, MAX_SKELETON)
    if member.nbytes > most or (member.start and member.nbytes > PIECE):
        raise DamagedData(f"content {member.id.hex()[:10]} claims more bytes than the limit")
    return np.empty(member.nbytes, np.uint8).data


def _wrong(id_: bytes) -> DamagedData:
    return DamagedData(
        f"received data of content {id_.hex()[:10]} does not match its hash: nothing was stored",
        hint="run 'mvc fsck --full' in the repository that sent it",
    )
