"""Walking paths and plans: payloads are decoded where they lie on the way to a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

from mvc.codecs import cast
from mvc.codecs.patch import decode_patch_into
from mvc.errors import DamagedData
from mvc.limits import MAX_MANIFEST, PIECE
from mvc.store.graph.plan import Action, Plan
from mvc.store.graph.search import Path, PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import patch_extra
from mvc.store.recovery.decode import LOADED, apply_actions, apply_steps, in_order, short_name
from mvc.store.recovery.grouped import is_grouped, walk_together

_MOST_PIECES = 16 * PIECE
"""Bytes of the pieces that are in memory together while a plan is carried out."""


class Walker:
    """Decodes payloads of some packs. Safe across threads."""

    def __init__(self, packs: PackReader, pool: Executor) -> None:
        self.packs = packs
        self.pool = pool

    def walk(
        self,
        steps: Sequence[PathStep],
        out: memoryview,
        origin: memoryview | None = None,
        *,
        parallel: bool = False,
        check: bool = True,
    ) -> None:
        """Fills ``out``: from transform to transform, and straight on between them.

        With ``origin`` the first step is a delta to these bytes. No step may be predicted.
        ``parallel``: with the threads of the pool; else in this thread, which may be one of them.
        Without ``check`` the caller checks the result. Raises DamagedData.
        """
        sections = _sections(steps) or [(None, ())]
        state = memoryview(b"") if origin is None else origin
        for i, (transform, straight) in enumerate(sections):
            last = i + 1 == len(sections)
            target = out if last else room_for(transform or straight[0])
            if transform is not None:
                self._cross(transform, state, target, check)
            elif origin is not None:
                if len(state) != len(target):
                    raise DamagedData("a delta has another length than what it starts from")
                target[:] = state
            self._straight(straight, target, parallel=parallel and last, check=check)
            state = target

    def run(
        self,
        plan: Plan,
        outs: Mapping[bytes, memoryview],
        held: Mapping[bytes, memoryview],
        *,
        parallel: bool = False,
        check: bool = True,
    ) -> None:
        """Fills the buffer of every target of a plan.

        ``held``: the pieces of those objects at which the plan begins. ``parallel`` and ``check``
        are as for ``walk``.
        """
        each = self._spread if parallel else in_order
        pieces = _buffers(plan, outs, held)
        for batch in _batches(plan.actions):
            first = batch[0]
            if len(batch) > 1 or first.inputs or first.steps[0].member.coding.predicted:
                apply_actions(self.packs, batch, pieces, each, read=each, check=check)
                continue
            origin = None if first.base is None else pieces[first.base]
            self.walk(first.steps, pieces[first.id], origin, parallel=parallel, check=check)

    def _straight(
        self, steps: Sequence[PathStep], out: memoryview, *, parallel: bool, check: bool
    ) -> None:
        """A full record, or nothing where ``out`` is filled already; then undirected deltas."""
        path = Path(tuple(steps), 0.0)
        if is_grouped(path):
            pool = self.pool if parallel else None
            walk_together(self.packs, [(path, out)], pool, check=check)
            return
        each = self._spread if parallel else in_order
        if path.stored <= LOADED:
            if steps:
                apply_steps(self.packs, steps, out, each, read=each, check=check)
            return
        for step in steps:
            apply_steps(self.packs, [step], out, each, check=check)

    def _spread(self, work: Callable[[int], None], starts: range) -> None:
        if len(starts) == 1:
            work(0)
        else:
            drain([self.pool.submit(work, start) for start in starts])

    def _cross(self, step: PathStep, base: memoryview, out: memoryview, check: bool) -> None:
        """Fills ``out`` by one forward transform from the bytes of its base."""
        member = step.member
        if member.nbytes != len(out):
            raise DamagedData(f"{short_name(step)} has a wrong length")
        transform = member.coding.transform
        if transform == "patch":
            payload = self.packs.payload(step.pack, step.offset, step.header, member, check=check)
            extra = patch_extra(step.header.members, member.kind)
            old = base if member.base else memoryview(b"")
            decode_patch_into(memoryview(payload), old, extra, out)
            return
        if transform == "resize":
            common = min(len(base), len(out))
            out[:common] = base[:common]
            out[common:] = bytes(len(out) - common)
        else:
            source, _, to = transform.removeprefix("cast:").partition(">")
            if not cast.supported(source, to) or len(base) != len(out) * cast.RATIO:
                raise DamagedData(f"{short_name(step)} is converted from something else")
            out[:] = memoryview(cast.cast(base, source, to)).cast("B")
        self._straight([step], out, parallel=False, check=check)


def _by_chunks(action: Action) -> bool:
    """Whether every chunk of what an action makes can be made by itself."""
    return not any(
        step.header.group or (step.member.coding.transform and not step.member.coding.predicted)
        for step in action.steps
    )


def _alike(one: Action, other: Action) -> bool:
    sizes = {action.steps[-1].member.nbytes for action in (one, other)}
    return len(sizes) == 1 and _by_chunks(one) and _by_chunks(other)


def _batches(actions: Sequence[Action]) -> Iterator[list[Action]]:
    """Those that are carried out chunk by chunk, as far as their payloads fit into memory."""
    batch: list[Action] = []
    loaded = 0
    for action in actions:
        stored = sum(step.member.stored for step in action.steps)
        if batch and (loaded + stored > LOADED or not _alike(batch[0], action)):
            yield batch
            batch, loaded = [], 0
        batch.append(action)
        loaded += stored
    if batch:
        yield batch


def _buffers(
    plan: Plan, outs: Mapping[bytes, memoryview], held: Mapping[bytes, memoryview]
) -> dict[bytes, memoryview]:
    """Where the piece of every object lies while it is needed; targets lie in ``outs``."""
    pieces = {**held, **outs}
    for id_ in outs.keys() & held.keys():
        if len(outs[id_]) != len(held[id_]):
            raise DamagedData(f"object {id_.hex()[:10]} has another length than was asked for")
        outs[id_][:] = held[id_]
    spare: list[memoryview] = []
    total = 0
    for action in plan.actions:
        last, nbytes = action.steps[-1], action.steps[-1].member.nbytes
        if _by_chunks(action) and any(len(pieces[id_]) != nbytes for id_ in action.needs):
            raise DamagedData(f"{short_name(last)} builds on what has another length")
        given_up = [id_ for id_ in action.drops if id_ not in outs and id_ not in held]
        fitting = next((room for room in spare if len(room) == nbytes), None)
        if action.id in outs:
            if len(outs[action.id]) != nbytes:
                raise DamagedData(f"{short_name(last)} has a wrong length")
        elif action.base in given_up and action.base not in action.inputs and _by_chunks(action):
            pieces[action.id] = pieces[action.base]
            given_up.remove(action.base)
        elif fitting is not None:
            pieces[action.id] = fitting
            spare = [room for room in spare if room is not fitting]
        else:
            total += nbytes
            if total > _MOST_PIECES and total > nbytes:
                raise DamagedData(f"{short_name(last)} needs too many others")
            pieces[action.id] = room_for(last)
        spare += [pieces[id_] for id_ in given_up if id_ != action.id]
    return pieces


def _sections(steps: Sequence[PathStep]) -> list[tuple[PathStep | None, tuple[PathStep, ...]]]:
    """A path cut at its forward transforms: each with the undirected steps after it."""
    starts = [i for i, step in enumerate(steps) if step.member.coding.transform]
    ends = [*starts[1:], len(steps)]
    sections: list[tuple[PathStep | None, tuple[PathStep, ...]]] = (
        [
            (steps[start], tuple(steps[start + 1 : end]))
            for start, end in zip(starts, ends, strict=True)
        ]
        if starts
        else []
    )
    first = starts[0] if starts else len(steps)
    return [(None, tuple(steps[:first])), *sections] if first else sections


def room_for(step: PathStep) -> memoryview:
    """Memory for a step's result; DamagedData if it claims more than any object has."""
    if step.member.nbytes > max(MAX_MANIFEST, PIECE):
        raise DamagedData(f"{short_name(step)} claims {step.member.nbytes} bytes")
    return memoryview(bytearray(step.member.nbytes))


def drain(waiting: list[Future[None]]) -> None:
    """Waits for all, then raises the first failure."""
    failures = [error for future in waiting if (error := future.exception()) is not None]
    waiting.clear()
    if failures:
        raise failures[0]
