"""Carrying out a plan: the pieces on the way lie in memory only as long as others need them.

What a step predicts of a chunk needs the same chunk of other pieces alone. So a run of versions is
carried out chunk by chunk, while all that it needs is in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mvc.errors import DamagedData
from mvc.limits import CHUNK, PIECE
from mvc.store.graph.plan import Action, PiecePlan
from mvc.store.recovery.decode import LOADED, apply_actions, in_order, short_name
from mvc.store.recovery.walk import Walker, room_for

_T = TypeVar("_T")
MOST_PIECES = 12 * PIECE
"""Bytes of pieces that are in memory together, next to those that are wanted."""


def carry_out(
    walker: Walker,
    plan: PiecePlan,
    outs: Mapping[bytes, memoryview],
    held: Mapping[bytes, memoryview],
    *,
    parallel: bool = False,
    check: bool = True,
) -> None:
    """Fills the buffer of every target.

    ``held``: the pieces of those objects at which the plan begins. ``parallel`` and ``check`` are
    as for ``Walker.walk``. Raises DamagedData.
    """
    for id_ in outs.keys() & held.keys():
        if len(outs[id_]) != len(held[id_]):
            raise DamagedData(f"object {id_.hex()[:10]} has another length than was asked for")
        outs[id_][:] = held[id_]
    parts = _parts(plan.actions)
    needed = {id_: i for i, part in enumerate(parts) for each in part for id_ in each.needs}
    own: dict[bytes, memoryview] = {}  # what parts after the one at hand need
    for i, part in enumerate(parts):
        own = {id_: piece for id_, piece in own.items() if needed[id_] >= i}
        for action in part:
            if needed.get(action.id, i) > i and action.id not in outs:
                own[action.id] = room_for(action.steps[-1])
        if len(own) > 1 and sum(map(len, own.values())) > MOST_PIECES:
            raise _too_much(part)
        pieces, first = {**held, **own, **outs}, part[0]
        if len(part) == 1 and not first.steps[0].member.coding.predicted:
            origin = None if first.base is None else pieces[first.base]
            walker.walk(first.steps, pieces[first.id], origin, parallel=parallel, check=check)
        else:
            _by_windows(walker, part, pieces, parallel=parallel, check=check)


def _parts(actions: Sequence[Action]) -> list[list[Action]]:
    """Actions that are carried out together, chunk by chunk; others alone."""
    parts: list[list[Action]] = []
    for action in actions:
        size = action.steps[-1].member.nbytes
        alike = parts and action.by_chunks and parts[-1][0].by_chunks
        if alike and parts[-1][0].steps[-1].member.nbytes == size:
            parts[-1].append(action)
        else:
            parts.append([action])
    return parts


def _by_windows(
    walker: Walker,
    part: Sequence[Action],
    pieces: Mapping[bytes, memoryview],
    *,
    parallel: bool,
    check: bool,
) -> None:
    """Carries out a part: all at once, or some chunks after the other if that takes less memory.

    ``pieces``: what lies outside of the part and is needed in it, or the other way round.
    """
    nbytes = part[0].steps[-1].member.nbytes
    for action in part:
        for id_ in (action.id, *action.needs):
            if id_ in pieces and len(pieces[id_]) != nbytes:
                raise DamagedData(f"{short_name(action.steps[0])} has a wrong length")
    slots, count = _slots(part, pieces)
    window = nbytes if count * nbytes <= MOST_PIECES else MOST_PIECES // count // CHUNK * CHUNK
    if window == 0 < nbytes:
        raise _too_much(part)
    each = walker.spread if parallel else in_order
    rooms = [np.empty(window, np.uint8).data for _ in range(count)]
    for begin in range(0, max(nbytes, 1), max(window, 1)):
        end = min(begin + window, nbytes)
        views = [room[: end - begin] for room in rooms]
        here = {id_: views[slot] for id_, slot in slots.items()}
        for action in part:
            outside = (id_ for id_ in (action.id, *action.needs) if id_ not in here)
            here |= {id_: pieces[id_][begin:end] for id_ in outside}
        for batch in in_batches(part, _stored, LOADED):
            apply_actions(walker.packs, batch, here, each, begin=begin, check=check)


def _slots(
    part: Sequence[Action], pieces: Mapping[bytes, memoryview]
) -> tuple[dict[bytes, int], int]:
    """The number of the room of every piece that only the part needs; how many rooms there are."""
    slots: dict[bytes, int] = {}
    spare: list[int] = []
    count = 0
    for action in part:
        given_up = [slots[id_] for id_ in action.drops if id_ in slots]
        if action.id not in pieces:
            base = slots.get(action.base or b"")
            if base in given_up and action.base not in action.inputs:
                given_up.remove(base)
            elif spare:
                base = spare.pop()
            else:
                base, count = count, count + 1
            slots[action.id] = base
        spare += given_up
    return slots, count


def in_batches(items: Iterable[_T], nbytes: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """In their order as many together as have ``most`` bytes, or one that has more."""
    batch, total = list[_T](), 0
    for item in items:
        size = nbytes(item)
        if batch and total + size > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    yield batch


def _stored(action: Action) -> int:
    return sum(step.member.stored for step in action.steps)


def _too_much(part: Sequence[Action]) -> DamagedData:
    step = part[0].steps[-1]
    return DamagedData(f"{short_name(step)} needs more others than fit into memory")
