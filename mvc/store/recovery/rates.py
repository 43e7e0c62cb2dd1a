"""Estimates how many seconds it takes to recover a version: to decode it and to write its files.

mvc stores tensors in pieces. A *payload* is the encoded bytes of a piece, and its *coding* lists
the stages that encoded it, for example ``xor | planes | zstd:1``. The estimated time for a payload
is the sum of a latency, the time to read the payload, and the time of each stage: ``a`` ns per raw
byte and ``b`` ns per stored byte (``Stage.costs``). The constants are minimum CPU times that were
measured on an AMD EPYC with zstandard 0.25. When mvc decides how to store a version, it always uses
these constants, so that it stores the same bytes on every machine. Reports may use times measured
on this machine (``calibrate``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from mvc.codecs.optim.rules import RULES
from mvc.codecs.stage import Costs
from mvc.documents import decoded, encoded
from mvc.errors import InvalidConfig, MvcError
from mvc.io.files import FileSystem
from mvc.io.flushes import FLUSHES
from mvc.io.process import cpu_count, user_folder
from mvc.limits import CHUNK, MIB, PIECE
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import PathStep, Place
from mvc.store.packs.records import OPTIM, Coding, Member, RecordHeader
from mvc.store.recovery.planned import in_batches
from mvc.store.recovery.recover import by_chunks

_SCHEMA = "mvc.rates/1"
_OPEN = 10e-3  # seconds to open a repository and read a version's manifest
LATENCY = 150e-6  # seconds to find a payload, and to prepare decoding it
_READ = 1e9  # payload bytes that are read in a second, from the system's cache
_COMBINED = 5e9  # raw bytes in a second, when a decoded delta is applied to its base
_HASHED = 3e9  # bytes that are hashed in a second
_WRITE = 1e9  # bytes that are written to a file in a second
_FILE = 100e-6  # seconds to create a file and rename it
_FLUSH = 5e-3  # seconds for one round of parallel flushes
_RUNS = 50  # repetitions of a calibration
_SERIAL = 0.15  # share of decoding that does not run in parallel
_SMALL = 64 << 10  # pieces with fewer raw bytes gain nothing from threads

Part: TypeAlias = tuple[float, Hashable | None]
"""The CPU seconds to decode a payload, and None.

If several objects share the payload (a group): 0, and a key of the group.
"""

_Bytes = TypeVar("_Bytes", float, NDArray[np.float64])

_STEP: Costs = {4: (0.2, 0.0), 8: (0.0, 0.0)}
_GRADED_STEP: Costs = {4: (3.3, 0.0), 8: (2.0, 0.0)}
_PATCH: Costs = {1: (1.0, 0.0)}


class Rates:
    """Estimates for a machine that decodes in ``factor`` times the time that the constants give."""

    def __init__(self, factor: float = 1.0) -> None:
        self._threads, self._factor = cpu_count(), factor

    def seconds(self, text: str, raw: _Bytes, stored: _Bytes, width: int) -> _Bytes:
        """CPU seconds to read and decode a payload with the coding ``text``.

        ``width``: bytes of an element, 0 if unknown.
        """
        if text.startswith(OPTIM):  # remove the numbers in the text, which do not change the costs
            head, _, pipeline = text.partition(" | ")
            text = f"{':'.join(head.split(':')[:3])} | {pipeline}"
        a, b = per_byte(text, width)
        return stored / _READ + self._factor * (LATENCY + (a * raw + b * stored) / 1e9)

    def payload(
        self, header: RecordHeader, member: Member, spec: TensorSpec | None = None
    ) -> float:
        """CPU seconds to read and decode one payload.

        If the payload has several members, the result is the share of ``member``.
        """
        share = header.share(member)
        return self.seconds(member.coding.text, member.nbytes, share, width_of(spec))

    def coding(
        self, pipeline: Pipeline, nbytes: int, spec: TensorSpec, stored: int | None = None
    ) -> float:
        """CPU seconds to read and decode a payload that ``pipeline`` encoded from ``nbytes`` bytes.

        ``stored``: the number of bytes of the payload, by default ``nbytes``.
        """
        count = nbytes if stored is None else stored
        return self.seconds(pipeline.text, nbytes, count, width_of(spec))

    def works(
        self, walks: Sequence[tuple[int, TensorSpec, Sequence[PathStep]]]
    ) -> list[tuple[int, float]]:
        """The number of raw bytes and the CPU seconds of each piece, if all are recovered together.

        ``walks``: for each piece, its number of raw bytes, the spec of its object, and the payloads
        to decode. A payload that several pieces need is counted for only one of these pieces, if
        it belongs to a group, or if a payload of the piece is based on a prediction.
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

        def group_seconds(place: Hashable) -> float:
            header = groups[place]  # type: ignore[index]
            return of_group(self.payload(header, member) for member in header.members)

        return together([(n, own(spec, steps)) for n, spec, steps in walks], group_seconds)

    def decoding(self, works: Iterable[tuple[int, float]]) -> float:
        """Seconds to decode objects on all threads. An object of one chunk needs a single thread.

        ``works``: the number of raw bytes and the CPU seconds of each object.
        """
        return sum(map(self._together, in_batches(works, itemgetter(0), PIECE)))

    def version(self, works: Iterable[tuple[int, float]], files: int, nbytes: int) -> float:
        """Seconds to open the repository, decode and verify a version, and write its files."""
        verified = [(size, seconds + size / _HASHED) for size, seconds in works]
        flushed = _FLUSH * max(min(files, 1), files / FLUSHES)
        return _OPEN + files * _FILE + flushed + nbytes / _WRITE + self.decoding(verified)

    def _together(self, works: Sequence[tuple[int, float]]) -> float:
        total = sum(nbytes for nbytes, _ in works)
        one_by_one = beside = longest = 0.0
        for nbytes, seconds in works:
            if nbytes < _SMALL:
                one_by_one += seconds
            elif len(works) == 1 or by_chunks(nbytes, total, self._threads):
                one_by_one += seconds * _share(_spread(min(nbytes, PIECE), self._threads))
            else:
                beside += seconds
                longest = max(longest, seconds)
        spread = beside * _share(self._threads) + longest * (1 - 1 / self._threads)
        return one_by_one + min(beside, spread)


