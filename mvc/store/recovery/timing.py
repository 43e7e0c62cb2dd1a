"""How long recovering versions takes on this machine, estimated for limits and reports.

Measured is the processor time of decoding a chunk, for every pipeline, width of elements, size
and degree of compression that occurs: on the repository's own records, or, for a pipeline that
has none yet, on a chunk that it encodes first. What was measured is kept for the process.
Processor time depends little on what else the machine does. The other figures are constants:
what a disk does is not measured, because that would write to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import log2
from typing import TypeAlias

import numpy as np
from blake3 import blake3

from mvc.codecs.optim import Prediction
from mvc.codecs.optim.rules import RULES
from mvc.codecs.payload import Payload
from mvc.errors import DamagedData, MvcError
from mvc.io.flushes import FLUSHES
from mvc.io.process import cpu_count
from mvc.limits import CHUNK, PIECE
from mvc.lossy.lc.payload import decode_steps, encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.model.tensor import TensorSpec
from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import apply_predicted, encode_predicted
from mvc.store.graph.plan import Action
from mvc.store.graph.search import Path, PathStep, Place
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import OPTIM, Coding, Member, RecordHeader
from mvc.store.recovery.decode import apply_actions, apply_steps
from mvc.store.recovery.grouped import decode_shared
from mvc.store.recovery.recover import Recovery, by_chunks

_OPEN = 10e-3  # seconds to open a repository and read a version's manifest
_LATENCY = 150e-6  # seconds to find a payload, and to prepare decoding it
_READ = 1e9  # payload bytes a second, from the system's cache
_COMBINED = 5e9  # raw bytes a second to which a decoded delta is applied
_WRITE = 1e9  # bytes a second into a file
_FILE = 100e-6  # seconds to make a file and to rename it
_FLUSH = 5e-3  # seconds to make files durable: one, or as many as are flushed at a time
_SERIAL = 0.15  # share of decoding for which threads wait for each other
_SMALL = 64 << 10  # raw bytes below which decoding is calls, in one thread at a time
_TRIAL = 256 << 10  # raw bytes that a pipeline without records is measured on
_RUNS = 3
_GROUP = -1  # the size class of large groups; below it are those of groups of about one size
_DTYPES = {1: np.int8, 2: np.float16, 4: np.float32, 8: np.float64}

Part: TypeAlias = tuple[float, Hashable | None]
"""Processor seconds of a payload on a path, and the group that it is in, if it is in one."""

_rates: dict[tuple[str, int, int, int], float] = {}
"""Processor seconds per raw byte, by pipeline, size class, width and degree of compression.

