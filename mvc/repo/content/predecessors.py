"""Finds the tensor of the parent version that a new one is a later state of.

Which earlier version of it is then the base of the delta: ``mvc.store.writing.object_writer``.

Searched in this order: the tensor of the same name in the parent's file of the same path; one
whose name differs only in a wrapper's prefix; one of the same dtype, shape and position; the
same in the parent's other files. Masters of copies in lower precision:
``mvc.repo.commit.state_writer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Protocol

import numpy as np
from msgspec import Struct

from mvc.codecs import cast
from mvc.errors import DamagedData, EncodingFailed, MvcError
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher
from mvc.model.manifest import Content, FileEntry, Manifest
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.content.compare import bare_name
from mvc.repo.content.hashing import verify_pieces
from mvc.store.graph.search import Graph, Link, Path
from mvc.store.packs.arena import Arena

__all__ = ["BaseFinder", "Recovers", "StoredBase", "content_names"]


class Recovers(Protocol):
    """Recovers a blob's pieces, as ``mvc.store.recovery.recover.Recovery`` does."""

    def piece(self, id_: bytes, start: int, out: memoryview) -> Path: ...


class _Placed(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def content(self) -> int: ...


def content_names(contents: Sequence[object], tensors: Sequence[_Placed]) -> list[str]:
    """A name for each content: its first tensor's key, or its position among the raw contents."""
    names: dict[int, str] = {}
    for tensor in tensors:
        names.setdefault(tensor.content, tensor.key)
    raw = count()
    return [names[i] if i in names else f"\0raw{next(raw)}" for i in range(len(contents))]


class StoredBase(Struct):
    """A stored blob as a base; its pieces are recovered when needed, first to last.

    Without ``graph`` it is taken as it is, whatever leads to it.
    """

    id: BlobId
    spec: TensorSpec
    recovery: Recovers
    arena: Arena
    graph: Graph | None = None
    _hasher: BlobHasher | None = None
    _hashed: int = 0

    def chain(self, start: int) -> tuple[Link, ...]:
        """Raises DamagedData if it is not stored in pieces of today's size (mvc 0.1)."""
        if self.graph is None:
            return ()
        found = self.graph.chain(self.id, start)
        if found[-1].nbytes != min(PIECE, self.spec.nbytes - start):
            raise DamagedData(f"object {self.id.short} is stored whole")
        return found

    def piece(self, start: int) -> memoryview:
        """The base's whole piece at ``start``, whatever the new piece's length.

        The decoder has the whole piece, so the encoder must use the whole piece, too. Once all of
        the base is recovered, it is compared with its id: a delta to a wrong base would lead back
        to the right bytes here, and nowhere else. Raises DamagedData, and EncodingFailed if
        earlier pieces were used already.
        """
        out = self.arena.take(min(PIECE, self.spec.nbytes - start))
        self.recovery.piece(self.id, start, out)
        if start == 0:
            self._hasher, self._hashed = BlobHasher(self.spec, parallel=True), 0
        elif start != self._hashed:
            self.check()  # pieces before it were not asked for
        if self._hasher is not None and start == self._hashed:
            self._hasher.update(out)
            self._hashed += len(out)
            if self._hashed == self.spec.nbytes and self._hasher.done() != self.id:
                raise self._wrong(EncodingFailed if start else DamagedData)
        return out

    def check(self) -> None:
        """Raises DamagedData unless all of it is stored, and its type is ``spec``."""
        room = np.empty(min(PIECE, self.spec.nbytes), np.uint8).data

        def read(start: int, length: int) -> memoryview:
            self.recovery.piece(self.id, start, room[:length])
            return room[:length]

        for _ in verify_pieces(self.id, self.spec, read, self._wrong(DamagedData)):
            pass

    def _wrong(self, kind: type[MvcError]) -> MvcError:
        return kind(
            f"object {self.id.short}, to be the base of a delta, does not match its hash after "
            "decoding",
            hint="run 'mvc fsck --full'; 'mvc commit --reset-point' stores a version without bases",
        )


class _Candidates:
    """The contents of one file of the parent, indexed by name, bare name and shape."""

    def __init__(self, entry: FileEntry) -> None:
        self._by_name: dict[str, Content] = {}
        self._by_bare: dict[str, Content] = {}
        self._by_shape: dict[TensorSpec, list[Content]] = {}
        names = content_names(entry.contents, entry.tensors)
        for name, content in zip(names, entry.contents, strict=True):
            self._by_name.setdefault(name, content)
            self._by_bare.setdefault(bare_name(name), content)
            self._by_shape.setdefault(content.spec, []).append(content)

    def find(self, name: str, spec: TensorSpec, position: int) -> Iterator[Content]:
        """Candidates, best first. ``position`` counts the new file's contents of this spec."""
        for found in (self._by_name.get(name), self._by_bare.get(bare_name(name))):
            if found is not None:
                yield found
        yield from self._by_shape.get(spec, [])[position : position + 1]


class BaseFinder:
    """Finds bases of one commit's blobs among the parent's blobs."""

    def __init__(
        self, parent: Manifest, recovery: Recovers, arena: Arena, graph: Graph | None = None
    ) -> None:
        self._recovery = recovery
        self._arena = arena
        self._graph = graph
        self._entries = parent.by_path | parent.attached_by_path
        self._files: dict[str, _Candidates] = {}  # filled on first use
        self._seen: dict[tuple[str, TensorSpec], int] = {}

    def find(self, path: str, name: str, spec: TensorSpec) -> StoredBase | None:
        """A blob of the parent that is likely to be similar to the new one, or None."""
        if not self._entries:
            return None
        position = self._seen.get((path, spec), 0)
        self._seen[(path, spec)] = position + 1
        same = [path] if path in self._entries else []
        for each in chain(same, (other for other in self._entries if other != path)):
            if each not in self._files:
                self._files[each] = _Candidates(self._entries[each])
            for content in self._files[each].find(name, spec, position):
                if _related(content.spec, spec):
                    return StoredBase(
                        content.id, content.spec, self._recovery, self._arena, self._graph
                    )
        return None


def _related(old: TensorSpec, new: TensorSpec) -> bool:
    """Whether a delta between the two is possible."""
    if old.dtype == new.dtype:
        inner = old.shape[1:] == new.shape[1:] or old.elements == new.elements
        return new.dtype == "raw" or inner
    same = old.elements == new.elements and DTYPES[old.dtype].floating
    return same and cast.supported(old.dtype, new.dtype)
