"""Proves what was received before any of it counts.

The entries are read as if they stood at the end of the journal, by this process only. Every coding
among their records is applied once, from its own base, and its object hashed: one false coding
beside a true one would make the object unreadable. Then each version is compared with its root, and
what it holds beside that, unless a parent has it, is recovered and hashed.
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

_HELD = 48 << 20  # bytes of pieces that were made last, from which the next ones start
_AT_ONCE = 32 << 20  # bytes of pieces that are made together
_MOST_TOGETHER = 4 * PIECE  # bytes of pieces that are predicted from each other
_LITTLE = 256 << 10  # bytes of pieces that one thread makes
_LOADED = 8  # manifests
_MOST_MISSING = 100_000


class Missing(Exception):
    """Objects that a slice needs, and that neither it nor the repository has.

    ``ids``: 32 bytes each, or the 8 by which a coding names its base.
    """

    def __init__(self, ids: Iterable[bytes]) -> None:
        super().__init__()
        self.ids = tuple(ids)


def is_reached(graph: Graph, id_: bytes, start: int) -> bool:
    """Whether codings lead to a piece."""
    with suppress(DamagedData):
        graph.path(id_, start)
        return True
    return False


@contextmanager
def opened_ahead(snapshot: Snapshot, entries: Sequence[Entry]) -> Iterator[Snapshot]:
    """The repository as it is once these entries are published."""
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


class Given(Struct, frozen=True):
    """A version of a slice whose state came with it; ``given_up``: paths without weights."""

    commit: Commit
    given_up: frozenset[str] = frozenset()


class Delivered(Struct, frozen=True):
    """What came of one entry: records, versions with states, specs of objects of no version."""

    records: Sequence[Placed]
    versions: Sequence[Given]
    shapes: Mapping[bytes, TensorSpec]


class ProvenSlice(Struct, frozen=True):
    """``marks``: what finds the files that are new in a version; ``features``: of the manifests."""

    marks: Mapping[CommitId, tuple[bytes, ...]] = field(default_factory=dict)
    features: frozenset[str] = frozenset()


def prove(store: Store, view: Snapshot, parts: Sequence[Delivered]) -> ProvenSlice:
    """Raises DamagedData or Missing unless every record and version is right.

    ``view``: from ``opened_ahead``; ``parts``: what came of each of its entries. Memory is that of
    the names of what came, and of some pieces.
    """
    return _Proof(store, view).run(parts)


class _Object(Struct):
    """A blob of several pieces: those before ``reached`` were hashed together, in order.

    ``digests``: the hashes of pieces that came otherwise, or in several codings.
    """

    hasher: BlobHasher
    reached: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)


class _Proof:
    def __init__(self, store: Store, view: Snapshot) -> None:
        self._view = view
        # What is proven may be undone: a false coding that is undone would prove itself.
        self._graph = Graph(view, Speed(), undo=view.journal.fixed)
        self._pool: Executor = store.pool
        self._made = store.provided  # weights that a replay has made, see ``Store.providing``
        self._recovery = Recovery(view.packs, self._graph, self._pool, self._made)
        stream = ManifestStream(store, recovery=self._recovery)
        self._specs: dict[bytes, TensorSpec] = {}  # of all that versions of the slice hold
        self._missing: dict[bytes, None] = {}
        self._received: set[bytes] = set()
        self._proven: set[bytes] = set()
        self._large: dict[bytes, _Object] = {}
        self._load = lru_cache(_LOADED)(stream.load)  # each is compared with its parent
        self._held: OrderedDict[tuple[bytes, int], memoryview] = OrderedDict()
        self._held_bytes = 0
        self._uses: Counter[_Name] = Counter()  # codings that are still to be made, by their bases
        self._codes: Counter[tuple[bytes, int]] = Counter()  # of each piece
        self._hashing = self._pool.submit(lambda: None)  # of the last piece of a large object
        self._hashed_last: memoryview | None = None  # that piece, if nothing else reads it
        self._spare: memoryview | None = None  # fresh memory costs page faults

    def run(self, parts: Sequence[Delivered]) -> ProvenSlice:
        marks: dict[CommitId, tuple[bytes, ...]] = {}
        features = frozenset[str]()
        for part in parts:
            for _, _, header in part.records:
                self._received.update(header.by_id)
        for part in parts:
            self._look_for_bases(part.records)
            for given in part.versions:
                self._look_for_version(given)
        if self._missing:
            raise Missing(self._missing)
        for part in parts:
            self._name(part)
        self._records([part.records for part in parts])
        for id_ in self._large.keys() - self._proven:  # pieces that came in another order
            self._whole(id_, self._specs[id_])
        self._large.clear()
        for given in (given for part in parts for given in part.versions):
            manifest = self._version(given)
            features |= manifest.features
            marks[given.commit.id] = self._marks(given.commit, manifest)
        return ProvenSlice(marks, features)

    # -- what is there -------------------------------------------------------------------

    def _miss(self, id_: bytes) -> None:
        if len(self._missing) < _MOST_MISSING:
            self._missing[id_] = None

    def _look(self, id_: bytes, start: int) -> bool:
        """Whether codings lead to a piece; if not, it is noted as missing."""
        is_there = is_reached(self._graph, id_, start)
        if not is_there:
            self._miss(id_)
        return is_there

    def _look_for_bases(self, records: Sequence[Placed]) -> None:
        """Notes the bases and inputs to which nothing leads."""
        members = (member for _, _, header in records for member in header.members)
        asked = dict.fromkeys((name, member.start) for member in members for name in member.needs)
        for name, start in asked:
            id_ = self._graph.resolve_prefix(name)
            if id_ is None:
                self._miss(name)
            elif id_ not in self._received:
                self._look(id_, start)

    def _look_for_version(self, given: Given) -> None:
        """Notes what a version holds and nothing leads to."""
        if self._look(given.commit.manifest, 0):
            for id_, spec in self._fresh(given, self._load(given.commit.manifest)).items():
                if id_ not in self._received:
                    all(self._look(id_, start) for start, _ in pieces(spec))

    def _fresh(self, given: Given, manifest: Manifest) -> dict[bytes, TensorSpec]:
        """The objects of a version that came, or that no parent has; parents' states are whole."""
        known = self._behind(given.commit)
        objects = manifests.objects(manifest.all_entries, given.given_up)
        return {i: s for i, s in objects.items() if i in self._received or known.get(i) != s}

    # -- what is known -------------------------------------------------------------------

    def _name(self, part: Delivered) -> None:
        """Notes the specs of an entry's objects.

        A blob's dtype and shape are part of its hash: so two specs of one id are a lie.
        """
        named = [*part.shapes.items()]
        for given in part.versions:
            manifest = self._load(given.commit.manifest)
            if given.given_up and not _is_makeable(given, manifest):
                raise DamagedData(
                    f"the weights of version {given.commit.id.short} did not come, and it has no "
                    "recipe that makes them"
                )
            named += manifests.objects(manifest.all_entries).items()
        for id_, spec in named:
            if self._specs.setdefault(id_, spec) != spec:
                raise _wrong(id_)
        for member in (member for _, _, header in part.records for member in header.members):
            if member.kind != MANIFEST and member.id not in self._specs:
                raise DamagedData(f"object {member.id.hex()[:10]} belongs to no version")

    def _kept(self, id_: CommitId) -> Manifest | None:
        """The manifest of a version whose state was kept and is whole; None if there is none."""
        placed = commits.find(self._view, id_)
        if placed is None or availability.gone(self._view, id_) is not None:
            return None
        manifest = placed[1].manifest
        return self._load(manifest) if is_reached(self._graph, manifest, 0) else None

    def _behind(self, commit: Commit) -> dict[bytes, TensorSpec]:
        """The objects that a version's parents have, which are here and proven."""
        found: dict[bytes, TensorSpec] = {}
        for id_ in commit.parents:
            marks = (mark for _, mark in self._view.state_marks(id_, weights=True))
            gone = set(availability.dropped_paths(marks).values())
            found |= manifests.objects((self._kept(id_) or manifests.EMPTY).all_entries, gone)
        return found

    def _marks(self, commit: Commit, manifest: Manifest) -> tuple[bytes, ...]:
        """The first bytes of the state of each file that the version's first parent has not."""
        parent = self._kept(commit.parents[0]) if commit.parents else None
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
        """All of a slice: what is predicted from each other, or shares a payload, is made together.

        Each coding comes after its base, in whatever order they were sent, and the base is kept
        until then. So the work grows with the codings, and not with the length of their chains.
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
                    self._held_bytes -= len(self._held.pop((id_, key[1]), b""))
        self._hashing.result()

    def _codings(self, units: Sequence[Sequence[PathStep]], *, grouped: bool) -> None:
        """Applies codings, each from its own base, and hashes what they make.

        Those of a unit are predicted from each other.
        """
        walks = [[(s, self._path(s), self._room(s.member)) for s in unit] for unit in units]
        every = [walk for unit in walks for walk in unit]
        if grouped:
            self._shared([walk for walk in every if not _has_transform(walk[1])])
        little = sum(len(out) for _, _, out in every) < _LITTLE
        code = partial(self._coded, grouped=grouped)
        if little or len(walks) == 1:  # one by its chunks, unless starting threads takes longer
            coded = [code(unit, parallel=not little) for unit in walks]
        else:
            running = [self._pool.submit(code, unit) for unit in walks]
            wait(running)
            coded = [future.result() for future in running]
        digests = [digest for unit in coded for digest in unit]
        for (step, _, out), digest in zip(every, digests, strict=True):
            self._note(step.member, out, digest)

    def _shared(self, walks: Sequence[_Walk]) -> None:
        """Applies codings that share a payload."""
        for step, path, out in walks:
            if path.origin is not None:
                origin = self._at(step.member.start)[path.origin]
                if len(origin) != len(out):
                    raise _wrong(step.member.id)
                out[:] = origin
        walk_together(self._recovery.packs, [(path, out) for _, path, out in walks], self._pool)

    def _path(self, step: PathStep) -> Path:
        """The path that ends with this very coding."""
        member = step.member
        if not member.base:
            return Path((step,), 0.0)
        id_ = self._graph.resolve_prefix(member.base)
        if id_ is None:
            raise _wrong(member.id)
        under = self._graph.path(id_, member.start, self._at(member.start))
        return Path((*under.steps, step), 0.0, under.origin)

    def _at(self, start: int) -> _At:
        return _At(self._held, self._made, start)

    def _coded(
        self, unit: Sequence[_Walk], *, grouped: bool, parallel: bool = False
    ) -> list[bytes]:
        """The hashes of what codings make; where they share a payload most of it is there."""
        left = [(path, out) for _, path, out in unit if not grouped or _has_transform(path)]
        held = self._at(unit[0][0].member.start)
        if len(left) > 1:
            with suppress(DamagedData):  # then each by itself says which is wrong
                self._recovery.walk(left, held, parallel=parallel)
                left = []
        for walk in left:
            self._recovery.walk([walk], held, parallel=parallel)
        return [self._hashed(step.member, out, parallel=parallel) for step, _, out in unit]

    def _hashed(self, member: Member, out: memoryview, *, parallel: bool) -> bytes:
        """The id of an object of one piece; nothing of a larger one, which ``_piece`` hashes."""
        if member.kind == MANIFEST:
            return Manifest.id_of(bytes(out))
        spec = self._specs[member.id]
        if member.start == 0 and len(out) == spec.nbytes:
            return blob_id(spec, out, parallel=parallel)
        if (member.start, len(out)) not in pieces(spec):
            raise _wrong(member.id)
        return b""

    def _note(self, member: Member, out: memoryview, digest: bytes) -> None:
        if member.kind == MANIFEST or len(out) == self._specs[member.id].nbytes:
            if digest != member.id:
                raise _wrong(member.id)
            self._proven.add(member.id)
        else:
            self._piece(member, self._specs[member.id], out)
        key = member.id, member.start
        if key not in self._held and self._is_needed(member):
            self._held[key] = out
            self._held_bytes += len(out)
        while self._held_bytes > _HELD and len(self._held) > 1:
            self._held_bytes -= len(self._held.popitem(last=False)[1])

    def _is_needed(self, member: Member) -> bool:
        """Whether codings that are still to be made have it as their base."""
        return self._uses[member.id[:BASE_BYTES], member.start] > 0

    def _room(self, member: Member) -> memoryview:
        """Memory for what a coding makes."""
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) == member.nbytes:
            return spare
        return _room(member)

    def _piece(self, member: Member, spec: TensorSpec, out: memoryview) -> None:
        """A piece of a larger object: all its codings agree, and all pieces make the hash."""
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
        """Runs beside the decoding of the next piece."""
        hasher.update(out)
        if ends:
            if hasher.done() != id_:
                raise _wrong(id_)
            self._proven.add(id_)

    # -- versions ------------------------------------------------------------------------

    def _version(self, given: Given) -> Manifest:
        """Every object is proven by now, or a parent's, or is recovered and hashed here."""
        manifest = self._load(given.commit.manifest)
        if manifest.root != given.commit.root:
            raise DamagedData(
                f"version {given.commit.id.short} has another Merkle root than its files"
            )
        for id_, spec in self._fresh(given, manifest).items():
            if id_ not in self._proven:
                self._whole(id_, spec)
        parents = (self._kept(parent) or manifests.EMPTY for parent in given.commit.parents)
        olds = [_views_of(entry) for parent in parents for entry in parent.all_entries]
        views = {id_: place for old in olds for id_, place in old.items()}
        for entry in manifest.all_entries:
            if entry.path not in given.given_up:
                self._check_views(entry, views)
        return manifest

    def _whole(self, id_: bytes, spec: TensorSpec) -> None:
        """Recovers an object piece by piece, and compares it with its hash."""
        large = self._large.get(id_) or _Object(BlobHasher(spec))
        again = BlobHasher(spec)
        for start, part in verify_pieces(
            id_, spec, piece_reader(self._recovery.piece, id_, spec), _wrong(id_)
        ):
            if start < large.reached:
                again.update(part)
            elif large.digests.get(start, digest := blake3(part).digest()) != digest:
                raise _wrong(id_)
        if again.done() != large.hasher.done():
            raise _wrong(id_)
        self._proven.add(id_)

    def _check_views(self, entry: FileEntry, known: dict[bytes, tuple[bytes, View]]) -> None:
        """Tensors that are views into a content: each is hashed unless it is known."""
        found = _views_of(entry)
        fresh = {id_ for id_, place in found.items() if known.get(id_) != place}
        by_content: dict[int, list[LogicalTensor]] = {}
        for tensor in entry.tensors:
            if tensor.view is not None and tensor.id in fresh:
                by_content.setdefault(tensor.content, []).append(tensor)
        for at, tensors in by_content.items():
            content = entry.contents[at]
            whole = memoryview(self._recovery.blob(content.id, content.spec))
            for tensor in tensors:
                assert tensor.view is not None
                if blob_id(tensor.spec, extract(whole, tensor.spec, tensor.view)) != tensor.id:
                    raise _wrong(tensor.id)
        known.update(found)


