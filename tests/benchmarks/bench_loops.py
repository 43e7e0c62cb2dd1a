"""The innermost loops in numpy and in C, on a chunk of 1 MiB: docs/performance.md, "Codecs".

    python -m tests.benchmarks.bench_loops [--passes 25]

A share of the elements moves a little. Milliseconds are of the processor, one thread, the best of
several passes; both ways must give the same bytes. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from mvc.codecs import words
from mvc.limits import CHUNK
from mvc.pipelines.pipeline import Pipeline
from tests.benchmarks.measuring import head, row

SHARES = (0.001, 0.05, 0.16, 0.5, 1.0)
WIDTHS = {"bf16": 2, "f32": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passes", type=int, default=25)
    passes = parser.parse_args().passes
    if words.kernels is None:
        raise SystemExit("the loops in C are not built")
    parts = [f"{kind}, {what}" for kind in WIDTHS for what in ("decoding", "encoding")]
    head("changed", *(f"{part}: {way}" for part in parts for way in ("numpy", "C")))
    for share in SHARES:
        cells = [cell for width in WIDTHS.values() for cell in _measure(share, width, passes)]
        row(f"{100 * share:g} %", *(f"{cell:.2f}" for cell in cells))


def _measure(share: float, width: int, passes: int) -> list[float]:
    """Milliseconds to decode and to encode, each in numpy and in C."""
    old, new = _chunk(share, width)
    pipeline = Pipeline.parse("lossless")
    decoding, encoding, coded = [], [], []
    for kernels in (None, words.kernels):
        with mock.patch.object(words, "kernels", kernels):
            data = b"".join(map(bytes, _parts(pipeline.encode_chunk(new, old, width))))
            state = memoryview(bytearray(old))
            coded.append(data)

            def decode(data: bytes = data, state: memoryview = state) -> None:
                pipeline.apply_chunk(memoryview(data), state, width, reverse=False)

            decoding.append(_best(decode, passes))
            encoding.append(_best(lambda: pipeline.encode_chunk(new, old, width), passes))
    assert coded[0] == coded[1]
    return decoding + encoding


def _parts(coded: bytes | list[bytes]) -> list[bytes]:
    return [coded] if isinstance(coded, bytes) else coded


def _chunk(share: float, width: int) -> tuple[memoryview, memoryview]:
    random = np.random.default_rng(0)
    old = (0.05 * random.standard_normal(CHUNK // width)).astype(np.float32)
    moved = random.random(len(old)) < share
    new = np.where(moved, old * (1 + 1e-2 * random.standard_normal(len(old))), old)
    chunks = (each.astype(np.float32).view(np.uint32) for each in (old, new))
    return tuple(  # type: ignore[return-value]
        memoryview((chunk >> (32 - 8 * width)).astype(f"<u{width}").tobytes()) for chunk in chunks
    )


def _best(work: Callable[[], object], passes: int) -> float:
    spent = []
    for _ in range(passes):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return 1e3 * min(spent)


if __name__ == "__main__":
    main()
