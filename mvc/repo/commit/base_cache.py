"""Caches the last committed version of a Python state in memory.

The next commit is encoded as a delta against it, so that no base is recovered. Encoding
overwrites the buffers chunk by chunk with the new version; the cache needs the memory of one
model. Afterwards every new buffer is hashed again, so that a tensor that the caller modified
during the commit is detected before the version is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mvc.errors import SourceChanged
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.store.graph.search import Graph, Link
from mvc.store.writing.pieces import Kept

__all__ = ["BaseCache"]


@dataclass(slots=True)
class _Kept:
    """A cached tensor, which can be a base. Small, because a model may have 100,000."""

    id: BlobId
    spec: TensorSpec
    array: NDArray[np.uint8]
    graph: Graph
    chains: list[tuple[Link, ...]] | None = None  # by piece; empty where not known

    @property
    def buffer(self) -> memoryview:
        return self.array.data

    def chain(self, start: int) -> tuple[Link, ...]:
        known = self.chains[start // PIECE] if self.chains else ()
        if not known:
            known = self.graph.chain(self.id, start)
            self.stored(start, known)
        return known

    def piece(self, start: int) -> memoryview:
        return self.buffer[start : start + PIECE]

    def stored(self, start: int, chain: tuple[Link, ...]) -> None:
        """Records the chain of the piece at byte ``start``."""
        if self.chains is None:
            self.chains = [()] * max(1, -(-len(self.array) // PIECE))
        self.chains[start // PIECE] = chain


class BaseCache:
    """Tensors of one Python state by name. Empty after a failed commit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.generation = graph.generation  # if the journal is newer, gc may have removed it
        self._kept: dict[str, _Kept] = {}
        self._next: dict[str, _Kept] = {}
        self._unproven: list[str] = []

    @property
    def nbytes(self) -> int:
        return sum(len(kept.array) for kept in self._kept.values())

    def chains(self) -> Iterator[tuple[Link, ...]]:
        """The known chains of the version's pieces."""
        return (chain for kept in self._kept.values() for chain in kept.chains or () if chain)

    def clear(self) -> None:
        self._kept.clear()
        self._next.clear()
        self._unproven.clear()
        self.generation = self.graph.generation

    def base(self, name: str, spec: TensorSpec) -> _Kept | None:
        """The cached tensor of this name, if it has the same dtype and size."""
        kept = self._kept.get(name)
        fits = kept is not None and kept.spec.dtype == spec.dtype
        return kept if kept is not None and fits and kept.spec.nbytes == spec.nbytes else None

    def content(self, name: str, id_: BlobId, spec: TensorSpec) -> memoryview | None:
        """The bytes of a tensor, if the cache has exactly this content under this name."""
        kept = self.base(name, spec)
        return kept.buffer if kept is not None and kept.id == id_ else None

    def unchanged(self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview) -> None:
        """Caches a content that the repository already stores."""
        kept = self._kept.get(name)
        if kept is None or kept.id != id_:
            kept = self._copy(name, id_, spec, data)
        self._next[name] = kept

    def replace(self, name: str, id_: BlobId, spec: TensorSpec) -> Kept:
        """A buffer for a new content, which the encoder fills; ``settle`` verifies it."""
        old = self.base(name, spec)
        new = _Kept(id_, spec, old.array if old else np.empty(spec.nbytes, np.uint8), self.graph)
        self._next[name] = new
        self._unproven.append(name)
        return new

    def settle(self) -> None:
        """Makes the new version the cached one.

        Raises SourceChanged if the bytes of a tensor do not match its hash.
        """
        for name in self._unproven:
            kept = self._next[name]
            if blob_id(kept.spec, kept.buffer, parallel=True) != kept.id:
                self.clear()
                raise SourceChanged(
                    f"tensor {name!r} changed while it was being committed",
                    hint="do not train in another thread while commit runs",
                )
        self._unproven.clear()
        self._kept, self._next = self._next, {}
        self.generation = self.graph.generation

    def _copy(self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview) -> _Kept:
        kept = self.base(name, spec)
        array = kept.array if kept else np.empty(spec.nbytes, np.uint8)
        array.data[:] = data
        self._unproven.append(name)
        return _Kept(id_, spec, array, self.graph)
