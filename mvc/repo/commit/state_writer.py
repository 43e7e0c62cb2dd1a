"""Stores a parsed file: hashes its contents and encodes those that the repository lacks.

Each content is read once, and the bytes that are hashed are encoded. A content larger than a
piece is read twice; if the two readings differ, SourceChanged is raised.
"""

from __future__ import annotations

from contextlib import nullcontext

from mvc.adapters.parsed import ParsedFile
from mvc.errors import SourceChanged
from mvc.ids import BlobId
from mvc.io.process import without_collector
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, blob_id
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.model.zeros import zero_blob_id, zeros
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.precision_copies import PrecisionCopies
from mvc.repo.content.bases import BaseFinder, StoredBase, content_names
from mvc.repo.content.hashing import entry_from, pieces
from mvc.repo.context import Context, Progress
from mvc.store.graph.search import Link
from mvc.store.packs.arena import Arena
from mvc.store.packs.records import BLOB
from mvc.store.writing.choose import Base, Policy
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pack_writer import PackWriter

__all__ = ["StateWriter"]

_ARENA = 2 * PIECE
_MANY = 10_000  # contents of a file


class StateWriter:
    """Stores the files of one commit. ``flush`` ends it; nothing is visible before publishing."""

    def __init__(
        self, context: Context, packs: PackWriter, policy: Policy, parent: Manifest,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        store = context.store
        self._new = Arena(_ARENA)
        self._old = Arena(_ARENA)
        self._graph = store.graph
        self._pool = store.pool
        self._packs = packs
        self._recovery = store.recovery
        store.require(policy.pipeline.features)
        self.writer = ObjectWriter(
            store.graph, packs, store.pool, policy, store.arenas, self._older
        )
        self._parent = parent
        self._finder = BaseFinder(parent, self._recovery, self._old, store.graph)
        self._policy = policy
        self._progress = progress
        self._since_flush = 0
        self._copies = PrecisionCopies()
        self._unproven: dict[int, str] = {}  # encoded from borrowed buffers
        self.raw_bytes = 0

    def keep(self, parsed: ParsedFile, path: str, last: BaseCache | None = None) -> FileEntry:
        """Stores one file and returns its entry. ``last`` caches the previous version."""
        with without_collector() if len(parsed.contents) > _MANY else nullcontext():
            return self._keep(parsed, path, last)

    def _keep(self, parsed: ParsedFile, path: str, last: BaseCache | None) -> FileEntry:
        names = content_names(parsed.contents, parsed.tensors)
        ids: dict[int, BlobId] = {}
        total = sum(c.spec.nbytes for c in parsed.contents)
        for i in _widest_first(parsed):
            ids[i] = self._content(parsed, i, path, names[i], last)
            self._copies.add(parsed, i, ids[i])
            self.raw_bytes += parsed.contents[i].spec.nbytes
            if self._progress is not None:
                self._progress(self.raw_bytes, max(total, self.raw_bytes), path)
        self._flush()
        self._prove_borrowed(parsed, ids)
        if last is not None:
            pushed = self._pool.submit(self._packs.push)  # writes while this thread hashes
            try:
                last.settle()
            finally:
                pushed.result()
        skeleton = parsed.skeleton()
        entry = entry_from(
            parsed,
            path,
            [ids[i] for i in range(len(ids))],
            skeleton,
            lambda i: self._whole(parsed, i),
        )
        self._keep_skeleton(entry, skeleton)
        return entry

    def _prove_borrowed(self, parsed: ParsedFile, ids: dict[int, BlobId]) -> None:
        """Rehash borrowed buffers; raise SourceChanged if the caller modified one meanwhile."""
        for i, name in self._unproven.items():
            data = parsed.borrow(i)
            if data is None or blob_id(parsed.contents[i].spec, data, parallel=True) != ids[i]:
                raise SourceChanged(
                    f"tensor {name!r} changed while it was being committed",
                    hint="do not train in another thread while commit runs",
                )
        self._unproven.clear()

    def forget(self, parsed: ParsedFile) -> None:
        """Drops the tensors of a file as bases of copies, before the file is closed."""
        self._copies.forget(parsed)

    def forget_all(self) -> None:
        """Drops the tensors of all files, once they are closed."""
        self._copies = PrecisionCopies()

    def _content(
        self, parsed: ParsedFile, i: int, path: str, name: str, last: BaseCache | None
    ) -> BlobId:
        spec = parsed.contents[i].spec
        borrowed = parsed.borrow(i)
        if borrowed is None and last is None and parsed.is_hole(i, 0, spec.nbytes):
            return self._hole(spec)
        if borrowed is None and spec.nbytes > PIECE:
            return self._large(parsed, i, path, name)
        data = borrowed if borrowed is not None else self._read(parsed, i, spec.nbytes)
        id_ = blob_id(spec, data, parallel=True)
        if not self._wanted(id_):
            if last is not None:
                last.unchanged(name, id_, spec, data)
            return id_
        kept = last.base(name, spec) if last is not None else None
        base: Base | None = self._copies.find(spec, data)
        base = base or kept or self._finder.find(path, name, spec)
        memory = last.replace(name, id_, spec) if last else None
        if borrowed is not None and last is None:
            self._unproven[i] = name
        self.writer.begin(id_)
        for start, length in pieces(spec):
            if borrowed is not None:
                self._room(length)
            part = data[start : start + length]
            self.writer.put(id_, spec, start, part, base, memory)
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
        id_ = self._hash(parsed, i, spec)
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

    def _hash(self, parsed: ParsedFile, i: int, spec: TensorSpec) -> BlobId:
        hasher = BlobHasher(spec, parallel=True)
        for start, length in pieces(spec):
            hole = parsed.is_hole(i, start, length)
            hasher.update(zeros(length) if hole else self._read(parsed, i, length, start))
        return hasher.done()

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

    def _whole(self, parsed: ParsedFile, i: int) -> memoryview:
        borrowed = parsed.borrow(i)
        if borrowed is not None:
            return borrowed
        out = memoryview(bytearray(parsed.contents[i].spec.nbytes))
        parsed.read(i, 0, out)
        return out

    def _keep_skeleton(self, entry: FileEntry, skeleton: bytes) -> None:
        if entry.skeleton is None or self.writer.holds(entry.skeleton):
            return
        base = None
        old = self._parent.by_path.get(entry.path)
        if old is not None and old.skeleton is not None:
            spec = TensorSpec("raw", (old.skeleton_size,))
            base = StoredBase(old.skeleton, spec, self._recovery, self._old, self._graph)
        if len(skeleton) <= PIECE:
            whole = None if base is None else bytes(self._recovery.blob(base.id, base.spec))
            known = None if base is None or whole is None else (base.id, whole)
            self.writer.put_bytes(BLOB, entry.skeleton, skeleton, known)
            return
        # A pickle of long lists; stored in pieces like a tensor.
        spec = TensorSpec("raw", (len(skeleton),))
        for start, length in pieces(spec):
            part = memoryview(skeleton)[start : start + length]
            self._room(length)
            self.writer.put(entry.skeleton, spec, start, part, base)

    def _older(self, link: Link, start: int) -> memoryview:
        """Recovers a piece of an object that leads to a base."""
        out = self._old.take(link.nbytes)
        self._recovery.piece(link.id, start, out)
        return out


def _widest_first(parsed: ParsedFile) -> list[int]:
    """Positions of the contents, widest dtype first: masters before their copies."""
    sizes = [DTYPES[content.spec.dtype].itemsize for content in parsed.contents]
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])
