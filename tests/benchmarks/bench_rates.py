"""Measures what decoding takes (``Stage.costs``, ``mvc.store.recovery.rates``), and prints it.

    python -m tests.benchmarks.bench_rates [--runs 15]

Each line of ``_LINES`` adds one stage to those before it. Decoded are chunks of weights that moved
more or less; the stage has what they take beyond the stages that are known. ``a`` and ``b`` are the
lowest line above all these points, so an estimate is rather too long.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations, product
from typing import TypeAlias

import numpy as np

from mvc.codecs.compressors import Compressor
from mvc.codecs.optim import PREDICTED, Prediction
from mvc.codecs.optim.rules import RULES
from mvc.codecs.stage import Costs
from mvc.errors import NotInstalled
from mvc.limits import CHUNK
from mvc.lossy.lc.payload import decode_steps, encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import apply_predicted, encode_predicted
from mvc.store.packs.records import Coding
from mvc.store.recovery.rates import costs_of

_RUNS = 3
_SAMPLE = CHUNK // 4
_DTYPES = {1: np.int8, 2: np.float16, 4: np.float32, 8: np.float64}
_MOVES = ((1e-6, 1.0), (1e-4, 1.0), (1e-2, 1.0), (1e-2, 0.1), (1e-2, 0.01))
"""How far weights move, and how many of them."""
_GENERAL = ("zstd:1", "zlib:6", "bz2:9", "lzma:6", "brotli:9")
_LINES = (
    "raw",
    "xor | raw",
    "sub | raw",
    "xor | planes",
    "xor | planes:all",
    *(f"{line} | {name}" for name in _GENERAL for line in ("xor | planes", "planes")),
    "sub | zigzag | elide | planes | zstd:1",
    "xor | blocks:4 | zstd:1",
    "xor | sparse:values,indices,diff | zstd:1",
    "xor | sparse | zstd:1",
    "steps | gaps | zstd:1",
    "lattice | zstd:1",
)
_STEPS = tuple(f"expq | promote:3 | {coder}" for coder in ("huffman", "packed", "ans"))
_RULES = ("adam.1", "root.1g")

Point: TypeAlias = tuple[float, float]
"""Stored bytes and nanoseconds of decoding, for each raw byte."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=15, help="of the whole table; the least counts")
    options = parser.parse_args()
    tables = [measured_table() for _ in range(options.runs)]
    for stage, widths in tables[0].items():
        pairs = {width: min((of[stage][width] for of in tables), key=sum) for width in widths}
        texts = (f"{width}: ({a:.2g}, {b:.2g})" for width, (a, b) in pairs.items())
        print(f"{stage} = {{{', '.join(texts)}}}")


