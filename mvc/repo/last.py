"""The last committed version of a Python state, kept in memory.

The next commit is coded against it without recovering anything. Its buffers are
overwritten chunk by chunk as the new version is encoded, so one copy of the model is
all it takes. Every buffer is hashed again afterwards: a tensor that somebody changed
during the commit is found before anything is published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mvc.errors import SourceChanged
from mvc.ids import BlobId
from mvc.limits import SLAB
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.store.choose import BasePiece
from mvc.store.graph import Graph
from mvc.store.pieces import Written

__all__ = ["LastVersion"]


@dataclass
class _Kept:
    """One tensor: a base whose bytes are at hand."""

    id: BlobId
    spec: TensorSpec
    buffer: memoryview
    graph: Graph
    chain: dict[int, Written] = field(default_factory=dict)

    def piece(self, start: int) -> BasePiece:
        chain = self.chain.get(start)
        if chain is None:
            path = self.graph.path(self.id, start)
            chain = self.chain[start] = Written(path.depth, path.stored)
        return BasePiece(self.buffer[start : start + SLAB], chain.depth, chain.stored)


class LastVersion:
    """Tensors of one Python state by name. Invalid, and empty, after a failed commit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.generation = graph.generation  # since then, maintenance may have collected it
        self._kept: dict[str, _Kept] = {}
        self._next: dict[str, _Kept] = {}
        self._unproven: list[str] = []

    @property
    def nbytes(self) -> int:
        return sum(len(kept.buffer) for kept in self._kept.values())

    @property
    def depth(self) -> int | None:
        """Deltas under the version, as far as they are known; None if nothing is kept."""
        chains = [w.depth for kept in self._kept.values() for w in kept.chain.values()]
        return max(chains, default=None)

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

    def replace(
        self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview
    ) -> tuple[Callable[[int], memoryview], Callable[[int], Callable[[Written], None]]]:
        """The content is new. Returns where its pieces go, and who learns how they were stored.

        The buffers are filled by the encoder; ``settle`` checks them.
        """
        kept = self.base(name, spec)
        buffer = kept.buffer if kept else np.empty(spec.nbytes, np.uint8).data
        chain: dict[int, Written] = {}
        self._next[name] = _Kept(id_, spec, buffer, self.graph, chain)
        self._unproven.append(name)
        size = len(data)

        def target(start: int) -> memoryview:
            return buffer[start:size]

        def reporter(start: int) -> Callable[[Written], None]:
            return lambda written: chain.__setitem__(start, written)

        return target, reporter

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
        buffer = kept.buffer if kept else np.empty(spec.nbytes, np.uint8).data
        buffer[:] = data
        self._unproven.append(name)
        return _Kept(id_, spec, buffer, self.graph)
