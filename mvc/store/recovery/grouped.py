"""Recovering from group records, in which one payload holds many tensors.

Tensors with the same path are walked in lockstep, so that every group payload on it is decoded
once for all of them; a payload on several paths is decoded once, too, where memory allows.
Payloads are decoded on all threads, the deltas of one path beside each other, and combined in
the order of the path.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
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
"""Raw bytes of a group: a record is written once it has RECORD, the last piece included."""

MOST_JOINT = 16 * (RECORD + PIECE)
"""Raw bytes of the members of a super-step, of all its times together."""

KEPT = 64 << 20
"""Raw bytes of decoded groups that are kept for other paths."""


def is_grouped(path: Path) -> bool:
    """Whether any payload on the path is shared."""
    return any(step.header.group for step in path.steps)


_Route: TypeAlias = tuple[tuple[int, int, bool], ...]
"""Of each payload on a path its pack and offset, and whether it is walked back."""
_Together: TypeAlias = Sequence[tuple[PathStep, memoryview]]
"""One step of every path in a cluster, each with the buffer that it fills."""
_Decoded: TypeAlias = list[tuple[memoryview, int]] | list[Addition]
"""Bytes or deltas and the width of their elements; or what is added to floats."""


def walk_together(
    packs: PackReader,
    walks: Iterable[tuple[Path, memoryview]],
    pool: Executor | None = None,
    *,
    check: bool = True,
) -> None:
    """Fills each buffer along its path. No path may need a forward transform.

    ``pool`` decodes; the caller must not be one of its threads. Without ``check`` the payloads'
    checksums are left to the caller, who checks the result.
    """
    clusters: dict[_Route, list[tuple[Path, memoryview]]] = {}
    for path, out in walks:
        route = tuple((step.pack, step.offset, step.reverse) for step in path.steps)
        clusters.setdefault(route, []).append((path, out))
    uses = Counter(place[:2] for route in clusters for place in route)
    groups = _SharedGroups(packs, pool, check, uses)
    ahead = 0 if pool is None else cpu_count()
    waiting: deque[tuple[_Together, Future[_Decoded] | None]] = deque()
    try:
        for route, level in _in_turn(list(clusters)):
            together = [(path.steps[level], out) for path, out in clusters[route]]
            step = together[0][0]
            waiting.append((together, groups.begin(step) if step.header.group else None))
            if len(waiting) > ahead:
                _apply(packs, *waiting.popleft(), check)
        while waiting:
            _apply(packs, *waiting.popleft(), check)
    finally:
        groups.cancel()


def _in_turn(routes: Sequence[_Route]) -> list[tuple[_Route, int]]:
    """Each route and level, so that routes that share a payload take it one after the other.

    Where no order allows that (one walks back what another walks forth), route after route.
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
    return sorted(turns, key=lambda each: turn.get(each[0][each[1]][:2], -1))


class _SharedGroups:
    """Decodes groups, each once while it is among the last ones, which take ``KEPT`` raw bytes.

    ``uses``: how often each will be asked for. After the last time it is not kept, because memory
    that is used again costs less than new memory.
    """

    def __init__(
        self, packs: PackReader, pool: Executor | None, check: bool, uses: Counter[tuple[int, int]]
    ) -> None:
        self._packs, self._pool, self._check, self._uses = packs, pool, check, uses
        self._recent: OrderedDict[tuple[int, int], tuple[Future[_Decoded], int]] = OrderedDict()
        self._size = 0

    def begin(self, step: PathStep) -> Future[_Decoded]:
        """The members of a step's group. Without a pool it is decoded here."""
        place = step.pack, step.offset
        if place not in self._recent:
            size = sum(member.nbytes for member in step.header.members)
            self._recent[place] = self._decoding(step), size
            self._size += size
            while self._size > KEPT and len(self._recent) > 1:
                self._size -= self._recent.popitem(last=False)[1][1]
        self._recent.move_to_end(place)
        self._uses[place] -= 1
        if self._uses[place]:
            return self._recent[place][0]
        coming, size = self._recent.pop(place)
        self._size -= size
        return coming

    def _decoding(self, step: PathStep) -> Future[_Decoded]:
        if self._pool is not None:
            return self._pool.submit(decode_shared, self._packs, step, check=self._check)
        done: Future[_Decoded] = Future()
        done.set_result(decode_shared(self._packs, step, check=self._check))
        return done

    def cancel(self) -> None:
        for coming, _ in self._recent.values():
            coming.cancel()


def _apply(
    packs: PackReader, together: _Together, coming: Future[_Decoded] | None, check: bool
) -> None:
    step = together[0][0]
    if coming is None:
        for each, out in together:
            apply_steps(packs, [each], out, in_order, check=check)
        return
    if any(len(out) != each.member.nbytes for each, out in together):
        raise DamagedData(f"{short_name(step)} has a wrong length")
    decoded, operator = coming.result(), pipeline_of(step).operator
    # By id and start: a header may have been read again since the path was planned.
    places = {(member.id, member.start): i for i, member in enumerate(step.header.members)}
    for each, out in together:
        found = decoded[places[each.member.id, each.member.start]]
        if isinstance(found, Addition):
            if each.reverse:
                raise DamagedData(f"{short_name(step)} is an addition, which cannot be undone")
            found.apply(out)
            continue
        delta, width = found
        if each.member.base:
            combine(operator, out, delta, width, reverse=each.reverse)
        else:
            out[:] = delta


def decode_shared(packs: PackReader, step: PathStep, *, check: bool = True) -> _Decoded:
    """All members of a group, as ``decode_group`` or ``decode_steps``. Raises DamagedData."""
    pipeline = pipeline_of(step)
    sizes = [member.nbytes for member in step.header.members]
    joint = step.member.coding.joint
    if sum(sizes) > (MOST_JOINT if joint else MOST_GROUPED):
        raise DamagedData(f"{short_name(step)} claims another length than there can be")
    payload = packs.payload(step.pack, step.offset, step.header, step.member, check=check)
    if joint:
        if not step.member.base:
            raise DamagedData(f"{short_name(step)} is a super-step of nothing")
        return decode_super_step(pipeline, payload, sizes, joint)
    if pipeline.forward_only:
        return decode_steps(pipeline, payload, sizes)
    return decode_group(pipeline, payload, sizes)


def decode_super_step(
    pipeline: Pipeline, payload: memoryview, sizes: list[int], joint: int
) -> list[Addition]:
    """The members of a super-step of ``joint`` times, time after time. Raises DamagedData.

    ``sizes`` are the raw bytes of all of them, at most ``MOST_JOINT`` together: the symbols of
    all times are in memory at once.
    """
    one = sizes[: len(sizes) // joint]
    if sum(sizes) > MOST_JOINT or one * joint != sizes or Cursor(payload).varint() != joint:
        raise DamagedData(f"a super-step does not have {joint} steps of the same objects")
    return [added for time in decode_joint(pipeline, payload, one) for added in time]
