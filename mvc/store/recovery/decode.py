"""Decodes stored objects, such as tensors: first a full record, then the deltas that follow.

An object is divided into pieces of at most 32 MiB. A *payload* is an encoded piece, in chunks
of 1 MiB. Some deltas are differences from a prediction. The formula of an optimizer's step computes
this prediction from the base (the tensor before the step) and from *inputs*, other tensors such as
moments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias

from blake3 import blake3

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
from mvc.store.packs.records import PAYLOAD_CHECK, TRANSFORMS, Coding, RecordHeader
from mvc.types import FIRST_RELEASE

LOADED = 32 << 20
"""Limit of payload bytes that are in memory at a time, to decode one piece."""

_STREAMED = 8 << 20
"""If a piece has more bytes, its payload is read chunk by chunk, not as a whole."""

Each: TypeAlias = Callable[[Callable[[int], Callable[[], None]], range], None]
"""Does the work for all chunks: calls its first argument with the offset of each chunk, in order.

Each of these calls loads a chunk, and returns a function that decodes the chunk. The thread calls
this function before it loads another chunk. Several threads may share the work. Then chunks are
decoded in any order.
"""
_Chunk: TypeAlias = tuple[memoryview, int]
"""An encoded chunk: its bytes, and the width of its elements."""
_Work: TypeAlias = Callable[[_Chunk, memoryview, Sequence[memoryview], memoryview], None]
"""Decodes a chunk. Arguments: the chunk, the base, the inputs, the buffer for the result."""


class _Scratch(threading.local):
    """A thread's buffers for the payloads and chunks that it reads. The buffers are reused."""

    def __init__(self) -> None:
        self.arena, self.chunks = Arena(LOADED), Arena(LOADED)


_scratch = _Scratch()


