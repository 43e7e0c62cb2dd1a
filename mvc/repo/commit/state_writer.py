"""Stores a parsed file: hashes its contents and encodes those that the repository lacks.

Each content is read once, and the bytes that are hashed are encoded. A content larger than a
piece is read twice; if the two readings differ, SourceChanged is raised.

A new content is encoded against, in this order: the master in the same commit of which it is a
rounded copy (``PrecisionCopies``), the last version in memory (``BaseCache``), a tensor of the
parent (``BaseFinder``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import numpy as np
from blake3 import blake3
from msgspec import Struct, field

from mvc.adapters.parsed import ParsedFile
from mvc.codecs import cast
from mvc.errors import EncodingFailed, SourceChanged
from mvc.ids import BlobId
from mvc.io.process import without_collector
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, blob_id, zero_blob_id, zeros
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import DTYPES, TensorSpec, shared_spec
from mvc.repo.commit.base_cache import BaseCache, tensor_changed
from mvc.repo.content.hashing import entry_from, hash_content, pieces, whole
from mvc.repo.content.predecessors import BaseFinder, StoredBase, content_names
from mvc.repo.context import Context
from mvc.store.graph.search import Link
from mvc.store.packs.arena import Arena
from mvc.store.packs.records import BLOB
from mvc.store.writing.full_or_delta import Base, Policy
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter
from mvc.types import Bytes, Progress

__all__ = ["BaseCache", "PrecisionCopies", "StateWriter"]

_ARENA = 2 * PIECE
_MANY = 10_000  # contents of a file
_SAMPLE = 4096  # elements that must agree between a master and its copy
_SMALL = 512  # bytes of a tensor: copied before it is hashed, which is quicker than hashing twice
_TINY = 64  # bytes of a tensor for which the name of a master is no saving
_WIDE = ("float32", "float64")


class StateWriter:
    """Stores the files of one commit. ``flush`` ends it; nothing is visible before publishing."""

    def __init__(
        self, context: Context, packs: PackWriter, policy: Policy, parent: Manifest,
        progress: Progress | None = None, features: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """``features``: those of the format that steps of contents need."""
        store = context.store
        self._new = Arena(_ARENA)
        self._old = Arena(_ARENA)
        self._graph = store.graph
        self._pool = store.pool
        self._packs = packs
        self._recovery = store.recovery
        store.require(features | policy.pipeline.features)
        self.writer = ObjectWriter(
            store.graph, packs, store.pool, policy, store.arenas, self._older
        )
        self._parent = parent
        self._finder = BaseFinder(parent, self._recovery, self._old, store.graph)
        self._policy = policy
        self._progress = progress
        self._last: BaseCache | None = None  # of the file that is being stored
        self._name = ""  # of the tensor that is
        self._older_base: StoredBase | None = None  # of the tensor that is coded
        self._since_flush = 0
        self.copies = PrecisionCopies()
        self._borrowed: dict[int, tuple[str, BlobId]] = {}  # names and ids of the caller's memory
        self._unproven: list[int] = []  # those of it that no cache holds a copy of
        self._masters: list[tuple[_Master, str]] = []  # that copies were encoded against
        self.raw_bytes = 0

    def keep(self, parsed: ParsedFile, path: str, last: BaseCache | None = None) -> FileEntry:
        """Stores one file and returns its entry. ``last`` caches the previous version."""
        with without_collector() if len(parsed.contents) > _MANY else nullcontext():
            return self._keep(parsed, path, last)

    def _keep(self, parsed: ParsedFile, path: str, last: BaseCache | None) -> FileEntry:
        self._last = last
        if last is not None:
            last.layout = self._policy.layout
        names = content_names(parsed.contents, parsed.tensors)
        specs = [content.spec for content in parsed.contents]
        ids: dict[int, BlobId] = {}
        total = sum(spec.nbytes for spec in specs)
        try:
            for i in _in_turn(specs, total):
                ids[i] = self._content(parsed, i, path, names[i], last)
                self.copies.add(parsed, i, ids[i])
                self.raw_bytes += specs[i].nbytes
                if self._progress is not None:
                    self._progress(self.raw_bytes, max(total, self.raw_bytes), path)
            self._flush()
        except EncodingFailed:
            self._prove_borrowed(parsed, self._borrowed)  # if one was modified, that is why
            raise
        self._prove_borrowed(parsed, self._unproven)
        if last is not None:
            pushed = self._pool.submit(self._packs.push)  # writes while this thread hashes
            try:
                last.settle()
            finally:
                pushed.result()
        skeleton, in_order = parsed.skeleton(), [ids[i] for i in range(len(ids))]
        entry = entry_from(parsed, path, in_order, skeleton, lambda i: whole(parsed, i))
        self._keep_skeleton(entry, skeleton)
        return entry

    def _prove_borrowed(self, parsed: ParsedFile, contents: Iterable[int]) -> None:
        """Rehash borrowed buffers; raise SourceChanged if the caller modified one meanwhile.

        So are the masters that copies were encoded against: their memory is the caller's.
        """
        for master, path in self._masters:
            if blob_id(master.spec, master.read(0, master.spec.nbytes), parallel=True) != master.id:
                raise tensor_changed(path)
        self._masters.clear()
        for i in contents:
            name, id_ = self._borrowed[i]
            data = parsed.borrow(i)
            if data is None or blob_id(parsed.contents[i].spec, data, parallel=True) != id_:
                raise tensor_changed(name)
        self._borrowed.clear()
        self._unproven.clear()

    def _content(
        self, parsed: ParsedFile, i: int, path: str, name: str, last: BaseCache | None
    ) -> BlobId:
        spec, self._name = parsed.contents[i].spec, name
        borrowed = parsed.borrow(i)
        if borrowed is None and last is None and parsed.is_hole(i, 0, spec.nbytes):
            return self._hole(spec)
        if borrowed is None and spec.nbytes > PIECE:
            return self._large(parsed, i, path, name)
        data = borrowed if borrowed is not None else self._read(parsed, i, spec.nbytes)
        small = borrowed is not None and spec.nbytes <= _SMALL and not parsed.ids
        copied = bytearray(data) if small else None
        if copied is not None:
            borrowed, data = None, memoryview(copied)
        id_ = parsed.ids[i] if parsed.ids else blob_id(spec, data, parallel=True)
        if not self._wanted(id_):
            if last is not None:
                last.unchanged(name, id_, spec, data)
            return id_
        master = self.copies.find(spec, data)
        if master is not None and master.parsed.borrow(master.content) is not None:
            self._masters.append((master, path))
        base: Base | None = master
        base = base or (last.base(name, spec) if last is not None else None)
        base = base or self._finder.find(path, name, spec)
        memory = last.replace(name, id_, spec, copied) if last is not None else None
        if borrowed is not None:
            self._borrowed[i] = name, id_
            if memory is None:
                self._unproven.append(i)
        self.writer.begin(id_)
        made = parsed.steps.get(i) if parsed.steps and master is None else None
        recovered = made is not None or isinstance(base, StoredBase)
        for start, length in pieces(spec):
            if borrowed is not None:  # then only what is recovered takes room
                self._room(length if recovered else 0)
            part = data[start : start + length]
            if made is None:
                self.writer.put(id_, spec, start, part, base, memory)
                continue
            stored = StoredBase(made.base, spec, self._recovery, self._old, self._graph)
            step = made.part(start, length)
            self.writer.put_step(id_, spec, start, part, stored, step, made.coding, memory)
        return id_

    def _wanted(self, id_: BlobId) -> bool:
        """Whether to write the blob: it is new, or a reset point needs it in full."""
        if not self.writer.holds(id_):
            return True
        return self._policy.reset and not self.writer.added(id_) and not self._is_full(id_)

    def _hole(self, spec: TensorSpec) -> BlobId:
        """Stores a content that is a hole of its file, without reading it."""
        id_ = zero_blob_id(spec)
        if self._wanted(id_):
            self.writer.begin(id_)
            for start, length in pieces(spec):
                self.writer.put_zeros(id_, spec, start, length)
        return id_

    def _large(self, parsed: ParsedFile, i: int, path: str, name: str) -> BlobId:
        """Reads the content twice, to compute the id and to encode; hashes both readings."""
        spec = parsed.contents[i].spec
        self._room(PIECE)
        id_ = hash_content(parsed, i, self._new.take(PIECE))
        if not self._wanted(id_):
            return id_
        self.writer.begin(id_)
        base = self._finder.find(path, name, spec)
        hasher = BlobHasher(spec, parallel=True)
        for start, length in pieces(spec):
            if parsed.is_hole(i, start, length):
                hasher.update(zeros(length))
                self.writer.put_zeros(id_, spec, start, length)
                continue
            part = self._read(parsed, i, length, start)
            hasher.update(part)
            self.writer.put(id_, spec, start, part, base)
        if hasher.done() != id_:
            raise SourceChanged(
                f"{path} changed while it was being read",
                hint="wait until whatever writes it is done, then commit again",
            )
        return id_

    def _read(self, parsed: ParsedFile, i: int, length: int, start: int = 0) -> memoryview:
        self._room(length)
        part = self._new.take(length)
        parsed.read(i, start, part)
        return part

    def _room(self, length: int) -> None:
        """Makes room in the buffers; waits until their contents are encoded."""
        if self._since_flush + length > PIECE:
            self._flush()
        self._since_flush += length

    def _flush(self) -> None:
        self.writer.drain()
        self._new.reset()
        self._old.reset()
        self._since_flush = 0

    def _is_full(self, id_: BlobId) -> bool:
        """Whether every piece has an undamaged full record; otherwise a reset point rewrites it."""
        full = [step for step in self._graph.codings(id_) if not step.member.base]
        starts = {step.member.start for step in self._graph.codings(id_)}
        return starts == {step.member.start for step in full if self._recovery.is_sound(step)}

    def _keep_skeleton(self, entry: FileEntry, skeleton: bytes) -> None:
        if entry.skeleton is None or self.writer.holds(entry.skeleton):
            return
        base = None
        old = self._parent.by_path.get(entry.path)
        if old is not None and old.skeleton is not None:
            spec = TensorSpec("raw", (old.skeleton_size,))
            base = StoredBase(old.skeleton, spec, self._recovery, self._old, self._graph)
        if len(skeleton) <= PIECE:
            known = None
            if base is not None:
                known = (base.id, bytes(self._recovery.blob(base.id, base.spec)))
            self.writer.put_bytes(BLOB, entry.skeleton, skeleton, known)
            return
        # A pickle of long lists; stored in pieces like a tensor.
        spec = TensorSpec("raw", (len(skeleton),))
        for start, length in pieces(spec):
            part = memoryview(skeleton)[start : start + length]
            self._room(length)
            self.writer.put(entry.skeleton, spec, start, part, base)

    def _older(self, link: Link, start: int, spec: TensorSpec | None) -> memoryview:
        """A piece of an object that leads to a base: from memory, or recovered and verified."""
        if spec is None:
            return memoryview(self._recovery.manifest(link.id))
        if self._last is not None:
            held = self._last.older(self._name, link, start)
            if held is not None:
                return held
        self._since_flush += link.nbytes
        if self._older_base is None or self._older_base.id != link.id or not start:
            base = StoredBase(BlobId(link.id), spec, self._recovery, self._old)
            self._older_base = None
            if spec.nbytes > PIECE:
                base.check()  # it may have had another shape, which no record says
            self._older_base = base
        return self._older_base.piece(start)


def _in_turn(specs: Sequence[TensorSpec], total: int) -> list[int]:
    """The contents in the order in which they are stored.

    Masters come before their copies in lower precision. Where all are encoded before anything is
    waited for, the largest come first: they are encoded while others are hashed.
    """
    at_once = total <= PIECE
    return sorted(
        range(len(specs)),
        key=lambda i: (-DTYPES[specs[i].dtype].itemsize, -specs[i].nbytes if at_once else 0),
    )


class _Master(Struct, frozen=True):
    """A tensor of this commit whose file is still open: a base for its copies."""

    id: BlobId
    spec: TensorSpec
    parsed: ParsedFile
    content: int

    def chain(self, start: int) -> tuple[Link, ...]:  # noqa: ARG002
        """Nothing: it is stored by this commit."""
        return ()

    def piece(self, start: int) -> memoryview:
        """The whole tensor; it is not larger than a piece."""
        return self.read(start, self.spec.nbytes - start)

    def read(self, start: int, length: int) -> memoryview:
        borrowed = self.parsed.borrow(self.content)
        if borrowed is not None:
            return borrowed[start : start + length]
        out = np.empty(length, np.uint8).data
        self.parsed.read(self.content, start, out)
        return out


class PrecisionCopies:
    """Finds the master of a copy in lower precision: a bf16 tensor that is a rounded fp32 tensor.

    Both are new in the same commit, so the parent has no base for the copy. The delta against
    the rounded master is zeros, which take almost no space. The first elements of each master
    are rounded once per narrower dtype and indexed by hash, so that a search is one look-up.
    """

    def __init__(self) -> None:
        self._masters: dict[TensorSpec, list[_Master]] = {}
        self._rounded: dict[tuple[TensorSpec, str], _Rounded] = {}

    def add(self, parsed: ParsedFile, content: int, id_: BlobId) -> None:
        spec = parsed.contents[content].spec
        if spec.dtype in _WIDE and _TINY <= spec.nbytes <= PIECE:
            self._masters.setdefault(spec, []).append(_Master(id_, spec, parsed, content))

    def forget(self, parsed: ParsedFile) -> None:
        """Drops the tensors of a file, before it is closed."""
        for spec, masters in list(self._masters.items()):
            self._masters[spec] = [m for m in masters if m.parsed is not parsed]
        self._rounded.clear()

    def find(self, spec: TensorSpec, data: memoryview) -> _Master | None:
        """The first master whose first elements, rounded, equal those of ``data``; None if none."""
        if spec.nbytes < _TINY // 2:
            return None
        for wide in _WIDE:
            if cast.supported(wide, spec.dtype):
                masters = self._masters.get(shared_spec(wide, spec.shape))
                if masters and (found := self._rounded_to(spec, masters, data)):
                    return found
        return None

    def _rounded_to(
        self, spec: TensorSpec, masters: list[_Master], data: memoryview
    ) -> _Master | None:
        rounded = self._rounded.setdefault((masters[0].spec, spec.dtype), _Rounded())
        count = min(_SAMPLE, spec.elements)
        for master in masters[rounded.seen :]:
            sample = master.read(0, count * DTYPES[master.spec.dtype].itemsize)
            narrow = cast.cast(sample, master.spec.dtype, spec.dtype)
            rounded.by_hash.setdefault(_sample_hash(narrow), master)
        rounded.seen = len(masters)
        return rounded.by_hash.get(_sample_hash(data[: count * DTYPES[spec.dtype].itemsize]))


class _Rounded(Struct):
    """Masters of one spec by the hash of their beginning, rounded to one dtype."""

    by_hash: dict[bytes, _Master] = field(default_factory=dict)
    seen: int = 0


def _sample_hash(sample: Bytes) -> bytes:
    return blake3(sample).digest(16)
