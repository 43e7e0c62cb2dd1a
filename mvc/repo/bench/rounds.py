"""Encoding and decoding batches of pieces as commit and checkout do, timed and compared.

Coding is chosen by ``store.choose``, chunks go to one thread a processor, group
pipelines see records of the store's size. Every decoding must give the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf

import numpy as np

from mvc.codecs.group import decode_group, encode_group, group_widths
from mvc.codecs.patch import decode_patch, encode_patch
from mvc.codecs.payload import Payload, pack_chunks
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.words import combine
from mvc.errors import DamagedData
from mvc.limits import CHUNK, RECORD, SLAB
from mvc.model.hashing import blob_id
from mvc.repo.bench.pieces import Unit, same
from mvc.store.packs.arena import Arena
from mvc.store.packs.records import payload_check
from mvc.store.writing.choose import Choice, Policy, choose, fitted
from mvc.store.writing.pieces import encode_chunk
from mvc.types import Bytes

__all__ = ["Coder", "Tally", "Trial"]

_SLACK = 256  # bytes that an incompressible chunk may grow by
_ENDLESS = 1 << 60  # no chain ends while codings are compared


@dataclass
class Tally:
    """What one coding made of all it was given: bytes, and seconds of what was timed.

    ``chained`` and ``chain_stored`` are the part that was coded against a base.
    """

    raw: int = 0
    stored: int = 0
    chained: int = 0
    chain_stored: int = 0
    timed: int = 0
    encode: float = 0.0
    decode: float = 0.0

    @property
    def ratio(self) -> float:
        """Stored bytes per raw byte."""
        return self.stored / self.raw if self.raw else 0.0


@dataclass
class _Stored:
    """What is written in one go: the payload of one piece, or of a group of them."""

    units: list[Unit]
    choice: Choice
    widths: list[int]  # of each unit's elements
    chunks: list[Future[Bytes]] = field(default_factory=list)
    parts: Sequence[Bytes] = ()
    size: int = 0

    @property
    def grouped(self) -> bool:
        return self.choice.pipeline is not None and self.choice.pipeline.scope == "group"


class Coder:
    """Runs codings over batches. Memory: a few slabs, kept and used again."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._room = Arena(SLAB + (SLAB // CHUNK) * _SLACK)
        self._out = Arena(SLAB)

    def copy(self) -> tuple[int, float]:
        """The yardstick: bytes copied in memory by one thread, too many for a cache; seconds."""
        self._room.reset()
        self._out.reset()
        source, out = self._room.take(SLAB), self._out.take(SLAB)
        np.frombuffer(source, np.uint8).fill(1)  # pages never written to would all be one

        def work() -> None:
            out[:] = source

        return SLAB, _timed(work)

    def hash(self, units: Sequence[Unit]) -> float:
        """Seconds to hash the units, as every recovery does at its end."""
        return _timed(lambda: list(self._pool.map(lambda u: blob_id(u.spec, u.new), units)))

    def encode(self, pipeline: Pipeline, units: Sequence[Unit]) -> list[_Stored]:
        """Payloads of all units, each as the smallest of what the pipeline allows."""
        self._room.reset()
        policy = Policy(pipeline, _ENDLESS, inf)
        done: list[_Stored] = []
        open_: dict[str, _Stored] = {}  # groups being gathered, by coding
        gathered = 0
        for unit in units:
            choice = choose(unit.spec, unit.new, unit.base_spec, unit.base, policy)[-1]
            stored = _Stored([unit], choice, [choice.width])
            if not stored.grouped:
                self._submit(stored)
                done.append(stored)
                continue
            if choice.text in open_:
                open_[choice.text].units.append(unit)
                open_[choice.text].widths.append(choice.width)
            else:
                open_[choice.text] = stored
                done.append(stored)
            gathered += len(unit.new)
            if gathered >= RECORD:
                self._submit_groups(open_)
                gathered = 0
        self._submit_groups(open_)
        for stored in done:
            stored.parts = _payload(stored)
            stored.size = sum(len(part) for part in stored.parts)
            payload_check(stored.parts)
        return done

    def _submit_groups(self, groups: dict[str, _Stored]) -> None:
        """One after the other, as the store's one appending thread codes them."""
        for stored in groups.values():
            pipeline, against = _pipeline(stored.choice), stored.choice.against
            members = [
                (u.new, fitted(u.base.data, len(u.new)) if against and u.base else None, width)
                for u, width in zip(stored.units, stored.widths, strict=True)
            ]
            stored.parts = list(encode_group(pipeline, members))
        groups.clear()

    def _submit(self, stored: _Stored) -> None:
        choice, (unit,) = stored.choice, stored.units
        base = unit.base.data if choice.against and unit.base else None
        if choice.pipeline is None:
            old = memoryview(bytes(base) if base is not None else b"")
            stored.chunks.append(self._pool.submit(encode_patch, unit.new, old))
            return
        fit = None if base is None else fitted(base, len(unit.new))
        for at in range(0, len(unit.new), CHUNK):
            room = self._room.take(min(CHUNK, len(unit.new) - at) + _SLACK)
            stored.chunks.append(
                self._pool.submit(
                    encode_chunk, choice.pipeline, unit.new, fit, at, choice.width, room
                )
            )

    def decode(self, stored: Sequence[_Stored], name: str) -> float:
        """Seconds to decode, bases at hand. Raises DamagedData if other bytes come back."""
        self._out.reset()
        outs: list[list[memoryview]] = []
        payloads: list[memoryview] = []
        for one in stored:
            payloads.append(memoryview(b"".join(one.parts)))
            one.parts = ()  # one copy is enough
            outs.append([self._out.take(len(u.new)) for u in one.units])
            for unit, out in zip(one.units, outs[-1], strict=True):
                if one.choice.against and unit.base:
                    out[:] = fitted(unit.base.data, len(out))

        def work() -> None:
            waiting: list[Future[None]] = []
            for one, payload, out in zip(stored, payloads, outs, strict=True):
                waiting += self._decode_one(one, payload, out)
            for future in waiting:
                future.result()

        seconds = _timed(work)
        for one, given in zip(stored, outs, strict=True):
            for unit, got in zip(one.units, given, strict=True):
                if not same(unit.new, got):
                    raise DamagedData(
                        f"pipeline {name} does not give back the bytes of {unit.key[1]!r}",
                        hint="this is an error of mvc: please report it with the file",
                    )
        return seconds

    def _decode_one(
        self, one: _Stored, payload: memoryview, outs: list[memoryview]
    ) -> list[Future[None]]:
        pipeline = one.choice.pipeline
        if pipeline is None:
            return [self._pool.submit(_unpatch, one, payload, outs[0])]
        if one.grouped:
            _ungroup(one, payload, outs)
            return []
        read = Payload(payload, len(outs[0]))
        return [
            self._pool.submit(
                _undo, pipeline, read.chunk(i), outs[0][slice(*read.raw_range(i))],
                read.width, one.choice.against,
            )
            for i in range(read.count)
        ]  # fmt: skip


