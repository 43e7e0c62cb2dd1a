"""Recovering versions one after another: each object from the previous version's in memory.

A chain of n versions costs n deltas this way, instead of n paths from a full record. Every
result is checked by its hash; where it does not match, whether the bytes in memory or the
stored ones are damaged, the object is recovered by itself (``Recovery``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.model.hashing import blob_id
from mvc.store.graph.plan import is_predicted, related
from mvc.store.graph.search import Path
from mvc.store.packs.reader import PackReader
from mvc.store.recovery.decode import LOADED, apply_steps, in_order
from mvc.store.recovery.grouped import is_grouped, walk_together
from mvc.store.recovery.recover import Recovery, Request


def fill_sequentially(
    recovery: Recovery, requests: Iterable[Request], held: Mapping[bytes, memoryview]
) -> None:
    """Fills every request's buffer with verified bytes; DamagedData if that cannot be done.

    ``held``: contents of objects by id; their owner may have modified them in the meantime.
    """
    missed = fill_where_sound(recovery, requests, held)
    if missed:
        recovery.fill(missed)


def fill_where_sound(
    recovery: Recovery, requests: Iterable[Request], held: Mapping[bytes, memoryview]
) -> list[Request]:
    """As ``fill_sequentially``, but returns the requests whose objects fail their hash.

    These need another path: a payload or what is held is damaged, or the path has a transform that
    is no prediction.
    """
    wanted = list(requests)
    by_size: dict[int, dict[bytes, memoryview]] = {}
    for id_, data in held.items():
        by_size.setdefault(len(data), {})[id_] = data
    grouped: list[tuple[Path, memoryview]] = []
    predicted: list[tuple[Request, Path]] = []
    waiting: list[Future[None]] = []
    for request in wanted:
        near = by_size.get(request.spec.nbytes, {})
        paths = _paths(recovery, request, near)
        if any(map(is_predicted, paths)):
            predicted.append((request, paths[0]))
            continue
        plain: list[tuple[Path, memoryview]] = []
        for path, out in _begun(request, near, paths):
            (grouped if is_grouped(path) else plain).append((path, out))
        waiting.append(recovery.pool.submit(_walk, recovery.packs, plain))
    for numbers in related(recovery.graph, [path for _, path in predicted]):
        together, along = [predicted[i][0] for i in numbers], [predicted[i][1] for i in numbers]
        near = by_size.get(together[0].spec.nbytes, {})
        task = partial(recovery.together, together, near, along=along)
        waiting.append(recovery.pool.submit(task))
    failures = [future.exception() for future in waiting]
    for failure in failures:
        if failure is not None and not isinstance(failure, DamagedData):
            raise failure
    with suppress(DamagedData):  # the hashes below find that, too
        walk_together(recovery.packs, grouped, recovery.pool)
    checks = [recovery.pool.submit(_is_whole, request) for request in wanted]
    return [request for request, check in zip(wanted, checks, strict=True) if not check.result()]


def _paths(recovery: Recovery, request: Request, near: Container[bytes]) -> list[Path]:
    """To every piece; nothing where there is none to one."""
    starts = range(0, max(request.spec.nbytes, 1), PIECE)
    try:
        return [recovery.graph.path(request.id, start, near) for start in starts]
    except DamagedData:
        return []


def _begun(
    request: Request, near: Mapping[bytes, memoryview], paths: Sequence[Path]
) -> list[tuple[Path, memoryview]]:
    """Copies the nearest held bytes into each piece's buffer; returns the paths from there.

    Nothing where a path needs a forward transform: the object then fails its hash.
    """
    if any(step.member.coding.transform for path in paths for step in path.steps):
        return []
    routes = []
    for at, path in enumerate(paths):
        start = at * PIECE
        out = request.out[start : start + PIECE]
        if path.origin is not None:
            out[:] = near[path.origin][start : start + PIECE]
        if path.steps:
            routes.append((path, out))
    return routes


def _walk(packs: PackReader, routes: list[tuple[Path, memoryview]]) -> None:
    """Applies payloads, all of a path together if they fit in memory."""
    for path, out in routes:
        batches = [path.steps] if path.stored <= LOADED else [(step,) for step in path.steps]
        for steps in batches:
            apply_steps(packs, steps, out, in_order, check=False)


def _is_whole(request: Request) -> bool:
    return blob_id(request.spec, request.out) == request.id