The width is the bytes of an element; 0 stands for any, and has the slowest rate.
"""
_worst: dict[tuple[str, int, int], float] = {}
"""The highest of these rates, by pipeline, size class and width."""


class Timing:
    """Estimates for one repository. Safe across threads."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._threads = cpu_count()

    def payload(
        self, header: RecordHeader, member: Member, spec: TensorSpec | None = None
    ) -> float:
        """Processor seconds to read and decode one payload; of a group's the object's share.

        ``spec``: of the object, if it is known.
        """
        text, share = _timed(member.coding), header.share(member)
        if member.coding.transform == "patch" or not member.nbytes:
            return _LATENCY + (share + member.nbytes) / _READ
        kind = _class(header, member)
        key = (text, kind, _width(header.group, spec), _degree(share, member.nbytes))
        if key not in _rates:
            with suppress(DamagedData):
                self._measure(self._recovery.graph.path(member.id, member.start))
            if key not in _rates:
                _rates[key] = _known(key[:3])
        return _LATENCY + share / _READ + _rates[key] * _size(kind, member.nbytes)

    def works(
        self, walks: Sequence[tuple[int, TensorSpec, Sequence[PathStep]]]
    ) -> list[tuple[int, float]]:
        """(raw bytes, processor seconds) of pieces that are recovered together.

        Each piece: its raw bytes, its object's spec and the steps of its plan. Groups count as in
        ``together``; where steps are predicted, a payload that several plans need counts once.
        """
        groups = {(s.pack, s.offset): s.header for *_, steps in walks for s in steps}
        counted: set[Place] = set()

        def part(step: PathStep, spec: TensorSpec) -> Part:
            if step.header.group:
                return 0.0, (step.pack, step.offset)
            return self.payload(step.header, step.member, spec), None

        def own(spec: TensorSpec, steps: Sequence[PathStep]) -> list[Part]:
            if any(step.member.coding.predicted for step in steps):
                steps = [step for step in steps if step.place not in counted]
                counted.update(step.place for step in steps)
            return [part(step, spec) for step in steps]

        def whole(place: Hashable) -> float:
            header = groups[place]  # type: ignore[index]
            return of_group(self.payload(header, member) for member in header.members)

        return together([(n, own(spec, steps)) for n, spec, steps in walks], whole)

    def coding(
        self, pipeline: Pipeline, nbytes: int, spec: TensorSpec, stored: int | None = None
    ) -> float:
        """As ``payload`` for so many bytes of an object that are not stored in this way yet.

        ``stored``: the payload bytes, if they can be told; else the slowest one counts.
        """
        grouped = pipeline.scope == "group"
        kind, width, rate = _kind(grouped, nbytes), _width(grouped, spec), None
        if stored is not None and nbytes:
            rate = _rates.get((pipeline.text, kind, width, _degree(stored, nbytes)))
        if rate is None:
            rate = _known((pipeline.text, kind, width))
        read = nbytes if stored is None else stored
        return _LATENCY + read / _READ + rate * _size(kind, nbytes)

    def decoding(self, works: Iterable[tuple[int, float]]) -> float:
        """Seconds until objects of so many raw bytes and processor seconds are decoded.

        Threads count only where they are used: what fits into one chunk is decoded by one.
        """
        total, held = 0.0, 0
        window: list[tuple[int, float]] = []
        for nbytes, seconds in works:
            if window and held + nbytes > PIECE:
                total += self._together(window, held)
                window, held = [], 0
            window.append((nbytes, seconds))
            held += nbytes
        return total + self._together(window, held)

    def version(self, works: Iterable[tuple[int, float]], files: int, nbytes: int) -> float:
        """Seconds to open the repository, decode and verify, and write ``nbytes`` in files."""
        verified = [(size, seconds + size * _hashing()) for size, seconds in works]
        flushed = _FLUSH * max(min(files, 1), files / FLUSHES)
        return _OPEN + files * _FILE + flushed + nbytes / _WRITE + self.decoding(verified)

    def _together(self, works: Sequence[tuple[int, float]], held: int) -> float:
        """Seconds for objects that are recovered together."""
        one_by_one = beside = longest = 0.0
        for nbytes, seconds in works:
            if nbytes < _SMALL:
                one_by_one += seconds
            elif len(works) == 1 or by_chunks(nbytes, held, self._threads):
                one_by_one += seconds * _share(_spread(min(nbytes, PIECE), self._threads))
            else:
                beside += seconds
                longest = max(longest, seconds)
        spread = beside * _share(self._threads) + longest * (1 - 1 / self._threads)
        return one_by_one + min(beside, spread)

    def _measure(self, path: Path) -> None:
        """Decodes one chunk along a path, and notes the processor time of each of its payloads.

        Not where a transform lies on it that is no prediction.
        """
        kinds = {s.member.coding.transform for s in path.steps if not s.member.coding.predicted}
        if kinds != {""} or any(s.member.nbytes > PIECE for s in path.steps):
            return
        packs = self._recovery.packs
        out = memoryview(bytearray(path.steps[-1].member.nbytes))
        for step in path.steps:
            if step.header.group:
                seconds = _best_in_new_memory(partial(_decode_whole, packs, step))
                _note(step, 0, seconds, step.header.raw_bytes)
                continue
            payload = packs.payload(step.pack, step.offset, step.header, step.member)
            width = Payload(payload, len(out)).width
            timed = partial(_time_one, step, width, out)
            if step.member.coding.predicted:
                pieces = dict.fromkeys((b"", *step.member.needs), out)
                action = Action(
                    b"", (step,), base=step.member.base, inputs=step.member.inputs, drops=()
                )
                apply_actions(packs, [action], pieces, timed)
            else:
                apply_steps(packs, [step], out, timed)


def forget_rates() -> None:
    """Drops what was measured in this process; it is measured again where it is needed."""
    _rates.clear()
    _worst.clear()