def measured_table() -> dict[str, dict[int, tuple[float, float]]]:
    """By what has the costs and by width, without what is not installed."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for line, width in product(_LINES, _DTYPES):
        with suppress(NotInstalled):
            points = [_chunk(Pipeline.parse(line), width, *move) for move in _MOVES]
            _add(found, line, width, points)
    for line in _STEPS:
        _add(found, line, 4, [_step(Pipeline.parse(line), *move) for move in _MOVES])
    for prediction, line in _predictions():
        _add(found, line, prediction.width, [_predicted(prediction, line)])
    return found


def constant_table() -> dict[str, Costs]:
    """The same, as the package has it."""
    lines = (*_LINES, *_STEPS, *(line for _, line in _predictions()))
    found = {name: costs for line in lines for name, costs in _costs(line).items()}
    return {name: costs for name, costs in found.items() if costs}


def _predictions() -> list[tuple[Prediction, str]]:
    made = [
        Prediction(r, dtype, (0.5,) * RULES[r].count) for r, dtype in product(_RULES, PREDICTED)
    ]
    return [(each, f"{each.text} | sub | planes | zstd:1") for each in made]


def _costs(line: str) -> dict[str, Costs]:
    """What a line has the costs from, by names in the code."""
    coding = Coding(line)
    names = ["_GRADED_STEP" if ".1g:" in line else "_STEP"] if coding.predicted else []
    pipeline = Pipeline.parse(coding.pipeline)
    for stage in pipeline.stages:
        full = isinstance(stage, Compressor) and pipeline.operator == "none"
        names.append(f"{type(stage).__name__}.{'full_costs' if full else 'costs'}")
    return dict(zip(names, costs_of(line), strict=True))


def _add(
    found: dict[str, dict[int, tuple[float, float]]],
    line: str,
    width: int,
    points: Sequence[Point],
) -> None:
    """Adds the last stage of a line that is not known for this width, or its rule."""
    pairs = {name: found.get(name, {}).get(width) for name in _costs(line)}
    a, b = (sum(pair[i] for pair in pairs.values() if pair) for i in range(2))
    stage = [name for name, pair in pairs.items() if pair is None][-1]
    rest = [(stored, max(ns - a - b * stored, 0.0)) for stored, ns in points]
    found.setdefault(stage, {})[width] = _line_above(rest)


def _line_above(points: Sequence[Point]) -> tuple[float, float]:
    """Of the lines that pass below no point the one that is nearest to all; none falls.

    One that rises steeply would tell too much of payloads that are hardly compressed.
    """
    slopes = {(n - m) / (t - s) for (s, m), (t, n) in combinations(points, 2) if s != t}
    lines = [(max(ns - b * s for s, ns in points), b) for b in {0.0, *slopes} if b >= 0]
    lines = [(a, b) for a, b in lines if a >= 0]
    measured = [*(stored for stored, _ in points), 1.0]
    return min(lines, key=lambda line: sum(line[0] + line[1] * s for s in measured))


def _weights(
    width: int, moved: float, share: float, *, on_grid: bool = False, size: int = _SAMPLE
) -> tuple[memoryview, memoryview]:
    """Weights before and after some of them moved."""
    random, count = np.random.default_rng(0), size // width
    old = random.standard_normal(count)
    new = old + moved * random.standard_normal(count) * (random.random(count) < share)
    if on_grid:
        old, new = (np.round(each * 1024) / 1024 for each in (old, new))
    scale = 30 if width == 1 else 1
    before, after = (
        (scale * each).astype(_DTYPES[width]).view(np.uint8).data for each in (old, new)
    )
    return before, after


def _chunk(pipeline: Pipeline, width: int, moved: float, share: float) -> Point:
    old, new = _weights(width, moved, share, on_grid=pipeline.layout.on_grid)
    base = None if pipeline.operator == "none" else old
    if pipeline.scope == "group":
        data = memoryview(b"".join(encode_group(pipeline, [(new, base, width)])))
        return _point(len(data), len(new), lambda: decode_group(pipeline, data, [len(new)]))
    chunk, out = memoryview(pipeline.encode_chunk(new, base, width)), memoryview(bytearray(old))

    def run() -> None:
        if base is None:
            pipeline.decode_chunk(chunk, out, width)
        else:
            pipeline.apply_chunk(chunk, out, width, reverse=False)

    def back() -> None:
        out[:] = old

    return _point(len(chunk), len(new), run, back)


def _step(pipeline: Pipeline, moved: float, share: float) -> Point:
    """Of an approximate step that is decoded and added."""
    old, new = _weights(4, moved, share, size=CHUNK)
    steps = quantise(pipeline, [(old, "float32")], [(new, "float32")])
    data = memoryview(b"".join(encode_steps(pipeline, [step for step in steps if step])))
    state = memoryview(bytearray(old))
    return _point(
        len(data), len(old), lambda: decode_steps(pipeline, data, [len(old)])[0].apply(state)
    )


def _predicted(prediction: Prediction, line: str) -> Point:
    """Where no gradient is zero, which takes longest."""
    pipeline = Pipeline.parse(line.partition(" | ")[2])
    width, random = prediction.width, np.random.default_rng(0)
    gradient, old, base = (random.standard_normal(_SAMPLE // width) for _ in range(3))
    arrays = (base, 0.5 * old**2 + 0.5 * gradient**2, old**2)
    sources = [array.astype(_DTYPES[width]).view(np.uint8).data for array in arrays]
    new = memoryview(bytearray(_SAMPLE))
    signs = (gradient < 0).view(np.uint8) if prediction.signed else None
    prediction.fill(sources[0], sources[1:], new, signs)
    low = np.frombuffer(new, f"<u{width}")
    low ^= random.integers(0, 64, len(low), low.dtype)
    parts, _ = encode_predicted(pipeline, prediction, new, sources=sources, width=width)
    data = memoryview(b"".join(parts))

    def run() -> None:
        apply_predicted(pipeline, prediction, data, sources, out=new, width=width)

    return _point(len(data), len(new), run)


def _point(
    stored: int, raw: int, run: Callable[[], object], back: Callable[[], object] = lambda: None
) -> Point:
    """The shortest processor time of several runs, ``back`` before each."""
    best = float("inf")
    for _ in range(_RUNS):
        back()
        begun = time.thread_time_ns()
        run()
        best = min(best, time.thread_time_ns() - begun)
    return stored / raw, best / raw


if __name__ == "__main__":
    main()
