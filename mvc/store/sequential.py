"""Recovering versions one after another: each object from what the one before left in memory.

A chain of n versions costs n deltas this way, and not n times the way from a reset point.
Whatever goes wrong, with what is held or with what is stored, the hash of the result finds
it, and the object is recovered by itself (``mvc.store.recovery.recover``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from concurrent.futures import Future
from contextlib import suppress

from mvc.errors import DamagedData
from mvc.limits import SLAB
from mvc.model.hashing import blob_id
from mvc.store.graph.search import Path
from mvc.store.recovery.decode import LOADED, apply_steps, in_order
from mvc.store.recovery.grouped import is_grouped, walk_together
from mvc.store.recovery.recover import Request
from mvc.store.store import Store

__all__ = ["fill_onward"]


def fill_onward(
    store: Store, requests: Iterable[Request], held: Mapping[bytes, memoryview]
) -> None:
    """Fills every request's buffer with verified bytes.

    ``held``: contents of objects by id, which may have been changed by somebody meanwhile.
    Raises DamagedData.
    """
    wanted = list(requests)
    by_size: dict[int, set[bytes]] = {}
    for id_, data in held.items():
        by_size.setdefault(len(data), set()).add(id_)
    grouped: list[tuple[Path, memoryview]] = []
    waiting: list[Future[None]] = []
    for request in wanted:
        plain: list[tuple[Path, memoryview]] = []
        for path, out in _routes(store, request, held, by_size):
            (grouped if is_grouped(path) else plain).append((path, out))
        waiting.append(store.pool.submit(_walk, store, plain))
    failures = [future.exception() for future in waiting]
    for failure in failures:
        if failure is not None and not isinstance(failure, DamagedData):
            raise failure
    with suppress(DamagedData):  # the hashes below say so as well
        walk_together(store.snapshot.packs, grouped)
    checks = [store.pool.submit(_is_whole, request) for request in wanted]
    missed = [request for request, check in zip(wanted, checks, strict=True) if not check.result()]
    if missed:
        store.recovery.fill(missed)


def _routes(
    store: Store,
    request: Request,
    held: Mapping[bytes, memoryview],
    by_size: Mapping[int, Set[bytes]],
) -> list[tuple[Path, memoryview]]:
    """What is left to do for each piece once the nearest held bytes are in its buffer.

    Nothing where the path needs a forward transform or there is none: the object then fails
    its hash.
    """
    size = request.spec.nbytes
    near = by_size.get(size, frozenset())
    routes = []
    for start in range(0, max(size, 1), SLAB):
        out = request.out[start : start + SLAB]
        try:
            path = store.graph.path(request.id, start, near)
        except DamagedData:
            return []
        if any(step.member.coding.transform for step in path.steps):
            return []
        if path.origin is not None:
            out[:] = held[path.origin][start : start + SLAB]
        if path.steps:
            routes.append((path, out))
    return routes


def _walk(store: Store, routes: list[tuple[Path, memoryview]]) -> None:
    """Applies payloads, all of a path together if they fit in memory."""
    for path, out in routes:
        batches = [path.steps] if path.stored <= LOADED else [(step,) for step in path.steps]
        for steps in batches:
            apply_steps(store.snapshot.packs, steps, out, in_order, check=False)


def _is_whole(request: Request) -> bool:
    return blob_id(request.spec, request.out) == request.id