def together(
    walks: Sequence[tuple[int, Iterable[Part]]], whole: Callable[[Hashable], float]
) -> list[tuple[int, float]]:
    """(raw bytes, processor seconds) of pieces that are recovered together.

    Each piece: its raw bytes and the payloads on its path. A group counts once, however many of
    the paths lead through it, and with the seconds of the ``whole``: no member is decoded without
    the others. It counts with the largest of the pieces.
    """
    counted: set[Hashable] = set()
    seconds = [0.0] * len(walks)
    for i in sorted(range(len(walks)), key=lambda i: walks[i][0], reverse=True):
        nbytes, parts = walks[i]
        for own, group in parts:
            if group is None:
                seconds[i] += own
                continue
            seconds[i] += _LATENCY + nbytes / _COMBINED
            if group not in counted:
                counted.add(group)
                seconds[i] += whole(group)
    return [(nbytes, each) for (nbytes, _), each in zip(walks, seconds, strict=True)]


def of_group(shares: Iterable[float]) -> float:
    """Processor seconds to read and decode all of a group, from those of its members' shares."""
    return sum(seconds - _LATENCY for seconds in shares)


def _decode_whole(packs: PackReader, step: PathStep) -> object:
    """Decodes a group; adds its steps to zeros, because adding takes as long as decoding."""
    found = decode_shared(packs, step)
    for each in found:
        if isinstance(each, Addition):
            each.apply(memoryview(bytearray(each.nbytes)))
    return found


