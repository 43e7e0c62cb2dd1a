"""Bases: the objects from which mvc computes the deltas of new contents.

A content is the bytes of one tensor. Contents are processed in pieces of at most 32 MiB. A base is
a stored content, or a tensor in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from mvc.errors import DamagedData, EncodingFailed, MvcError
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, verify_pieces
from mvc.model.tensor import TensorSpec
from mvc.store.graph.search import Graph, Link
from mvc.store.recovery.recover import Recovery, Request, piece_reader
from mvc.store.recovery.walk import SHORT


class Base(Protocol):
    """An object that may be the base of a new content."""

    @property
    def id(self) -> BlobId:
        """The object's id."""

    @property
    def spec(self) -> TensorSpec:
        """The object's shape and dtype."""

    def chain(self, start: int) -> tuple[Link, ...]:
        """The objects to decode, in this order, to get the piece at ``start`` (``Graph.chain``).

        Empty if the base is not stored yet.
        """

    def piece(self, start: int) -> memoryview:
        """The complete piece of the base at ``start``, even if the new content is shorter."""

    def cached(self, link: Link, start: int) -> memoryview | None:
        """The piece at ``start`` of an object in ``chain``. None if the object is not in memory."""


class Recovers(Protocol):
    """Recovers a content's pieces, as ``mvc.store.recovery.recover.Recovery`` does."""

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        """Fills ``out`` with the piece at ``start``. Raises DamagedData."""


class StoredBase(Struct):
    """A stored content as a base. Its pieces are recovered when needed, in ascending order.

    Without ``graph``, ``chain`` is always empty.
    """

    id: BlobId
    spec: TensorSpec
    recovery: Recovers
    allocate: Callable[[int], memoryview]
    graph: Graph | None = None
    _hasher: BlobHasher | None = None
    _hashed: int = 0

    def chain(self, start: int) -> tuple[Link, ...]:
        return () if self.graph is None else self.graph.chain(self.id, start)

    def piece(self, start: int) -> memoryview:
        """The complete piece of the base at ``start``.

        After the last piece, checks the hash of the base, because a delta from wrong bytes would be
        useless. If the hash is wrong, raises EncodingFailed if earlier pieces of the base were used
        already, otherwise DamagedData.
        """
        out = self.room(start)
        source = self.recovery if self.spec.nbytes <= SHORT else None
        if isinstance(source, Recovery) and source.at_once(Request(self.id, self.spec, out)):
            return out
        self.recovery.piece(self.id, start, out)
        return self.proven(start, out)

    def room(self, start: int) -> memoryview:
        return self.allocate(min(PIECE, self.spec.nbytes - start))

    def proven(self, start: int, out: memoryview) -> memoryview:
        """Adds the piece ``out`` to the hash of the base. Raises the same errors as ``piece``."""
        if start == 0:
            self._hasher, self._hashed = BlobHasher(self.spec, parallel=True), 0
        elif start != self._hashed:
            self.check()  # earlier pieces were skipped
        if self._hasher is not None and start == self._hashed:
            self._hasher.update(out)
            self._hashed += len(out)
            if self._hashed == self.spec.nbytes and self._hasher.done() != self.id:
                raise self._wrong(EncodingFailed if start else DamagedData)
        return out

    def cached(self, link: Link, start: int) -> None:
        """Returns None: no object in the chain of a stored base is in memory."""

    def check(self) -> None:
        """Raises DamagedData unless all pieces are stored and match the base's id and ``spec``."""
        read = piece_reader(self.recovery.piece, self.id, self.spec)
        for _ in verify_pieces(self.id, self.spec, read, self._wrong(DamagedData)):
            pass

    def _wrong(self, kind: type[MvcError]) -> MvcError:
        return kind(
            f"object {self.id.short}, the base of a new delta, does not match its hash after "
            "decoding",
            hint="run 'mvc fsck --full'; 'mvc commit --reset-point' stores a version in full",
        )
