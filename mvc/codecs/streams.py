"""A stream of bytes whose length the reader knows, stored in the cheapest of four forms.

A stream begins with its form. ``RAW``: the bytes. ``CONSTANT``: one byte.
``FRAME``: the length of a compressed frame, and the frame. ``SPARSE``: a bitmap of
the bytes that are not zero, itself a stream, then those bytes, again a stream;
Huffman codes spend at least a bit a symbol and a bitmap does not. A bitmap of a
bitmap covers the case that almost nothing changed.

The form is chosen from a sample of the bytes, without trying all four.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.compressors import compress, decompress_into
from mvc.codecs.scratch import scratch_bytes
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData

__all__ = ["Bytes", "StreamCoder", "decode_stream", "encode_stream"]

Bytes = NDArray[np.uint8]
Parts = list[bytes | memoryview]

RAW, CONSTANT, FRAME, SPARSE = range(4)


class StreamCoder(Protocol):
    """Encodes and decodes one stream of bytes; the stages of general compression do."""

    def encode(self, stream: Bytes) -> Parts:
        """Parts to be joined."""

    def decode(self, cursor: Cursor, count: int, slot: str) -> Bytes | int:
        """A stream of ``count`` bytes, or its value if it is constant."""


_SAMPLE_BLOCKS = 8
_SAMPLE_BLOCK = 512
_SMALL = 64  # below it a frame's header outweighs what it saves
_DEPTH = 4  # a bitmap is an eighth of its stream: 1 MiB, 128 KiB, 16 KiB, 2 KiB
_FULL_ENTROPY = 7.85  # bits a byte; above it coding gains less than 2 %
_SPARSE_SHARES = (0.01, 0.2)  # of bytes that are not zero; below it zstd's matches cover the runs


def encode_stream(data: Bytes, method: str, depth: int = 0, *, repeats: bool = False) -> Parts:
    """``data`` as parts to be joined; ``method`` is the compressor's (``compressors``).

    ``repeats``: the data may repeat over long distances although its bytes look random, as
    the bitmap of a matrix with idle columns does.
    """
    count = len(data)
    if count == 0:
        return []
    first = int(data[0])
    if count < _SMALL:  # no sample is needed: it would be the data
        same = count == 1 or data.tobytes().count(first) == count
        return [bytes((CONSTANT, first))] if same else _raw(data)
    entropy, filled = _sample(data)
    if entropy == 0 and bool((data == first).all()):
        return [bytes((CONSTANT, first))]
    if entropy > _FULL_ENTROPY and not repeats:
        return _raw(data)
    least, most = _SPARSE_SHARES
    if (least < filled or repeats) and filled <= most and depth < _DEPTH:
        return _sparse(data, method, depth)
    frame = compress(data, method)
    if len(frame) + 4 >= count:
        return _raw(data)
    return [bytes((FRAME,)) + varint(len(frame)), frame]


def _raw(data: Bytes) -> Parts:
    return [bytes((RAW,)), data.tobytes()]


def _sparse(data: Bytes, method: str, depth: int) -> Parts:
    marked = data != 0
    bitmap = encode_stream(np.packbits(marked), method, depth + 1)
    return [bytes((SPARSE,)), *bitmap, *encode_stream(np.compress(marked, data), method, depth + 1)]


def _sample(data: Bytes) -> tuple[float, float]:
    """Entropy in bits a byte and share of bytes not zero, from blocks spread over ``data``."""
    if len(data) <= _SAMPLE_BLOCKS * _SAMPLE_BLOCK:
        sample = data
    else:
        step = len(data) // _SAMPLE_BLOCKS
        blocks = data[: step * _SAMPLE_BLOCKS].reshape(_SAMPLE_BLOCKS, step)
        sample = blocks[:, :_SAMPLE_BLOCK].ravel()
    counts = np.bincount(sample, minlength=256)
    share = counts[counts > 0] / len(sample)
    # Miller and Madow: a sample shows too little entropy, by (symbols - 1) / (2 n) nats.
    bias = (len(share) - 1) / (2 * len(sample) * np.log(2))
    entropy = float(-(share * np.log2(share)).sum() + bias)
    return entropy, 1 - int(counts[0]) / len(sample)


def decode_stream(
    cursor: Cursor, count: int, slot: str = "s", depth: int = 0, *, method: str = "1"
) -> Bytes | int:
    """The next stream, of ``count`` bytes: an array, or the value of a constant one.

    For zstd any of its methods decodes all of them. The array may lie in the stored data or in
    the scratch buffer ``slot``; do not write to it. Raises DamagedData.
    """
    if count == 0:
        return 0
    form = cursor.byte()
    if form == RAW:
        return np.frombuffer(cursor.take(count), np.uint8)
    if form == CONSTANT:
        return cursor.byte()
    if form == FRAME:
        frame = cursor.take(cursor.varint())
        out = scratch_bytes(slot, count)
        decompress_into(frame, out, method)
        return out
    if form != SPARSE or depth >= _DEPTH:
        raise DamagedData(f"a stream of unknown form {form}")
    marked = decode_marks(cursor, count, slot, depth + 1, method=method)
    values = decode_stream(cursor, len(marked), slot + "v", depth + 1, method=method)
    out = scratch_bytes(slot, count)
    out.fill(0)
    out[marked] = values
    return out


def decode_marks(
    cursor: Cursor, count: int, slot: str, depth: int = 0, *, method: str = "1"
) -> NDArray[np.intp]:
    """The positions that the next stream, a bitmap over ``count`` elements, marks."""
    size = -(-count // 8)
    bitmap = decode_stream(cursor, size, slot + "m", depth, method=method)
    if isinstance(bitmap, int):
        bitmap = np.full(size, bitmap, np.uint8)
    if count % 8 and int(bitmap[-1]) & (0xFF >> count % 8):
        raise DamagedData("a bitmap marks elements past its end")
    return np.flatnonzero(np.unpackbits(bitmap, count=count).view(np.bool_))