def _time_one(
    step: PathStep, width: int, out: memoryview, work: Callable[[int], None], starts: range
) -> None:
    """Decodes the chunk in the middle, and notes how long it takes."""
    at = starts[(len(starts) - 1) // 2]
    part = out[at : at + CHUNK]
    before = bytes(part)

    def run() -> None:
        work(at)

    def back() -> None:
        part[:] = before

    _note(step, width, _best(run, back), len(part))


def _note(step: PathStep, width: int, seconds: float, nbytes: int) -> None:
    member = step.member
    text, kind = _timed(member.coding), _class(step.header, member)
    degree = _degree(step.header.share(member), member.nbytes)
    kinds = (kind, _GROUP) if step.header.group and nbytes >= _SMALL else (kind,)
    for each in kinds:
        rate = _rates.setdefault((text, each, width, degree), seconds / _size(each, nbytes))
        _rates[text, each, 0, degree] = max(rate, _rates.get((text, each, 0, degree), 0.0))
        for like in ((text, each, 0), (text, each, width)):
            _worst[like] = max(rate, _worst.get(like, 0.0))


def _width(grouped: bool, spec: TensorSpec | None) -> int:
    """Bytes of an element; 0 where that is not known: raw bytes may be coded as words."""
    return 0 if grouped or spec is None or spec.dtype == "raw" else spec.width


def _class(header: RecordHeader, member: Member) -> int:
    """Of a payload that is stored. A small group takes far more for each byte than a large one."""
    return _GROUP - header.raw_bytes.bit_length() if header.group else _kind(False, member.nbytes)


def _kind(grouped: bool, nbytes: int) -> int:
    """Payloads of one class have chunks of about one size; that of a future group is unknown."""
    return _GROUP if grouped else min(nbytes, CHUNK).bit_length()


def _size(kind: int, nbytes: int) -> int:
    """Raw bytes to count: below ``_SMALL`` as many for all of a class."""
    return max(nbytes, 1) if kind <= _GROUP or nbytes >= _SMALL else 1 << kind


def _degree(stored: int, nbytes: int) -> int:
    """How far a payload is compressed, in steps of the square root of two."""
    return max(-16, round(2 * log2(max(stored, 1) / nbytes)))


def _known(like: tuple[str, int, int]) -> float:
    """The rate where no record of that degree of compression was measured."""
    text, kind, width = like
    kinds = (kind, _GROUP) if kind < _GROUP else (kind,)
    known = (_worst.get((text, k, w)) for k in kinds for w in (width, 0))
    return next(filter(None, known), None) or _trial(text, width or 4)


def _share(threads: float) -> float:
    """The part of the processor time that passes on so many threads."""
    return _SERIAL + (1 - _SERIAL) / threads


def _spread(nbytes: int, threads: int) -> float:
    """On how many threads the chunks of so many bytes are decoded, in the mean.

    Three chunks on two threads take as long as four.
    """
    full, rest = divmod(nbytes, CHUNK)
    longest = -(-full // threads) * CHUNK + (0 if full % threads else rest)
    return nbytes / longest


@cache
def _trial(text: str, width: int) -> float:
    """Processor seconds per raw byte for weights that moved a little.

    A prediction takes about as long as decoding what it lacks; a graded one is tried.
    """
    try:
        if text.startswith(OPTIM):
            return _trial_predicted(text, width)
        pipeline = Pipeline.parse(text).coding()
    except MvcError:
        return 1 / _READ  # the record is damaged
    random = np.random.default_rng(0)
    old = 100 * random.standard_normal(_TRIAL // width)
    new = old + 0.1 * random.standard_normal(len(old))
    one, other = (a.astype(_DTYPES[width]).view(np.uint8).data for a in (new, old))
    base = None if pipeline.operator == "none" else other
    if pipeline.scope == "group":
        if pipeline.forward_only:
            return _trial_step(pipeline, one, other) / len(one)
        data = memoryview(b"".join(encode_group(pipeline, [(one, base, width)])))
        return _best(lambda: decode_group(pipeline, data, [len(one)])) / len(one)
    chunk = memoryview(pipeline.encode_chunk(one, base, width))
    out = memoryview(bytearray(other))

    def run() -> None:
        if base is None:
            pipeline.decode_chunk(chunk, out, width)
        else:
            pipeline.apply_chunk(chunk, out, width, reverse=False)

    def back() -> None:
        out[:] = other

    return _best(run, back) / len(one)


def _trial_step(pipeline: Pipeline, new: memoryview, base: memoryview) -> float:
    """Processor seconds to decode an approximate step and to add it."""
    (step,) = quantise(pipeline, [(base, "float32")], [(new, "float32")])
    if step is None:  # this thread flushes subnormal numbers, and can add nothing
        return len(base) / _READ
    data = memoryview(b"".join(encode_steps(pipeline, [step])))
    state = memoryview(bytearray(base))
    return _best(lambda: decode_steps(pipeline, data, [len(base)])[0].apply(state))


def _trial_predicted(text: str, width: int) -> float:
    """As ``_trial``; raises InvalidPipeline for what no record may say."""
    head, _, coding = text.partition(" | ")
    name, _, dtype = head.removeprefix(OPTIM).partition(":")
    rule, pipeline = RULES.get(name), Pipeline.parse(coding)
    if rule is None or not rule.graded:
        return 2 * _trial(coding, width)
    prediction = Prediction(name, dtype, (0.5,) * rule.count)
    prediction.check()
    return _trial_graded(prediction, pipeline)


def _trial_graded(prediction: Prediction, pipeline: Pipeline) -> float:
    """Processor seconds per raw byte where no gradient is zero, which takes longest.

    No stored payload is timed in its place: it fits nothing but its own base and inputs.
    """
    width, random = prediction.width, np.random.default_rng(0)
    count = _TRIAL // width
    gradient, old, base = (random.standard_normal(count) for _ in range(3))
    squares = 0.5 * old**2 + 0.5 * gradient**2
    sources = [a.astype(_DTYPES[width]).view(np.uint8).data for a in (base, squares, old**2)]
    new = memoryview(bytearray(len(sources[0])))
    prediction.fill(sources[0], sources[1:], new, np.packbits(gradient < 0).data)
    low = np.frombuffer(new, f"<u{width}")
    low ^= random.integers(0, 64, count, low.dtype)
    data = memoryview(encode_predicted(pipeline, prediction, new, sources=sources, width=width))
    return _best(
        lambda: apply_predicted(pipeline, prediction, data, sources, out=new, width=width)
    ) / len(new)


def _timed(coding: Coding) -> str:
    """What of a coding decides how long it takes: of a prediction not its numbers."""
    if not coding.predicted:
        return coding.pipeline
    rule = ":".join(coding.transform.split(":")[:3])
    return f"{rule} | {coding.pipeline}"


@cache
def _hashing() -> float:
    """Processor seconds to hash one byte."""
    data = bytes(CHUNK)
    return _best(lambda: blake3(data).digest()) / CHUNK


def _best_in_new_memory(make: Callable[[], object]) -> float:
    """As ``_best``, but no run can use memory again that an earlier one has touched."""
    made: list[object] = []
    return _best(lambda: made.append(make()))


def _best(run: Callable[[], object], back: Callable[[], object] = lambda: None) -> float:
    """The shortest processor time of several runs, ``back`` before each."""
    best = float("inf")
    for _ in range(_RUNS):
        back()
        begun = time.thread_time()
        run()
        best = min(best, time.thread_time() - begun)
    return max(best, 1e-9)
