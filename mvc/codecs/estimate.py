"""Estimates a tensor's stored size under a pipeline from a small sample.

Per tensor the smaller of delta and full record is stored; encoding both to find
out would double the work of a commit.
"""

from __future__ import annotations

from mvc.codecs.pipeline import Pipeline

__all__ = ["estimate", "try_out"]

_BLOCKS = 4
_BLOCK = 1 << 15  # bytes


def estimate(pipeline: Pipeline, new: memoryview, base: memoryview | None, width: int) -> float:
    """Estimated stored bytes per raw byte of ``new``: 0.0 for nothing, about 1.0 for no gain.

    At most 128 KiB are read, in blocks spread evenly. Without a base a delta
    pipeline is estimated as its full form.
    """
    return try_out(pipeline, new, base, width)[0]


def try_out(
    pipeline: Pipeline, new: memoryview, base: memoryview | None, width: int
) -> tuple[float, bytes | None]:
    """As ``estimate``; and the encoded chunk, where all of ``new`` was encoded to find out."""
    total = len(new)
    if not total:
        return 0.0, None
    form = pipeline if base is not None else pipeline.full()
    if total <= _BLOCKS * _BLOCK:
        encoded = form.encode_chunk(new, base, width)
        return len(encoded) / total, encoded
    step = (total - _BLOCK) // (_BLOCKS - 1) // 64 * 64
    stored = 0
    for start in range(0, _BLOCKS * step, step):
        cut = slice(start, start + _BLOCK)
        stored += len(form.encode_chunk(new[cut], base[cut] if base is not None else None, width))
    return stored / (_BLOCKS * _BLOCK), None