@dataclass
class Trial:
    """The best of several rounds over one batch."""

    coder: Coder
    pipeline: Pipeline
    units: Sequence[Unit]
    rounds: int
    _encode: float = inf
    _decode: float = inf
    _last: list[tuple[int, int, bool]] = field(default_factory=list)  # raw, stored, against

    def run(self) -> None:
        if not self.units:
            return
        stored: list[_Stored] = []

        def work() -> None:
            stored.extend(self.coder.encode(self.pipeline, self.units))

        self._encode = min(self._encode, _timed(work))
        self._decode = min(self._decode, self.coder.decode(stored, self.pipeline.text))
        self._last = [
            (sum(len(u.new) for u in one.units), one.size, one.choice.against) for one in stored
        ]

    def add_to(self, tally: Tally) -> None:
        """Adds the bytes, and where the rounds were for timing the best seconds."""
        raw = sum(size for size, _, _ in self._last)
        tally.raw += raw
        tally.stored += sum(size for _, size, _ in self._last)
        tally.chained += sum(size for size, _, against in self._last if against)
        tally.chain_stored += sum(size for _, size, against in self._last if against)
        if self.rounds > 1 and raw:
            tally.timed += raw
            tally.encode += self._encode
            tally.decode += self._decode


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _pipeline(choice: Choice) -> Pipeline:
    assert choice.pipeline is not None
    return choice.pipeline


def _payload(stored: _Stored) -> Sequence[Bytes]:
    """The payload in the parts that a record is written of."""
    chunks = [future.result() for future in stored.chunks]
    stored.chunks = []
    if stored.grouped:
        return stored.parts
    if stored.choice.pipeline is None:
        return chunks
    return pack_chunks(chunks, len(stored.units[0].new), stored.choice.width, CHUNK)


def _undo(
    pipeline: Pipeline, encoded: memoryview, out: memoryview, width: int, against: bool
) -> None:
    if against:
        pipeline.apply_chunk(encoded, out, width, reverse=False)
    else:
        pipeline.decode_chunk(encoded, out, width)


def _unpatch(one: _Stored, payload: memoryview, out: memoryview) -> None:
    unit = one.units[0]
    base = unit.base.data if one.choice.against and unit.base else memoryview(b"")
    out[:] = decode_patch(payload, base, b"", len(out))


def _ungroup(one: _Stored, payload: memoryview, outs: list[memoryview]) -> None:
    pipeline = _pipeline(one.choice)
    decoded = decode_group(pipeline, payload, [len(out) for out in outs])
    widths = group_widths(payload, len(outs))
    for out, data, width in zip(outs, decoded, widths, strict=True):
        if one.choice.against:
            combine(pipeline.operator, out, data, width)
        else:
            out[:] = data