class _Streamed:
    """A payload whose chunks are read one by one, first to last."""

    def __init__(self, packs: PackReader, step: PathStep) -> None:
        self._packs, self._step, member = packs, step, step.member
        self._at = step.offset + step.header.body_at + member.at
        room = memoryview(bytearray(member.nbytes // CHUNK * 4))
        head = packs.part(step.pack, self._at, room[: member.stored])
        self._table = Payload(head, member.nbytes, stored=member.stored)
        if self._table.chunk_size != CHUNK:
            raise DamagedData(f"{short_name(step)} cannot be read by chunks")
        self.width, self._hasher = self._table.width, blake3(head[: self._table.place(0).start])

    def chunk(self, index: int) -> memoryview:
        """The encoded chunk, in a buffer that this thread's next call of ``_chunks`` overwrites.

        The call for the last chunk verifies the checksum of the payload. Raises DamagedData.
        """
        step, member, place = self._step, self._step.member, self._table.place(index)
        room = _scratch.chunks.allocate(place.stop - place.start)
        self._hasher.update(self._packs.part(step.pack, self._at + place.start, room))
        if place.stop == member.stored and self._hasher.digest(PAYLOAD_CHECK) != member.check:
            raise DamagedData(f"{short_name(step)} does not match its checksum")
        return room


def short_name(step: PathStep) -> str:
    """An object and its pack, for messages."""
    return f"object {step.member.id.hex()[:10]} in pack {step.pack}"


def pipeline_of(step: PathStep) -> Pipeline:
    """The pipeline that a payload's coding names, such as ``xor | planes | zstd:1``.

    Raises DamagedData if the pipeline does not exist or does not fit the record.
    """
    member = step.member
    try:
        pipeline = Pipeline.parse(member.coding.pipeline)
    except InvalidPipeline as error:
        raise DamagedData(f"{short_name(step)} names an unknown coding") from error
    if member.coding.joint and not pipeline.forward_only:
        raise DamagedData(
            f"{short_name(step)} is a delta over several versions, but its coding cannot add floats"
        )
    if pipeline.forward_only and not member.coding.forward_only:
        raise DamagedData(f"{short_name(step)} has a coding that mvc never writes")
    if bool(member.inputs) > member.coding.predicted:
        raise DamagedData(f"{short_name(step)} has inputs, but no prediction")
    if (pipeline.operator == "none") == bool(member.base) or (
        (pipeline.scope == "group") != step.header.group or pipeline is not pipeline.coding()
    ):
        raise DamagedData(f"{short_name(step)} names a coding that does not fit its record")
    return pipeline


def _prediction_of(step: PathStep, pipeline: Pipeline) -> Prediction:
    """The prediction that a payload's coding names.

    Raises DamagedData if the prediction does not exist or does not fit the record.
    """
    try:
        prediction = Prediction.parse(step.member.coding.transform)
    except InvalidPipeline as error:
        raise DamagedData(f"{short_name(step)} names an unknown coding") from error
    if len(step.member.inputs) != prediction.inputs or pipeline.scope == "group":
        raise DamagedData(f"{short_name(step)} names a prediction that does not fit its record")
    return prediction


def check_codings(header: RecordHeader) -> None:
    """Checks the codings of a record's members. A coding says how a member is encoded.

    Raises DamagedData if a coding does not exist, or does not fit its member.
    """
    for member in {
        (m.coding.text, bool(m.base), len(m.inputs)): m
        for m in header.members
        if m.coding.transform != "patch"  # a patch has no pipeline
    }.values():
        _work(PathStep(0, 0, header, member, reverse=False))


@lru_cache(maxsize=4096)
def coding_features(text: str) -> frozenset[str]:
    """The format features that a reader needs to decode a payload with the coding ``text``."""
    coding = Coding(text)
    features = {f for name, f in TRANSFORMS.items() if coding.transform.startswith(name)}
    with suppress(InvalidPipeline):
        features |= Pipeline.parse(coding.pipeline).features
    return frozenset(features - {FIRST_RELEASE})


def apply_steps(
    packs: PackReader,
    steps: Sequence[PathStep],
    out: memoryview,
    run: Each,
    done: Callable[[memoryview], None] | None = None,
    *,
    check: bool = True,
) -> None:
    """Decodes a full record and deltas into ``out``, chunk by chunk.

    All pieces must have the length of ``out``. If ``steps`` has no full record, the deltas are
    applied to the bytes in ``out``. ``run`` and ``check``: as for ``apply_actions``. ``done`` is
    called with each decoded chunk. With ``done``, ``run`` must process the chunks in order.
    """
    works = list(map(_work, steps))
    payloads = _read_all(packs, steps, len(out), check=check, streams=check)

    def begin(start: int) -> Callable[[], None]:
        chunks, part = _chunks(payloads, start), out[start : start + CHUNK]

        def end() -> None:
            for work, encoded in zip(works, chunks, strict=True):
                work(encoded, part, (), part)
            if done is not None:
                done(part)

        return end

    run(begin, range(0, len(out), CHUNK))


def in_order(begin: Callable[[int], Callable[[], None]], starts: range) -> None:
    """Runs the work for every chunk in this thread, first to last."""
    for start in starts:
        begin(start)()


def apply_actions(
    packs: PackReader,
    actions: Sequence[Action],
    pieces: Mapping[bytes, memoryview],
    run: Each,
    *,
    begin: int = 0,
    check: bool = True,
) -> None:
    """Executes the actions of a plan. All actions are executed for one chunk, then for the next.

    ``pieces``: maps the ids of all results, bases and inputs to buffers of equal length. Byte 0 of
    a buffer is byte ``begin`` of a piece. A base and its result may share a buffer. ``run`` does
    the work for all chunks. Without ``check``, payload checksums are ignored, and the caller checks
    the result.
    """
    steps = [step for action in actions for step in action.steps]
    size, end = steps[-1].member.nbytes, begin + len(pieces[actions[0].id])
    works = list(map(_work, steps))
    payloads = _read_all(packs, steps, size, check=check, streams=check and end - begin == size)

    def load(start: int) -> Callable[[], None]:
        chunks, views = _chunks(payloads, start), slice(start - begin, start - begin + CHUNK)

        def apply() -> None:
            at = 0
            for action in actions:
                out, *inputs = (pieces[id_][views] for id_ in (action.id, *action.inputs))
                base = out
                if action.base is not None and pieces[action.base] is not pieces[action.id]:
                    base = pieces[action.base][views]
                for _ in action.steps:
                    works[at](chunks[at], base, inputs, out)
                    base, at = out, at + 1

        return apply

    run(load, range(begin, end, CHUNK))


def _chunks(payloads: Sequence[Payload | _Streamed], start: int) -> list[_Chunk]:
    """The encoded chunks of all payloads at byte ``start``, valid until this thread's next call."""
    _scratch.chunks.reset()
    return [(payload.chunk(start // CHUNK), payload.width) for payload in payloads]


def _read_all(
    packs: PackReader, steps: Sequence[PathStep], size: int, *, check: bool, streams: bool
) -> list[Payload | _Streamed]:
    """The payloads of ``steps``. ``streams``: whether all chunks will be read in order."""
    _scratch.arena.reset()
    return [_read(packs, step, size, check=check, streams=streams) for step in steps]


def _work(step: PathStep) -> _Work:
    pipeline = pipeline_of(step)
    prediction = _prediction_of(step, pipeline) if step.member.coding.predicted else None

    def work(
        chunk: _Chunk, base: memoryview, inputs: Sequence[memoryview], out: memoryview
    ) -> None:
        encoded, width = chunk
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


def _read(
    packs: PackReader, step: PathStep, size: int, *, check: bool, streams: bool
) -> Payload | _Streamed:
    if step.member.nbytes != size:
        raise DamagedData(f"{short_name(step)} has a wrong length")
    if streams and size > _STREAMED:
        with suppress(DamagedData):
            return _Streamed(packs, step)
    room = _scratch.arena.allocate(step.member.stored)
    data = packs.payload(step.pack, step.offset, step.header, step.member, room=room, check=check)
    payload = Payload(data, size)
    if payload.chunk_size != CHUNK and size > CHUNK:
        raise DamagedData(f"{short_name(step)} has chunks of another size")
    return payload
