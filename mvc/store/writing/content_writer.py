"""Stores the contents of files: hashes them and encodes those that the repository lacks.

Each content is read once, and the bytes that are hashed are encoded. A content larger than a
piece is read twice; if the two readings differ, SourceChanged is raised.

A new content is encoded against, in this order: the master in the same commit of which it is a
rounded copy (``PrecisionCopies``), the last version in memory (``BaseCache``), the stored content
that the caller has chosen (``Origin``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from mvc.errors import EncodingFailed, SourceChanged
from mvc.ids import BlobId
from mvc.io.process import without_collector
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, blob_id, pieces, zero_blob_id, zeros
from mvc.model.manifest import Content, FileEntry
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.store.packs.arena import Arena
from mvc.store.packs.records import BLOB
from mvc.store.writing.base_cache import BaseCache, tensor_changed
from mvc.store.writing.bases import Base
from mvc.store.writing.object_writer import ObjectWriter
from mvc.store.writing.pieces import Piece
from mvc.store.writing.precision_copies import Master, PrecisionCopies
from mvc.types import Progress

if TYPE_CHECKING:
    from mvc.adapters.parsed import ParsedFile


_MANY = 10_000  # contents of a file
_SMALL = 512  # bytes of a tensor: copied before it is hashed, which is quicker than hashing twice


class Origin(NamedTuple):
    """A content's name, and the stored content that it is probably a later state of."""

    name: str
    base: Content | None


