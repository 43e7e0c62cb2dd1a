"""Executes a plan (``mvc.store.graph.plan``) that decodes objects, such as tensors.

A plan is a list of actions. Each action decodes one *piece*: at most 32 MiB of an object. A piece
that the caller did not request is deleted when no later action needs it.

A *predicted* piece is stored as its difference from a prediction, which an optimizer's step
computes from a base (the weights before the step) and inputs (moments, for example). Each chunk
(1 MiB) of the piece needs only the chunks at the same offset of base and inputs. So a series of
predicted versions is decoded chunk by chunk, with the needed chunks in the CPU cache.
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
"""Maximum number of bytes in memory of pieces that the caller did not request."""


def carry_out(
    walker: Walker,
    plan: PiecePlan,
    outs: Mapping[bytes, memoryview],
    available: Mapping[bytes, memoryview],
    *,
    parallel: bool = False,
    check: bool = True,
) -> None:
    """Fills ``outs``, which maps the id of each requested object to a buffer for its piece.

    ``available``: pieces in memory, by object id, from which the plan may decode. ``parallel`` and
    ``check``: as for ``Walker.walk``. Raises DamagedData.
    """
    for id_ in outs.keys() & available.keys():
        if len(outs[id_]) != len(available[id_]):
            raise DamagedData(f"object {id_.hex()[:10]} has an unexpected length")
        outs[id_][:] = available[id_]
    parts = _parts(plan.actions)
    needed = {id_: i for i, part in enumerate(parts) for a in part for id_ in a.needs}
    own: dict[bytes, memoryview] = {}  # pieces that later parts need
    for i, part in enumerate(parts):
        own = {id_: piece for id_, piece in own.items() if needed[id_] >= i}
        for action in part:
            if needed.get(action.id, i) > i and action.id not in outs:
                own[action.id] = room_for(action.steps[-1])
        if len(own) > 1 and sum(map(len, own.values())) > MOST_PIECES:
            raise _too_much(part)
        pieces, first = {**available, **own, **outs}, part[0]
        if len(part) == 1 and not first.steps[0].member.coding.predicted:
            origin = None if first.base is None else pieces[first.base]
            walker.walk(first.steps, pieces[first.id], origin, parallel=parallel, check=check)
        else:
            _by_windows(walker, part, pieces, parallel=parallel, check=check)


def _parts(actions: Sequence[Action]) -> list[list[Action]]:
    """Divides actions into parts that are executed one after another.

    The actions of one part are executed together, chunk by chunk. An action that cannot be executed
    chunk by chunk is the only action of its part.
    """
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
    """Executes a part: on whole pieces if they fit into ``MOST_PIECES``, else on a few chunks at a
    time.

    ``pieces``: the buffers of pieces that the caller or another part of the plan uses.
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
    run = walker.spread if parallel else in_order
    rooms = [np.empty(window, np.uint8).data for _ in range(count)]
    for begin in range(0, max(nbytes, 1), max(window, 1)):
        end = min(begin + window, nbytes)
        views = [room[: end - begin] for room in rooms]
        window_pieces = {id_: views[slot] for id_, slot in slots.items()}
        for action in part:
            outside = (id_ for id_ in (action.id, *action.needs) if id_ not in window_pieces)
            window_pieces |= {id_: pieces[id_][begin:end] for id_ in outside}
        for batch in in_batches(
            part, lambda action: sum(step.member.stored for step in action.steps), LOADED
        ):
            apply_actions(walker.packs, batch, window_pieces, run, begin=begin, check=check)


def _slots(
    part: Sequence[Action], pieces: Mapping[bytes, memoryview]
) -> tuple[dict[bytes, int], int]:
    """Assigns a buffer to each piece that only this part uses.

    Returns the index of the buffer of each piece, and how many buffers are needed. When no later
    action needs a piece, its buffer is used for another piece.
    """
    slots: dict[bytes, int] = {}
    spare: list[int] = []
    count = 0
    for action in part:
        released = [slots[id_] for id_ in action.drops if id_ in slots]
        if action.id not in pieces:
            base = slots.get(action.base or b"")
            if base in released and action.base not in action.inputs:
                released.remove(base)
            elif spare:
                base = spare.pop()
            else:
                base, count = count, count + 1
            slots[action.id] = base
        spare += released
    return slots, count


def in_batches(items: Iterable[_T], nbytes: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """Divides items into batches of at most ``most`` bytes. A larger item is a batch by itself."""
    batch, total = list[_T](), 0
    for item in items:
        size = nbytes(item)
        if batch and total + size > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    yield batch


def _too_much(part: Sequence[Action]) -> DamagedData:
    step = part[0].steps[-1]
    return DamagedData(f"{short_name(step)} depends on more objects than fit into memory")
