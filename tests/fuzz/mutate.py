"""A plain mutator, for where no coverage-guided one is installed."""

from __future__ import annotations

import random
import struct

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """``data`` with one to eight changes; ``other`` is another seed to splice with."""
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            out[at : at + size] = struct.pack("<Q", rng.choice(_EDGES))[:size]
        elif kind == 3:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            start = rng.randrange(len(out) + 1)
            out[at:at] = out[start : start + rng.randrange(1, 60)]
        else:
            start = rng.randrange(len(other) + 1)
            out[at : at + 40] = other[start : start + 40]
    return bytes(out[: 1 << 16])
