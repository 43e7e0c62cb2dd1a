"""Decoding the payloads of a path: each changes the bytes recovered so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias

from mvc.codecs.optim import Prediction
from mvc.codecs.payload import Payload
from mvc.errors import DamagedData, InvalidPipeline
from mvc.limits import CHUNK
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import apply_predicted
from mvc.store.graph.plan import Action
from mvc.store.graph.search import PathStep
from mvc.store.packs.arena import Arena
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import TRANSFORMS, Coding
from mvc.types import FIRST_RELEASE

LOADED = 32 << 20
"""Payload bytes of one path that are in memory together."""

Each: TypeAlias = Callable[[Callable[[int], None], range], None]
_Work: TypeAlias = Callable[[int, memoryview, Sequence[memoryview], memoryview], None]
"""Applies a payload to a chunk: its offset, the base, what it is predicted from, the result."""


class _Scratch(threading.local):
    """Memory into which a thread reads payloads, reused every time."""

    def __init__(self) -> None:
        self.arena = Arena(LOADED)


_scratch = _Scratch()


def short_name(step: PathStep) -> str:
    """An object and where it is stored, for messages."""
    return f"object {step.member.id.hex()[:10]} in pack {step.pack}"


def pipeline_of(step: PathStep) -> Pipeline:
    """The pipeline that a payload names; DamagedData unless it exists and fits the payload."""
    member = step.member
    try:
        pipeline = Pipeline.parse(member.coding.pipeline)
    except InvalidPipeline as error:
        raise DamagedData(f"{short_name(step)} names a coding that does not exist") from error
    if member.coding.joint and not pipeline.forward_only:
        raise DamagedData(f"{short_name(step)} names a super-step of what cannot be added")
    if pipeline.forward_only and not member.coding.forward_only:
        raise DamagedData(f"{short_name(step)} names a coding in a form that is never stored")
    if bool(member.inputs) > member.coding.predicted:
        raise DamagedData(f"{short_name(step)} has inputs, but nothing is predicted from them")
    if (pipeline.operator == "none") == bool(member.base) or (
        (pipeline.scope == "group") != step.header.group or pipeline is not pipeline.coding()
    ):
        raise DamagedData(f"{short_name(step)} names a coding of another kind than its own")
    return pipeline


def _prediction_of(step: PathStep, pipeline: Pipeline) -> Prediction:
    """The prediction that a payload names; DamagedData unless it exists and fits the payload."""
    try:
        prediction = Prediction.parse(step.member.coding.transform)
    except InvalidPipeline as error:
        raise DamagedData(f"{short_name(step)} names a coding that does not exist") from error
    if len(step.member.inputs) != prediction.inputs or pipeline.scope == "group":
        raise DamagedData(f"{short_name(step)} is predicted in a way that does not exist")
    return prediction


@lru_cache(maxsize=4096)
def coding_features(text: str) -> frozenset[str]:
    """What a reader of the repository's format must know for a coding that a record names."""
    coding = Coding(text)
    found = {f for name, f in TRANSFORMS.items() if coding.transform.startswith(name)}
    with suppress(InvalidPipeline):
        found |= Pipeline.parse(coding.pipeline).features
    return frozenset(found - {FIRST_RELEASE})


def apply_steps(
    packs: PackReader,
    steps: Sequence[PathStep],
    out: memoryview,
    each: Each,
    done: Callable[[memoryview], None] | None = None,
    *,
    read: Each | None = None,
    check: bool = True,
) -> None:
    """Decodes a full record and equal-length deltas, or some of the deltas, chunk by chunk.

    As ``apply_actions``. ``done`` is called with each finished chunk (only for an ``each`` that
    keeps the order).
    """
    works = _prepared(packs, steps, len(out), read or in_order, check=check)

    def chunk(start: int) -> None:
        part = out[start : start + CHUNK]
        for work in works:
            work(start, part, (), part)
        if done is not None:
            done(part)

    each(chunk, range(0, len(out), CHUNK))


def in_order(work: Callable[[int], None], starts: range) -> None:
    """Runs the work for every chunk in this thread, first to last."""
    for start in starts:
        work(start)


def apply_actions(
    packs: PackReader,
    actions: Sequence[Action],
    pieces: Mapping[bytes, memoryview],
    each: Each,
    *,
    begin: int = 0,
    read: Each | None = None,
    check: bool = True,
) -> None:
    """Makes some of ``pieces`` of others of them, chunk by chunk.

    All payloads are applied to a chunk while it is in the processor's cache. ``each`` runs the work
    for every chunk's offset, in any order; ``read`` reads every payload, as ``each``, instead of
    one after the other. All pieces have one length; ``pieces`` are their bytes from ``begin`` on,
    some chunks or all. A base may lie where the piece will that is made of it. Without ``check``
    the payloads' checksums are left to the caller, who checks the result.
    """
    steps = [step for action in actions for step in action.steps]
    size, end = steps[-1].member.nbytes, begin + len(pieces[actions[0].id])
    works = _prepared(packs, steps, size, read or in_order, check=check)

    def chunk(start: int) -> None:
        at, here = 0, slice(start - begin, start - begin + CHUNK)
        for action in actions:
            out, *inputs = (pieces[id_][here] for id_ in (action.id, *action.inputs))
            base = out
            if action.base is not None and pieces[action.base] is not pieces[action.id]:
                base = pieces[action.base][here]
            for _ in action.steps:
                works[at](start, base, inputs, out)
                base, at = out, at + 1

    each(chunk, range(begin, end, CHUNK))


def _prepared(
    packs: PackReader, steps: Sequence[PathStep], size: int, read: Each, check: bool
) -> list[_Work]:
    """Reads all payloads; returns what applies each to the chunk at a byte offset."""
    _scratch.arena.reset()
    rooms = [_scratch.arena.take(step.member.stored) for step in steps]
    works: dict[int, _Work] = {}

    def prepare(at: int) -> None:
        works[at] = _prepare(packs, steps[at], rooms[at], size, check=check)

    read(prepare, range(len(steps)))
    return [works[at] for at in range(len(steps))]


def _prepare(packs: PackReader, step: PathStep, room: memoryview, size: int, check: bool) -> _Work:
    pipeline = pipeline_of(step)
    prediction = _prediction_of(step, pipeline) if step.member.coding.predicted else None
    payload = _read(packs, step, room, size, check=check)

    def work(start: int, base: memoryview, inputs: Sequence[memoryview], out: memoryview) -> None:
        encoded, width = payload.chunk(start // CHUNK), payload.width
        if prediction is not None:
            sources = (base, *inputs)
            apply_predicted(pipeline, prediction, encoded, sources, out=out, width=width)
        elif not step.member.base:
            pipeline.decode_chunk(encoded, out, width)
        else:
            if base is not out:
                out[:] = base
            pipeline.apply_chunk(encoded, out, width, reverse=step.reverse)

    return work


def _read(packs: PackReader, step: PathStep, room: memoryview, size: int, check: bool) -> Payload:
    if step.member.nbytes != size:
        raise DamagedData(f"{short_name(step)} has a wrong length")
    data = packs.payload(step.pack, step.offset, step.header, step.member, room=room, check=check)
    payload = Payload(data, size)
    if payload.chunk_size != CHUNK and size > CHUNK:
        raise DamagedData(f"{short_name(step)} is cut into chunks of a foreign size")
    return payload