class _At(Struct, frozen=True):
    """The objects of which the piece at ``start`` is in memory."""

    held: Mapping[tuple[bytes, int], memoryview]
    made: Mapping[bytes, memoryview]
    start: int

    def __contains__(self, id_: object) -> bool:
        return (id_, self.start) in self.held or id_ in self.made

    def __getitem__(self, id_: bytes) -> memoryview:
        held = self.held.get((id_, self.start))
        return self.made[id_][self.start : self.start + PIECE] if held is None else held


def _is_makeable(given: Given, manifest: Manifest) -> bool:
    carried = RECIPE in given.commit.attached and ATTACHED + RECIPE in manifest.attached_by_path
    return carried and given.given_up <= manifest.by_path.keys()


def _has_transform(path: Path) -> bool:
    return any(step.member.coding.transform for step in path.steps)


def _views_of(entry: FileEntry) -> dict[bytes, tuple[bytes, View]]:
    return {
        tensor.id: (entry.contents[tensor.content].id, tensor.view)
        for tensor in entry.tensors
        if tensor.view is not None
    }


_Name = tuple[bytes, int]
"""First bytes of an object's id, and where one of its pieces begins."""


class _Together(Struct, frozen=True):
    """Codings that are made together; ``grouped``: they share a payload."""

    units: list[list[PathStep]]
    makes: set[_Name]
    needs: set[_Name]
    nbytes: int
    start: int
    grouped: bool = False