class _Calibration(Struct, frozen=True):
    factor: Annotated[float, Meta(gt=0, le=1e6)]


def calibrated(fs: FileSystem) -> Rates:
    """The rates of this machine, or the constants if none were measured. Raises InvalidConfig."""
    file = _file()
    if fs.stat(file) is None:
        return Rates()
    try:
        return Rates(decoded(fs.read_bytes(file, MIB), _Calibration, _SCHEMA).factor)
    except ValueError as error:
        raise InvalidConfig(
            f"{file} has no valid rates: {error}",
            hint="run 'mvc stats --calibrate' to replace the file",
        ) from error


def calibrate(fs: FileSystem) -> None:
    """Measures how fast this machine decodes ``lossless``, and saves the factor for ``Rates``."""
    random = np.random.default_rng(0)
    old = random.standard_normal(CHUNK // 4, np.float32)
    new = old + random.standard_normal(len(old), np.float32) / 10_000
    base, raw = (array.view(np.uint8).data for array in (old, new))
    delta, out = Pipeline.parse("lossless"), memoryview(bytearray(base))
    full, step = delta.full().encode_chunk(raw, None, 4), delta.encode_chunk(raw, base, 4)
    constant, best = 0.0, [float("inf")]
    for pipeline, chunk in ((delta.full(), full), (delta, step)):
        a, b = per_byte(pipeline.text, 4)
        constant += a * len(raw) + b * len(chunk)
    for _ in range(_RUNS):
        begun = time.thread_time_ns()
        delta.full().decode_chunk(memoryview(full), out, 4)
        delta.apply_chunk(memoryview(step), out, 4, reverse=False)
        best.append(time.thread_time_ns() - begun)
    file = _file()
    fs.make_dirs(file.parent)
    fs.write_atomic(file, encoded(_Calibration(max(1.0, min(best)) / constant), _SCHEMA))


def _file() -> Path:
    """The file with the measured rates of this machine. It may not exist."""
    return user_folder(os.environ, "cache") / "rates.json"


def together(
    walks: Sequence[tuple[int, Iterable[Part]]], group_seconds: Callable[[Hashable], float]
) -> list[tuple[int, float]]:
    """The number of raw bytes and the CPU seconds of each piece, if all are recovered together.

    ``walks``: for each piece, its number of raw bytes and the payloads to decode. All pieces of a
    group are decoded together. So the seconds of a group are counted once, for its largest piece.
    """
    counted: set[Hashable] = set()
    seconds = [0.0] * len(walks)
    for i in sorted(range(len(walks)), key=lambda i: walks[i][0], reverse=True):
        nbytes, parts = walks[i]
        for own, group in parts:
            if group is None:
                seconds[i] += own
                continue
            seconds[i] += LATENCY + nbytes / _COMBINED
            if group not in counted:
                counted.add(group)
                seconds[i] += group_seconds(group)
    return [(nbytes, total) for (nbytes, _), total in zip(walks, seconds, strict=True)]


def of_group(shares: Iterable[float]) -> float:
    """CPU seconds to read and decode a whole group. ``shares``: the seconds of its members."""
    return sum(seconds - LATENCY for seconds in shares)


def width_of(spec: TensorSpec | None) -> int:
    """Bytes of an element; 0 for dtype ``raw``, whose elements may have any width."""
    return 0 if spec is None or spec.dtype == "raw" else spec.width


def costs_of(text: str) -> list[Costs]:
    """The decoding costs of a coding: of its prediction or patch, and of each stage.

    If the pipeline of the coding cannot be parsed, its stages are left out.
    """
    coding = Coding(text)
    if coding.transform == "patch":
        return [_PATCH]
    rule = RULES.get(coding.transform.split(":")[1]) if coding.predicted else None
    costs = [] if rule is None else [_GRADED_STEP if rule.graded else _STEP]
    with suppress(MvcError):
        pipeline = Pipeline.parse(coding.pipeline).coding()
        costs += [stage.costs_in(pipeline.operator) for stage in pipeline.stages]
    return costs


@lru_cache(1024)
def per_byte(text: str, width: int) -> tuple[float, float]:
    """The sums of ``a`` and of ``b`` (see the start of this module) over all stages of a coding.

    ``width``: bytes of an element. A stage without constants for this width counts with the maximum
    of its constants for other widths.
    """
    a = b = 0.0
    for costs in filter(None, costs_of(text)):
        known = [costs[width]] if width in costs else costs.values()
        a, b = a + max(pair[0] for pair in known), b + max(pair[1] for pair in known)
    return a, b


def _share(threads: float) -> float:
    """Wall-clock seconds per CPU second with this many threads."""
    return _SERIAL + (1 - _SERIAL) / threads


def _spread(nbytes: int, threads: int) -> float:
    """The mean number of threads that decode the chunks of ``nbytes``.

    Three chunks on two threads take as long as four chunks, so their mean is 1.5 threads.
    """
    full, rest = divmod(nbytes, CHUNK)
    longest = -(-full // threads) * CHUNK + (0 if full % threads else rest)
    return nbytes / longest
