"""Compresses bytes. The result is called a *stream*, and has one of four forms.

RAW: the bytes. CONSTANT: one value, if all bytes are equal. FRAME: a compressed frame. SPARSE, if
most bytes are zero: a bitmap that marks the nonzero bytes, followed by the nonzero bytes; each of
these two parts is a stream itself. docs/format.md defines the forms ("Payload of a single member").

The encoder chooses the form from a sample of the bytes. A pipeline without a compressor (``method``
None) stores only the raw bytes. The decoder must know the number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import log, log2

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.compressors import FAST, Compressor
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes, move_marked, scratch_bytes, split, tally
from mvc.errors import DamagedData
from mvc.limits import MIB

Parts = list[bytes | memoryview]

RAW, CONSTANT, FRAME, SPARSE = range(4)

SEGMENT = 4 * MIB  # ``encode_segments`` cuts here, to limit the memory of a compressor's window
_SAMPLE_BLOCKS, _SAMPLE_BLOCK = 8, 512  # bytes
_SMALL = 64  # shorter data is not compressed, because a frame's header needs more than is saved
_DEPTH = 4  # how deep the form SPARSE may be nested; a bitmap is an eighth of its stream
_FULL_ENTROPY = 7.85  # bits per byte, above which compression saves less than 2 %
_SPARSE_SHARES = (0.01, 0.2)  # of nonzero bytes, for SPARSE; with fewer, zstd's matches suffice


def encode_stream(
    data: Bytes,
    method: Compressor | None,
    depth: int = 0,
    *,
    repeats: bool = False,
    sparse: tuple[float, float] = _SPARSE_SHARES,
) -> Parts:
    """Encodes ``data``. Returns parts, which the caller joins. A part may be a view of ``data``.

    ``method``: the compressor; None stores the raw bytes. ``depth``: how many SPARSE streams
    contain this stream. ``repeats``: whether data with high entropy should be compressed, too,
    because it may repeat over long distances. ``sparse``: the shares of nonzero bytes between which
    the form is SPARSE.
    """
    if method is None:
        return [data.data]
    count = len(data)
    if count == 0:
        return []
    first = int(data[0])
    if count < _SMALL:
        same = count == 1 or data.tobytes().count(first) == count
        return [bytes((CONSTANT, first))] if same else _raw(data, depth)
    entropy, filled = _sample(data)
    if entropy == 0 and (count <= _SAMPLE_BLOCKS * _SAMPLE_BLOCK or bool((data == first).all())):
        return [bytes((CONSTANT, first))]
    if entropy > _FULL_ENTROPY and not repeats:
        return _raw(data, depth)
    least, most = sparse
    if (least < filled or repeats) and filled <= most and depth < _DEPTH:
        marks = np.packbits(data != 0)
        bitmap = encode_stream(marks, method, depth + 1, sparse=sparse)
        (filled_bytes,) = split(data, f"values{depth}", marks=marks)
        return [bytes((SPARSE,)), *bitmap, *encode_stream(filled_bytes, method, depth + 1)]
    frame = method.compress(data)
    if len(frame) + 4 >= count:
        return _raw(data, depth)
    return [bytes((FRAME,)) + varint(len(frame)), frame]


def _raw(data: Bytes, depth: int) -> Parts:
    # The values of a sparse stream are in scratch memory, which the next stream overwrites.
    return [bytes((RAW,)), data.tobytes() if depth else data.data]


def gathered(parts: Parts, allocate: Callable[[int], memoryview]) -> memoryview:
    """Joins ``parts`` in memory from ``allocate``."""
    room, at = allocate(sum(map(len, parts))), 0
    for part in parts:
        room[at : at + len(part)] = part
        at += len(part)
    return room


def _sample(data: Bytes) -> tuple[float, float]:
    """Estimates the entropy of ``data`` in bits per byte, and the share of nonzero bytes.

    Reads only a few blocks, spread over ``data``.
    """
    size = min(len(data), _SAMPLE_BLOCKS * _SAMPLE_BLOCK)
    counts = tally(data, _SAMPLE_BLOCKS, _SAMPLE_BLOCK)
    symbols = int(np.count_nonzero(counts))
    if symbols == 1:
        return 0.0, float(counts[0] == 0)
    # Miller and Madow: a sample of n bytes underestimates entropy by (symbols - 1) / (2 n) nats.
    bias = (symbols - 1) / (2 * size * log(2))
    entropy = log2(size) - float(_terms().take(counts).sum()) / size + bias
    return entropy, 1 - int(counts[0]) / size


@lru_cache(maxsize=1)
def _terms() -> NDArray[np.float64]:
    """The values n log2 n, for every possible count n of a byte in a sample."""
    counts = np.arange(_SAMPLE_BLOCKS * _SAMPLE_BLOCK + 1, dtype=np.float64)
    return counts * np.log2(np.maximum(counts, 1))


def decode_stream(
    cursor: Cursor, count: int, method: Compressor | None = FAST, slot: str = "s", *, depth: int = 0
) -> Bytes | int:
    """Decodes the next stream, of ``count`` bytes. Returns an array, or an integer if all bytes
    have this value.

    ``method``: the compressor of the encoder, or zstd at any level if the encoder used zstd. Do not
    write to the array: it may be a view of the stored data or of the scratch buffer ``slot``.
    Raises DamagedData.
    """
    if method is None:
        return np.frombuffer(cursor.read(count), np.uint8)
    if count == 0:
        return 0
    form = cursor.byte()
    if form == RAW:
        return np.frombuffer(cursor.read(count), np.uint8)
    if form == CONSTANT:
        return cursor.byte()
    if form == FRAME:
        frame = cursor.read(cursor.varint())
        out = scratch_bytes(slot, count)
        method.decompress_into(frame, out)
        return out
    if form != SPARSE or depth >= _DEPTH:
        raise DamagedData(f"a stream has the unknown form {form}")
    marks, marked = decode_bitmap(cursor, count, method, slot, depth=depth + 1)
    values = decode_array(cursor, marked, method, slot + "v", depth=depth + 1)
    out = scratch_bytes(slot, count)
    out.fill(0)
    move_marked("xor", out, marks, values, reverse=False)
    return out


def decode_array(
    cursor: Cursor, count: int, method: Compressor | None, slot: str, *, depth: int = 0
) -> Bytes:
    """As ``decode_stream``, but always returns an array."""
    stream = decode_stream(cursor, count, method, slot, depth=depth)
    return np.full(count, stream, np.uint8) if isinstance(stream, int) else stream


def decode_bitmap(
    cursor: Cursor, count: int, method: Compressor | None, slot: str, *, depth: int = 0
) -> tuple[Bytes, int]:
    """Decodes the next stream, a bitmap with ``count`` bits. Returns it and its number of ones."""
    marks = decode_array(cursor, -(-count // 8), method, slot + "m", depth=depth)
    if count % 8 and int(marks[-1]) & (0xFF >> count % 8):
        raise DamagedData("a bitmap marks elements past its end")
    even = len(marks) // 8 * 8  # counted in words of 8 bytes, which is faster
    rest = int(np.bitwise_count(marks[even:]).sum())
    return marks, int(np.bitwise_count(marks[:even].view(np.uint64)).sum()) + rest


def encode_segments(data: Bytes, method: Compressor | None) -> Parts:
    """Encodes bytes as streams of at most ``SEGMENT`` bytes."""
    starts = range(0, len(data), SEGMENT)
    # Copied, because the memory of ``data`` is freed before the parts are written.
    return [bytes(part) for at in starts for part in encode_stream(data[at : at + SEGMENT], method)]


def decode_segments(cursor: Cursor, out: Bytes, method: Compressor | None) -> None:
    """Decodes the streams of ``encode_segments`` into ``out``. Raises DamagedData."""
    for start in range(0, len(out), SEGMENT):
        segment = out[start : start + SEGMENT]
        segment[:] = decode_stream(cursor, len(segment), method, "segment")
