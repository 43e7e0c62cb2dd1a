"""Keeps committed tensors in memory, because the next commit stores deltas from them.

A Python state is a mapping of tensors that a program commits from memory, under a path. Without
this cache, each commit would first decode the previous version from the repository. The setting
``python.keep_base`` limits the number of bytes of all caches.

A *piece* is at most 32 MiB of a tensor. The *chain* of a piece lists the stored objects that are
decoded one after another to recover the piece (``Graph.chain``).
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
    """The ``BaseCache`` of each path of an open repository, with ``budget`` bytes in total.

    Tensors beyond the budget are not cached. To free memory, older versions are deleted first, then
    the caches of the least recently used paths. Caches of the running commit (``in_use``) are not
    deleted. A commit locks ``lock`` until the commit ends, and calls ``select``.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.budget = 0
        self.used = 0
        self._caches: dict[str, BaseCache] = {}  # least recently used first
        self.in_use: dict[str, BaseCache] = {}

    def select(self, paths: Collection[str], graph: Graph, budget: int) -> None:
        """Sets ``in_use`` to the caches of ``paths``.

        After a fork, the child process has a new ``graph``. Caches of the old graph are emptied.
        """
        self.budget, self.in_use = budget, {}
        for path in paths if budget else ():
            cache = self._caches.pop(path, None)
            if cache is not None and cache.graph is not graph:
                cache.clear()
                cache = None
            self.in_use[path] = self._caches[path] = cache or BaseCache(graph, self)
        if not self.make_room(0):  # ``budget`` is smaller than in the previous commit
            for cache in self._caches.values():
                cache.clear()

    def has_room(self, nbytes: int) -> bool:
        return self.used + nbytes <= self.budget

    def make_room(self, nbytes: int) -> bool:
        """Deletes caches that are not in use until ``nbytes`` fit; returns whether they fit."""
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