def _node(units: list[list[PathStep]], *, grouped: bool = False) -> _Together:
    members = [step.member for unit in units for step in unit]
    makes = {(member.id[:BASE_BYTES], member.start) for member in members}
    needs = {(name, member.start) for member in members for name in member.needs}
    size, start = sum(member.nbytes for member in members), min(m.start for m in members)
    return _Together(units, makes, needs - makes, size, start=start, grouped=grouped)


def _nodes(graph: Graph, records: Iterable[Placed]) -> Iterator[_Together]:
    """The codings of an entry. Raises DamagedData for a group of more than any has."""
    predicted: list[PathStep] = []
    for pack, at, header in records:
        joint = header.members[0].coding.joint if header.group else 0
        if header.group and header.raw_bytes > (MOST_JOINT if joint else MOST_GROUPED):
            raise DamagedData("a record claims more bytes than any has")
        steps = [PathStep(pack, at, header, member, reverse=False) for member in header.members]
        if header.group:
            for batch in _batches(steps, joint):
                yield _node([[step] for step in batch], grouped=True)
        elif any(step.member.coding.predicted for step in steps):
            predicted += steps
        else:
            yield from (_node([[step]]) for step in steps)
    yield from (_node([unit]) for unit in _units(graph, predicted))


def _after_bases(nodes: Sequence[_Together]) -> Iterator[list[_Together]]:
    """Batches of nodes, each node after those that make what it needs; first pieces first.

    Depth first, so that few pieces wait for others. Where nodes need each other any comes first.
    """
    made = set[_Name]().union(*(node.makes for node in nodes))
    waiting: dict[_Name, list[int]] = {}
    lacks = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for key in node.needs & made:
            waiting.setdefault(key, []).append(i)
            lacks[i] += 1
    order = sorted(range(len(nodes)), key=lambda i: nodes[i].start)
    left, ready = set(order), [i for i in reversed(order) if not lacks[i]]
    for first in order:
        if not ready and first in left:  # it needs what needs it
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
            freed = [j for i in batch for key in nodes[i].makes for j in waiting.pop(key, ())]
            for j in reversed(freed):
                lacks[j] -= 1
                if not lacks[j] and j in left:
                    ready.append(j)


