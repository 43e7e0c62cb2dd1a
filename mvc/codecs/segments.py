"""Long runs of bytes in segments: each a stream or, without a compressor, plain bytes.

Segments bound the memory of a compressor's window.
"""

from __future__ import annotations

import numpy as np

from mvc.codecs.streams import Bytes, Parts, StreamCoder
from mvc.codecs.varint import Cursor
from mvc.limits import MIB

__all__ = ["SEGMENT", "decode_segments", "encode_segments"]

SEGMENT = 4 * MIB


def encode_segments(data: Bytes, compressor: StreamCoder | None) -> Parts:
    """``data`` as parts to be joined."""
    parts: Parts = []
    for start in range(0, len(data), SEGMENT):
        segment = data[start : start + SEGMENT]
        parts += compressor.encode(segment) if compressor else [segment.tobytes()]
    return parts


def decode_segments(cursor: Cursor, out: Bytes, compressor: StreamCoder | None) -> None:
    """Fills ``out``; DamagedData unless exactly that much is there."""
    for start in range(0, len(out), SEGMENT):
        segment = out[start : start + SEGMENT]
        if compressor:
            segment[:] = compressor.decode(cursor, len(segment), "segment")
        else:
            segment[:] = np.frombuffer(cursor.take(len(segment)), np.uint8)
