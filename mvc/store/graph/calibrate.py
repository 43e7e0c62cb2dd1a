"""Measuring this machine's decoding speed.

Done once per process on a small delta, so that ``store.max_recovery`` is in seconds
of the machine at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from mvc.codecs.pipeline import Pipeline
from mvc.limits import CHUNK
from mvc.store.graph.speed import Speed

__all__ = ["measure"]

_PIPELINE = "sub | zigzag | elide | planes | zstd:huff"


@cache
def measure() -> Speed:
    """The machine's speed, from one chunk of synthetic float32 weights and a step of them."""
    random = np.random.default_rng(0)
    old = random.standard_normal(CHUNK // 4, dtype=np.float32)
    new = old + 1e-3 * random.standard_normal(CHUNK // 4, dtype=np.float32)
    pipeline = Pipeline.parse(_PIPELINE)
    views = [a.view(np.uint8).data for a in (old, new)]
    delta = pipeline.encode_chunk(views[1], views[0], 4)
    full = pipeline.full().encode_chunk(views[1], None, 4)
    out = bytearray(CHUNK)
    return Speed(
        full=_rate(lambda: pipeline.full().decode_chunk(memoryview(full), memoryview(out), 4)),
        delta=_rate(
            lambda: pipeline.apply_chunk(memoryview(delta), memoryview(out), 4, reverse=False)
        ),
    )


def _rate(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return CHUNK / best