_Walk = tuple[PathStep, Path, memoryview]
"""A coding, the path that ends with it, and where what it makes goes."""


def _units(graph: Graph, steps: Iterable[PathStep]) -> Iterator[list[PathStep]]:
    """Codings of which one is predicted from what others make.

    Each of several codings of one piece, and of what would be too much, is alone.
    """
    by_start: dict[int, list[PathStep]] = {}
    for step in steps:
        by_start.setdefault(step.member.start, []).append(step)
    for there in by_start.values():
        for numbers in related(graph, [Path((step,), 0.0) for step in there]):
            unit = [there[i] for i in numbers]
            ids = {step.member.id for step in unit}
            size = sum(step.member.nbytes for step in unit)
            fits = size <= _MOST_TOGETHER and len(ids) == len(unit)
            yield from [unit] if fits else ([step] for step in unit)


def _batches(steps: Sequence[PathStep], joint: int) -> Iterator[Sequence[PathStep]]:
    """Members of a group that are made together; of a super-step those of one time."""
    if not joint:
        return in_batches(steps, lambda step: step.member.nbytes, _AT_ONCE)
    size = len(steps) // joint or 1
    return (steps[at : at + size] for at in range(0, len(steps), size))


def _room(member: Member) -> memoryview:
    most = MAX_MANIFEST if member.kind == MANIFEST else max(PIECE, MAX_SKELETON)
    if member.nbytes > most or (member.start and member.nbytes > PIECE):
        raise DamagedData(f"object {member.id.hex()[:10]} claims more bytes than any has")
    return np.empty(member.nbytes, np.uint8).data


def _wrong(id_: bytes) -> DamagedData:
    return DamagedData(
        f"object {id_.hex()[:10]} was sent in a form that does not lead to it: nothing was taken",
        hint="run 'mvc fsck --full' at the side that sent it",
    )