class ContentWriter:
    """Stores files through ``objects``, whose ``flush`` ends it. Not thread-safe."""

    def __init__(self, objects: ObjectWriter, progress: Progress | None = None) -> None:
        self.objects = objects
        self.raw_bytes = 0
        self._progress = progress
        self._copies = PrecisionCopies()
        self._new = Arena(2 * PIECE)  # what is read, until it is encoded

    def put(
        self,
        file: ParsedFile,
        path: str,
        origins: Sequence[Origin],
        last: BaseCache | None = None,
    ) -> list[BlobId]:
        """Stores every content of a file; returns their ids.

        ``last`` has the file's previous version in memory, and then this one. Raises
        SourceChanged.
        """
        storing = _Storing(file, path, last)
        specs = [content.spec for content in file.contents]
        total, ids = sum(spec.nbytes for spec in specs), dict[int, BlobId]()
        with without_collector() if len(specs) > _MANY else nullcontext():
            try:
                for i in _in_turn(specs, total):
                    ids[i] = self._content(storing, i, origins[i])
                    self._copies.add(file, i, ids[i])
                    self.raw_bytes += specs[i].nbytes
                    if self._progress is not None:
                        self._progress(self.raw_bytes, max(total, self.raw_bytes), path)
                self._drain()
            except EncodingFailed:
                storing.prove(storing.borrowed)  # if one was modified, that is why
                raise
            storing.prove(storing.uncopied)
            if last is not None:
                pushed = self.objects.push()  # writes while this thread hashes
                try:
                    last.settle()
                finally:
                    pushed.result()
        return [ids[i] for i in range(len(ids))]

    def put_skeleton(self, id_: BlobId, data: bytes, old: FileEntry | None) -> None:
        """Stores what a file has outside its contents; ``old`` is the file of the parent."""
        objects, spec = self.objects, TensorSpec("raw", (len(data),))
        if objects.holds(id_):
            return
        base = None
        if old is not None and old.skeleton is not None:
            base = objects.stored(old.skeleton, TensorSpec("raw", (old.skeleton_size,)))
        if len(data) <= PIECE:
            known = None if base is None else (base.id, objects.recovered(base.id, base.spec))
            objects.put_bytes(BLOB, id_, data, known)
            return
        # A pickle of long lists; stored in pieces like a tensor.
        for start, length in pieces(spec):
            self._make_room(length)
            part = memoryview(data)[start : start + length]
            objects.put(Piece(id_, spec, start, part), base)

    def forget(self, file: ParsedFile) -> None:
        """Codes nothing against the file any more: it will be closed."""
        self._copies.forget(file)

    def _content(self, storing: _Storing, i: int, origin: Origin) -> BlobId:
        file, last = storing.file, storing.last
        spec, borrowed = file.contents[i].spec, file.borrow(i)
        if borrowed is None and last is None and file.is_hole(i, 0, spec.nbytes):
            return self._hole(spec)
        if borrowed is None and spec.nbytes > PIECE:
            return self._large(storing, i, origin)
        data = borrowed if borrowed is not None else self._read(file, i, spec.nbytes)
        small = borrowed is not None and spec.nbytes <= _SMALL and not file.ids
        copied = bytearray(data) if small else None
        if copied is not None:
            borrowed, data = None, memoryview(copied)
        id_ = file.ids[i] if file.ids else blob_id(spec, data, parallel=True)
        if not self.objects.wants(id_):
            if last is not None:
                last.unchanged(origin.name, id_, spec, data)
            return id_
        master, base = self._base(storing, origin, spec, data)
        kept = last.replace(origin.name, id_, spec, copied) if last is not None else None
        if borrowed is not None:
            storing.borrowed[i] = origin.name, id_
            if kept is None:
                storing.uncopied.append(i)
        self.objects.begin(id_)
        step = file.steps.get(i) if file.steps and master is None else None
        for start, length in pieces(spec):
            if borrowed is not None:
                self._make_room(length)
            piece = Piece(id_, spec, start, data[start : start + length])
            if step is None:
                self.objects.put(piece, base, kept)
            else:
                self.objects.put_step(piece, step, kept)
        return id_

    def _base(
        self, storing: _Storing, origin: Origin, spec: TensorSpec, data: memoryview
    ) -> tuple[Master | None, Base | None]:
        """The master of which a content is a copy, and the base: the master, if there is one."""
        master = self._copies.find(spec, data)
        if master is not None:
            if master.file.borrow(master.content) is not None:
                storing.masters.append(master)
            return master, master
        held = storing.last.base(origin.name, spec) if storing.last is not None else None
        return None, held or self._stored(origin)

    def _stored(self, origin: Origin) -> Base | None:
        base = origin.base
        return None if base is None else self.objects.stored(base.id, base.spec)

    def _hole(self, spec: TensorSpec) -> BlobId:
        """Stores a content that is a hole of its file, without reading it."""
        id_ = zero_blob_id(spec)
        if self.objects.wants(id_):
            self.objects.begin(id_)
            for start, length in pieces(spec):
                self.objects.put_zeros(Piece(id_, spec, start, zeros(length)))
        return id_

    def _large(self, storing: _Storing, i: int, origin: Origin) -> BlobId:
        """Reads the content twice, to compute the id and to encode; hashes both readings."""
        file = storing.file
        spec = file.contents[i].spec
        self._make_room(PIECE)
        id_ = file.content_id(i, self._new.take(PIECE))
        if not self.objects.wants(id_):
            return id_
        self.objects.begin(id_)
        base, hasher = self._stored(origin), BlobHasher(spec, parallel=True)
        for start, length in pieces(spec):
            if file.is_hole(i, start, length):
                part = zeros(length)
                self.objects.put_zeros(Piece(id_, spec, start, part))
            else:
                part = self._read(file, i, length, start)
                self.objects.put(Piece(id_, spec, start, part), base)
            hasher.update(part)
        if hasher.done() != id_:
            raise SourceChanged(
                f"{storing.path} changed while it was being read",
                hint="wait until whatever writes it is done, then commit again",
            )
        return id_

    def _read(self, file: ParsedFile, i: int, length: int, start: int = 0) -> memoryview:
        self._make_room(length)
        part = self._new.take(length)
        file.read(i, start, part)
        return part

    def _make_room(self, length: int) -> None:
        """Waits until the buffers' contents are encoded, if there is no room in one of them."""
        if max(self._new.used, self.objects.held) + length > PIECE:
            self._drain()

    def _drain(self) -> None:
        self.objects.drain()
        self._new.reset()


class _Storing(Struct):
    """A file that is being stored, with the memory of the caller's that must not change.

    ``borrowed``: names and ids of the contents that lie in it; ``uncopied``: those of them that no
    cache holds a copy of. ``masters``: what copies were encoded against.
    """

    file: ParsedFile
    path: str
    last: BaseCache | None
    borrowed: dict[int, tuple[str, BlobId]] = field(default_factory=dict)
    uncopied: list[int] = field(default_factory=list)
    masters: list[Master] = field(default_factory=list)

    def prove(self, contents: Iterable[int]) -> None:
        """Hashes masters and these contents again; SourceChanged if one was modified."""
        for master in self.masters:
            if master.changed():
                raise tensor_changed(self.path)
        for i in contents:
            name, id_ = self.borrowed[i]
            data = self.file.borrow(i)
            spec = self.file.contents[i].spec
            if data is None or blob_id(spec, data, parallel=True) != id_:
                raise tensor_changed(name)


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
