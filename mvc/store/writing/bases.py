"""What a new blob may be coded against: stored blobs, and tensors in memory."""

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
    """An object that a new blob may be coded against."""

    @property
    def id(self) -> BlobId:
        """Its id."""

    @property
    def spec(self) -> TensorSpec:
        """Its shape and kind of numbers."""

    def chain(self, start: int) -> tuple[Link, ...]:
        """As ``Graph.chain`` of the piece at ``start``; empty if it is not stored yet."""

    def piece(self, start: int) -> memoryview:
        """The bytes of the base's own piece at ``start``, which lies inside it."""

    def held(self, link: Link, start: int) -> memoryview | None:
        """The piece at ``start`` of an object that leads to it, if it is in memory."""


class Recovers(Protocol):
    """Recovers a blob's pieces, as ``mvc.store.recovery.recover.Recovery`` does."""

    def piece(self, id_: bytes, start: int, out: memoryview) -> None:
        """Fills ``out`` with the piece at ``start``. Raises DamagedData."""


class StoredBase(Struct):
    """A stored blob as a base; its pieces are recovered when needed, first to last.

    Without ``graph`` it is taken as it is, whatever leads to it.
    """

    id: BlobId
    spec: TensorSpec
    recovery: Recovers
    take: Callable[[int], memoryview]
    graph: Graph | None = None
    _hasher: BlobHasher | None = None
    _hashed: int = 0

    def chain(self, start: int) -> tuple[Link, ...]:
        return () if self.graph is None else self.graph.chain(self.id, start)

    def piece(self, start: int) -> memoryview:
        """The base's whole piece at ``start``, whatever the new piece's length.

        The decoder has the whole piece, so the encoder must use the whole piece, too. Once all of
        the base is recovered, it is compared with its id: a delta to a wrong base would lead back
        to the right bytes here, and nowhere else. Raises DamagedData, and EncodingFailed if
        earlier pieces were used already.
        """
        out = self.room(start)
        source = self.recovery if self.spec.nbytes <= SHORT else None
        if isinstance(source, Recovery) and source.at_once(Request(self.id, self.spec, out)):
            return out
        self.recovery.piece(self.id, start, out)
        return self.proven(start, out)

    def room(self, start: int) -> memoryview:
        """Memory for its piece at ``start``."""
        return self.take(min(PIECE, self.spec.nbytes - start))

    def proven(self, start: int, out: memoryview) -> memoryview:
        """``out``, recovered as its piece at ``start``; errors as of ``piece``."""
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

    def held(self, link: Link, start: int) -> None:
        """Nothing is in memory."""

    def check(self) -> None:
        """Raises DamagedData unless all of it is stored, and its type is ``spec``."""
        read = piece_reader(self.recovery.piece, self.id, self.spec)
        for _ in verify_pieces(self.id, self.spec, read, self._wrong(DamagedData)):
            pass

    def _wrong(self, kind: type[MvcError]) -> MvcError:
        return kind(
            f"object {self.id.short}, to be the base of a delta, does not match its hash after "
            "decoding",
            hint="run 'mvc fsck --full'; 'mvc commit --reset-point' stores a version without bases",
        )
