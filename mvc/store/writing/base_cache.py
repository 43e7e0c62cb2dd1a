"""Versions of Python states in memory, so that the next commit need not recover its base.

How many bytes they may take is the setting ``python.keep_base``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from threading import RLock
from typing import TYPE_CHECKING

from msgspec import Struct

from mvc.errors import SourceChanged
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec

if TYPE_CHECKING:
    from mvc.store.graph.search import Graph, Link


class BaseCaches:
    """The ``BaseCache`` of each path of an open repository, all within ``budget`` bytes.

    What has no room is not held. To make room, older versions go first, then the paths that were
    used least recently; those of the commit that runs (``in_use``) stay. A commit selects them,
    and holds ``lock`` until it has ended.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.budget = 0
        self.held = 0
        self._caches: dict[str, BaseCache] = {}  # the one used last is the last one
        self.in_use: dict[str, BaseCache] = {}

    def select(self, paths: Collection[str], graph: Graph, budget: int) -> None:
        """Puts the caches of ``paths`` in use; a forked child begins with empty ones."""
        self.budget, self.in_use = budget, {}
        for path in paths if budget else ():
            cache = self._caches.pop(path, None)
            if cache is not None and cache.graph is not graph:
                cache.clear()
                cache = None
            self.in_use[path] = self._caches[path] = cache or BaseCache(graph, self)
        if not self.make_room(0):  # there was more before
            for cache in self._caches.values():
                cache.clear()

    def has_room(self, nbytes: int) -> bool:
        """Whether ``nbytes`` more are within the budget as it is."""
        return self.held + nbytes <= self.budget

    def make_room(self, nbytes: int) -> bool:
        """Whether ``nbytes`` more are within the budget, after others were dropped for them."""
        if self.has_room(nbytes):
            return True
        idle = [path for path in self._caches if path not in self.in_use]
        for path in idle:
            self._caches[path].drop_older()
        for path in idle:
            if not self.has_room(nbytes):
                self._caches.pop(path).clear()
        return self.has_room(nbytes)

    def clear(self) -> None:
        for cache in self._caches.values():
            cache.clear()
        self._caches.clear()