class _Cached(Struct):
    """A tensor in ``cache``. The class has few fields, because a model may have 100,000 tensors."""

    name: str
    id: BlobId
    spec: TensorSpec
    buffer: memoryview
    cache: BaseCache
    chains: list[tuple[Link, ...]] | None = None  # for each piece; () if unknown

    def chain(self, start: int) -> tuple[Link, ...]:
        known = self.chains[start // PIECE] if self.chains else ()
        if not known:
            known = self.cache.graph.chain(self.id, start)
            self.stored(start, known)
        return known

    def piece(self, start: int) -> memoryview:
        return self.buffer[start : start + PIECE]

    def cached(self, link: Link, start: int) -> memoryview | None:
        return self.cache.older(self.name, link, start)

    def stored(self, start: int, chain: tuple[Link, ...]) -> None:
        """Records the chain of the piece at byte ``start``."""
        if self.chains is None:
            self.chains = [()] * max(1, -(-len(self.buffer) // PIECE))
        self.chains[start // PIECE] = chain


class BaseCache:
    """The tensors of the newest version of a Python state, by name. Empty after a failed commit.

    The next commit encodes deltas from these tensors, and overwrites their buffers with the new
    tensors. Then ``settle`` hashes the buffers, to detect tensors that the caller modified during
    the commit. An older version that ``layout`` will use as a base is cached, too, unless the
    budget is exhausted.
    """

    def __init__(self, graph: Graph, budget: BaseCaches) -> None:
        from mvc.store.writing.layout import Layout  # late: only commits need it

        self.graph = graph
        self.layout = Layout()
        self.generation = graph.generation  # if it changes, gc may have deleted the version
        self._budget = budget
        self._used = 0  # bytes
        self._recount = False
        self._last: dict[str, _Cached] = {}
        self._next: dict[str, _Cached] = {}
        self._older: dict[str, _Cached] = {}
        self._unproven: list[str] = []

    def chains(self) -> Iterator[tuple[Link, ...]]:
        """The known chains of the version's pieces."""
        return (chain for cached in self._last.values() for chain in cached.chains or () if chain)

    def clear(self) -> None:
        self._last.clear()
        self._next.clear()
        self._older.clear()
        self._unproven.clear()
        self._add_used(-self._used)
        self.generation = self.graph.generation

    def base(self, name: str, spec: TensorSpec) -> _Cached | None:
        """The cached tensor of this name, if it has the same dtype and size."""
        cached = self._last.get(name)
        wanted = spec.dtype, spec.nbytes
        fits = cached is not None and (cached.spec.dtype, cached.spec.nbytes) == wanted
        return cached if fits else None

    def older(self, name: str, link: Link, start: int) -> memoryview | None:
        """The piece at ``start`` of an older version of a tensor. None if it is not cached."""
        cached = self._older.get(name)
        if cached is None or cached.id != link.id or len(cached.piece(start)) != link.nbytes:
            return None
        return cached.piece(start)

    def content(self, name: str, id_: BlobId, spec: TensorSpec) -> memoryview | None:
        """The bytes of a tensor, if the cache has exactly this content under this name."""
        cached = self.base(name, spec)
        return cached.buffer if cached is not None and cached.id == id_ else None

    def unchanged(self, name: str, id_: BlobId, spec: TensorSpec, data: memoryview) -> None:
        """Caches the bytes of a tensor that the repository stores already."""
        cached = self._last.get(name)
        if cached is not None and cached.id == id_:
            self._next[name] = cached
        elif (new := self.replace(name, id_, spec)) is not None:
            new.buffer[:] = data

    def replace(
        self,
        name: str,
        id_: BlobId,
        spec: TensorSpec,
        *,
        keep_previous: bool | None = None,
    ) -> _Cached | None:
        """A buffer that the encoder fills with a new tensor. None if the budget is exhausted.

        ``settle`` verifies the content of the buffer. ``keep_previous``: whether the old tensor
        stays cached as the base of a later version; None: as ``layout`` decides.
        """
        old = self.base(name, spec)
        if old is not None and (self._returns_to(old) if keep_previous is None else keep_previous):
            old = self._keep_older(name, old)
        if old is None:
            if not self._budget.make_room(spec.nbytes):
                return None
            self._add_used(spec.nbytes)
            self._recount = True
        memory = _empty(spec.nbytes) if old is None else old.buffer
        self._unproven.append(name)
        self._next[name] = new = _Cached(name, id_, spec, memory, cache=self)
        return new

    def settle(self) -> None:
        """Replaces the cached version by the new version.

        Raises SourceChanged if the bytes of a tensor do not match its hash.
        """
        for name in self._unproven:
            cached = self._next[name]
            if blob_id(cached.spec, cached.buffer, parallel=True) != cached.id:
                self.clear()
                raise tensor_changed(name)
        self._unproven.clear()
        recount = self._recount or len(self._next) != len(self._last)
        self._last, self._next = self._next, {}
        if recount:
            self._count()
        self.generation = self.graph.generation

    def _returns_to(self, cached: _Cached) -> bool:
        """Whether ``layout`` will use this tensor as a base after the next version."""
        chain = cached.chains[0] if cached.chains else ()
        known = bool(chain) and not chain[-1].predicted
        return known and self.layout.returns_to(chain, self.graph.next_sequence)

    def _keep_older(self, name: str, cached: _Cached) -> _Cached | None:
        """Stores ``cached`` in ``_older`` as the base of a later version.

        Returns a tensor whose buffer may be overwritten: the previous tensor in ``_older``, if it
        has the same size. None if a new buffer is needed. If the budget allows no new buffer, does
        not store ``cached``, and returns ``cached`` itself.
        """
        before = self._older.get(name)
        if before is None and not self._budget.has_room(cached.spec.nbytes):
            return cached
        self._older[name] = cached
        fits = before is not None and len(before.buffer) == cached.spec.nbytes
        return before if fits else None

    def drop_older(self) -> None:
        self._older.clear()
        self._count()

    def _count(self) -> None:
        """Deletes older versions of removed tensors, then counts the used bytes again."""
        self._older = {name: cached for name, cached in self._older.items() if name in self._last}
        every = (*self._last.values(), *self._older.values())
        self._add_used(sum(len(cached.buffer) for cached in every) - self._used)
        self._recount = False

    def _add_used(self, nbytes: int) -> None:
        self._used += nbytes
        self._budget.used += nbytes


def _empty(nbytes: int) -> memoryview:
    import numpy as np

    return np.empty(nbytes, np.uint8).data


def tensor_changed(name: str) -> SourceChanged:
    """The error for a tensor that the caller modified during the commit."""
    return SourceChanged(
        f"tensor {name!r} changed while it was being committed",
        hint="do not modify tensors in another thread during a commit",
    )
