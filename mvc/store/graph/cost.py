"""What decoding costs on this machine: for planning paths and for bounding recovery times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mvc.limits import CHUNK
from mvc.store.packs.records import Member

__all__ = ["Speed", "measure"]

_PIPELINE = "sub | zigzag | elide | planes | zstd:huff"


@dataclass(frozen=True, slots=True)
class Speed:
    """Raw bytes per second of one thread; ``latency`` is seconds per payload."""

    full: float = 3e9
    delta: float = 1e9
    read: float = 1e9
    latency: float = 30e-6

    def seconds(self, member: Member) -> float:
        """Estimated time to read, check and decode one payload."""
        rate = self.delta if member.base else self.full
        return self.latency + member.stored / self.read + member.nbytes / rate


@cache
def measure() -> Speed:
    """Measures the machine's speed, once per process.

    It decodes one chunk of synthetic float32 weights and one of a small step of them, so that
    ``store.max_recovery`` is in seconds of the machine at hand.
    """
    # Planning a path needs neither of them, and numpy takes longer to load than a look-up.
    import numpy as np

    from mvc.codecs.pipeline import Pipeline

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
    """Bytes per second of the fastest of five runs on one chunk."""
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return CHUNK / best
