"""The last committed version of a Python state, kept in memory.

The next commit is coded against it without recovering anything. Its buffers are
overwritten chunk by chunk as the new version is encoded, so one copy of the model is
all it takes. Every buffer is hashed again afterwards: a tensor that somebody changed
during the commit is found before anything is published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mvc.errors import SourceChanged
from mvc.ids import BlobId
from mvc.limits import SLAB
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.store.graph.search import Graph
from mvc.store.writing.choose import BasePiece
from mvc.store.writing.pieces import Kept, Written

__all__ = ["BaseCache"]


@dataclass(slots=True)
class _Kept:
    """One tensor: a base whose bytes are at hand. Small, since a model may have 100,000."""

    id: BlobId
    spec: TensorSpec
    array: NDArray[np.uint8]
    graph: Graph
    chain: list[Written | None] | None = None  # by piece

    @property
    def buffer(self) -> memoryview:
        return self.array.data

    @property
    def depth(self) -> int | None:
        """Deltas under the deepest piece, as far as they are known."""
        return max((each.depth for each in self.chain or () if each is not None), default=None)

    def piece(self, start: int) -> BasePiece:
        chain = self.chain[start // SLAB] if self.chain else None
        if chain is None:
            path = self.graph.path(self.id, start)
            chain = Written(path.depth, path.stored)
            self.stored(start, chain)
        return BasePiece(self.buffer[start : start + SLAB], chain.depth, chain.stored)

    def stored(self, start: int, written: Written) -> None:
        """Remembers the chain under the piece at ``start``."""
        if self.chain is None:
            self.chain = [None] * max(1, -(-len(self.array) // SLAB))
        self.chain[start // SLAB] = written


class BaseCache:
    """Tensors of one Python state by name. Invalid, and empty, after a failed commit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.generation = graph.generation  # since then, maintenance may have collected it
        self._kept: dict[str, _Kept] = {}
        self._next: dict[str, _Kept] = {}
        self._unproven: list[str] = []

    @property
    def nbytes(self) -> int:
        return sum(len(kept.array) for kept in self._kept.values())

    @property
    def depth(self) -> int | None:
        """Deltas under the version, as far as they are known; None if nothing is kept."""
        depths = (kept.depth for kept in self._kept.values())
        return max((depth for depth in depths if depth is not None), default=None)

    def clear(self) -> None:
        self._kept.clear()
        self._next.clear()
        self._unproven.clear()
        self.generation = self.graph.generation

    def base(self, name: str, spec: TensorSpec) -> _Kept | None:
        """The tensor of this name, if it has the same dtype and size."""
        kept = self._kept.get(name)
        fits = kept is not None and kept.spec.dtype == spec.dtype
        return kept if kept is not None and fits and kept.spec.nbytes == spec.nbytes else None

    def content(self, name: str, id_: BlobId, spec: TensorSpec) -> memoryview | None:
        """The bytes of a tensor, if exactly that content is kept under this name."""
        kept = self.base(name, spec)
        return kept.buffer if kept is not None and kept.id == id_ else None

    def unchanged(self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview) -> None:
        """The repository holds this content already, from the last version or another one."""
        kept = self._kept.get(name)
        if kept is None or kept.id != id_:
            kept = self._copy(name, id_, spec, data)
        self._next[name] = kept

    def replace(self, name: str, id_: BlobId, spec: TensorSpec) -> Kept:
        """The content is new. Returns where the encoder puts its bytes, and reports its chain.

        ``settle`` checks them.
        """
        old = self.base(name, spec)
        new = _Kept(id_, spec, old.array if old else np.empty(spec.nbytes, np.uint8), self.graph)
        self._next[name] = new
        self._unproven.append(name)
        return new

    def settle(self) -> None:
        """After everything is encoded: the new version is the last one, if its bytes prove it."""
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
