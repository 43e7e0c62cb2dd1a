"""Recovers tensors that are stored in groups.

The *path* to a tensor is a full record, then deltas. In a group record, one *payload* (encoded
bytes) stores many tensors. Tensors whose paths share a payload are processed at the same time, so
that the payload is decoded once. Several threads decode payloads. One thread applies the decoded
deltas to the tensors, in the order of each path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TypeAlias

from mvc.codecs.varint import Cursor
from mvc.codecs.words import combine
from mvc.errors import DamagedData
from mvc.io.process import cpu_count
from mvc.limits import PIECE, RECORD
from mvc.lossy.lc.payload import decode_joint, decode_steps
from mvc.lossy.lc.step import Addition
from mvc.pipelines.group import decode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Path, PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.recovery.decode import apply_steps, in_order, pipeline_of, short_name

MOST_GROUPED = 4 * (RECORD + PIECE)
"""Maximum raw bytes of a group that readers accept. Writers make groups of at most a quarter."""

MOST_JOINT = 16 * (RECORD + PIECE)
"""Maximum raw bytes of all members of a super-step: several lossy deltas in one payload."""


def is_grouped(path: Path) -> bool:
    """Whether several objects share a payload on the path."""
    return any(step.header.group for step in path.steps)


_Route: TypeAlias = tuple[tuple[int, int, bool], ...]
"""For each payload on a path: its pack, its record's offset, and whether its delta is undone."""
_Together: TypeAlias = Sequence[tuple[PathStep, memoryview]]
"""The steps of several paths that use the same record, each with the buffer of its path."""
_Decoded: TypeAlias = list[tuple[memoryview, int]] | list[Addition]
"""The decoded members of a record: pairs (bytes or delta, width of an element), or lossy deltas.

A lossy delta is what to add to the floats of the base.
"""


def walk_together(
    packs: PackReader,
    walks: Iterable[tuple[Path, memoryview]],
    pool: Executor | None = None,
    *,
    check: bool = True,
) -> None:
    """Recovers the tensor of each path into the buffer of the path.

    No path may have a transform, such as a change of dtype. ``pool``: its threads decode payloads.
    The calling thread must not be one of these threads. Without ``check``, payload checksums are
    ignored, and the caller must check the tensors.
    """
    clusters: dict[_Route, list[tuple[Path, memoryview]]] = {}
    for path, out in walks:
        route = tuple((step.pack, step.offset, step.reverse) for step in path.steps)
        clusters.setdefault(route, []).append((path, out))
    ahead = 0 if pool is None else cpu_count()
    waiting: deque[tuple[_Together, Callable[[], _Decoded]]] = deque()
    place: tuple[int, int] | None = None
    for route, level in _in_turn(list(clusters)):
        together = [(path.steps[level], out) for path, out in clusters[route]]
        step = together[0][0]
        if (step.pack, step.offset) != place:
            place = step.pack, step.offset
            coming: Callable[[], _Decoded] = cache(partial(decode_shared, packs, step, check=check))
            if step.header.group and pool is not None:
                coming = pool.submit(coming).result
        waiting.append((together, coming))
        if len(waiting) > ahead:
            _apply(packs, *waiting.popleft(), check)
    while waiting:
        _apply(packs, *waiting.popleft(), check)


def _in_turn(routes: Sequence[_Route]) -> list[tuple[_Route, int]]:
    """Orders the payloads of all routes, so that routes with a common payload use it consecutively.

    Returns a pair (route, index on the route) for each payload. Sometimes no such order exists, for
    example if one route undoes a delta that another route applies. Then the payloads are ordered
    route by route, and common payloads are decoded more than once.
    """
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for route in routes:
        for one, following in pairwise(route):
            before.setdefault(following[:2], set()).add(one[:2])
    try:
        places = list(TopologicalSorter(before).static_order())
    except CycleError:
        places = []
    turn = {place: number for number, place in enumerate(places)}
    turns = [(route, level) for route in sorted(routes) for level in range(len(route))]
    return sorted(turns, key=lambda pair: turn.get(pair[0][pair[1]][:2], -1))


def _apply(
    packs: PackReader, together: _Together, coming: Callable[[], _Decoded], check: bool
) -> None:
    first = together[0][0]
    if not first.header.group:
        for step, out in together:
            apply_steps(packs, [step], out, in_order, check=check)
        return
    if any(len(out) != step.member.nbytes for step, out in together):
        raise DamagedData(f"{short_name(first)} has a wrong length")
    decoded, operator = coming(), pipeline_of(first).operator
    # Find members by id and start: the header may have been read again after the planning.
    places = {(member.id, member.start): i for i, member in enumerate(first.header.members)}
    for step, out in together:
        result = decoded[places[step.member.id, step.member.start]]
        if isinstance(result, Addition):
            if step.reverse:
                raise DamagedData(
                    f"{short_name(first)} is a lossy delta, which cannot be applied backwards"
                )
            result.apply(out)
            continue
        delta, width = result
        if step.member.base:
            combine(operator, out, delta, width, reverse=step.reverse)
        else:
            out[:] = delta


def decode_shared(packs: PackReader, step: PathStep, *, check: bool = True) -> _Decoded:
    """Decodes all members of a group record. Raises DamagedData."""
    pipeline = pipeline_of(step)
    sizes = [member.nbytes for member in step.header.members]
    joint = step.member.coding.joint
    if sum(sizes) > (MOST_JOINT if joint else MOST_GROUPED):
        raise DamagedData(f"{short_name(step)} claims more bytes than a group may have")
    payload = packs.payload(step.pack, step.offset, step.header, step.member, check=check)
    if joint:
        if not step.member.base:
            raise DamagedData(f"{short_name(step)} is a super-step without a base")
        return decode_super_step(pipeline, payload, sizes, joint)
    if pipeline.forward_only:
        return decode_steps(pipeline, payload, sizes)
    return decode_group(pipeline, payload, sizes)


def decode_super_step(
    pipeline: Pipeline, payload: memoryview, sizes: list[int], joint: int
) -> list[Addition]:
    """Decodes a super-step, ``joint`` lossy deltas in one payload. Raises DamagedData.

    Returns the members of the first delta, then the members of the second delta, and so on.
    ``sizes``: raw bytes of each member, at most ``MOST_JOINT`` in total, to bound memory.
    """
    one = sizes[: len(sizes) // joint]
    if sum(sizes) > MOST_JOINT or one * joint != sizes or Cursor(payload).varint() != joint:
        raise DamagedData(f"a super-step does not have {joint} steps of the same objects")
    return [added for time in decode_joint(pipeline, payload, one) for added in time]