class _Kept(Struct):
    """A tensor of ``cache``. Small, because a model may have 100,000."""

    name: str
    id: BlobId
    spec: TensorSpec
    buffer: memoryview
    cache: BaseCache
    chains: list[tuple[Link, ...]] | None = None  # by piece; empty where not known

    def chain(self, start: int) -> tuple[Link, ...]:
        known = self.chains[start // PIECE] if self.chains else ()
        if not known:
            known = self.cache.graph.chain(self.id, start)
            self.stored(start, known)
        return known

    def piece(self, start: int) -> memoryview:
        return self.buffer[start : start + PIECE]

    def held(self, link: Link, start: int) -> memoryview | None:
        return self.cache.older(self.name, link, start)

    def stored(self, start: int, chain: tuple[Link, ...]) -> None:
        """Records the chain of the piece at byte ``start``."""
        if self.chains is None:
            self.chains = [()] * max(1, -(-len(self.buffer) // PIECE))
        self.chains[start // PIECE] = chain


class BaseCache:
    """Caches the last committed version of a Python state in memory, by tensor name.

    The next commit is encoded against it, so that no base is recovered. Encoding overwrites the
    buffers chunk by chunk with the new version: the cache needs the memory of one model.
    Afterwards every new buffer is hashed again, so that a tensor that the caller modified during
    the commit is detected before the version is published. Empty after a failed commit.

    If there is room for a second model, the version that the next longer step of ``layout`` is
    coded against stays as well (``older``). A tensor for which ``budget`` has no room is not held.
    """

    def __init__(self, graph: Graph, budget: BaseCaches) -> None:
        from mvc.store.writing.layout import Layout  # what does not commit needs none

        self.graph = graph
        self.layout = Layout()
        self.generation = graph.generation  # if the journal is newer, gc may have removed it
        self._budget = budget
        self._held = 0  # bytes
        self._recount = False
        self._kept: dict[str, _Kept] = {}
        self._next: dict[str, _Kept] = {}
        self._older: dict[str, _Kept] = {}
        self._unproven: list[str] = []

    def chains(self) -> Iterator[tuple[Link, ...]]:
        """The known chains of the version's pieces."""
        return (chain for kept in self._kept.values() for chain in kept.chains or () if chain)

    def clear(self) -> None:
        self._kept.clear()
        self._next.clear()
        self._older.clear()
        self._unproven.clear()
        self._hold(-self._held)
        self.generation = self.graph.generation

    def base(self, name: str, spec: TensorSpec) -> _Kept | None:
        """The cached tensor of this name, if it has the same dtype and size."""
        kept = self._kept.get(name)
        wanted = spec.dtype, spec.nbytes
        fits = kept is not None and (kept.spec.dtype, kept.spec.nbytes) == wanted
        return kept if fits else None

    def older(self, name: str, link: Link, start: int) -> memoryview | None:
        """The piece at ``start`` of an older version of the tensor; None if it is not held."""
        kept = self._older.get(name)
        if kept is None or kept.id != link.id or len(kept.piece(start)) != link.nbytes:
            return None
        return kept.piece(start)

    def content(self, name: str, id_: BlobId, spec: TensorSpec) -> memoryview | None:
        """The bytes of a tensor, if the cache has exactly this content under this name."""
        kept = self.base(name, spec)
        return kept.buffer if kept is not None and kept.id == id_ else None

    def unchanged(self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview) -> None:
        """Caches a content that the repository already stores."""
        kept = self._kept.get(name)
        if kept is not None and kept.id == id_:
            self._next[name] = kept
        elif (new := self.replace(name, id_, spec)) is not None:
            new.buffer[:] = data

    def replace(
        self,
        name: str,
        id_: BlobId,
        spec: TensorSpec,
        *,
        aside: bool | None = None,
    ) -> _Kept | None:
        """A buffer for a new content, which the encoder fills; ``settle`` verifies it.

        None if there is no room. ``aside``: whether a later version than this one is coded against
        the old content; by default as the layout says.
        """
        old = self.base(name, spec)
        if old is not None and (self._returns_to(old) if aside is None else aside):
            old = self._set_aside(name, old)
        if old is None:
            if not self._budget.make_room(spec.nbytes):
                return None
            self._hold(spec.nbytes)
            self._recount = True
        memory = _empty(spec.nbytes) if old is None else old.buffer
        self._unproven.append(name)
        self._next[name] = new = _Kept(name, id_, spec, memory, cache=self)
        return new

    def settle(self) -> None:
        """Makes the new version the cached one.

        Raises SourceChanged if the bytes of a tensor do not match its hash.
        """
        for name in self._unproven:
            kept = self._next[name]
            if blob_id(kept.spec, kept.buffer, parallel=True) != kept.id:
                self.clear()
                raise tensor_changed(name)
        self._unproven.clear()
        recount = self._recount or len(self._next) != len(self._kept)
        self._kept, self._next = self._next, {}
        if recount:
            self._count()
        self.generation = self.graph.generation

    def _returns_to(self, kept: _Kept) -> bool:
        """Whether a later version than the next one is coded against this tensor."""
        chain = kept.chains[0] if kept.chains else ()
        known = bool(chain) and not chain[-1].predicted
        return known and self.layout.returns_to(chain, self.graph.next_sequence)

    def _set_aside(self, name: str, kept: _Kept) -> _Kept | None:
        """Keeps a tensor for a later version; returns one whose memory the new one takes over.

        That is the one set aside before, which is not needed any more; none if there is more room,
        and the tensor itself if there is not.
        """
        before = self._older.get(name)
        if before is None and not self._budget.has_room(kept.spec.nbytes):
            return kept
        self._older[name] = kept
        fits = before is not None and len(before.buffer) == kept.spec.nbytes
        return before if fits else None

    def drop_older(self) -> None:
        self._older.clear()
        self._count()

    def _count(self) -> None:
        """Counts anew after tensors came or went; drops older ones of tensors that went."""
        self._older = {name: kept for name, kept in self._older.items() if name in self._kept}
        every = (*self._kept.values(), *self._older.values())
        self._hold(sum(len(kept.buffer) for kept in every) - self._held)
        self._recount = False

    def _hold(self, more: int) -> None:
        self._held += more
        self._budget.held += more


def _empty(nbytes: int) -> memoryview:
    import numpy as np

    return np.empty(nbytes, np.uint8).data


def tensor_changed(name: str) -> SourceChanged:
    """The error for a tensor that the caller modified during the commit."""
    return SourceChanged(
        f"tensor {name!r} changed while it was being committed",
        hint="do not train in another thread while commit runs",
    )
