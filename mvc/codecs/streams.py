"""A stream of bytes of known length, stored in the smallest of four forms.

The forms are: raw bytes; one value, if all bytes are equal; a compressed frame; or a bitmap of the
nonzero bytes, and their values. docs/format.md defines these forms ("Payload of a single member").
A compressed frame needs at least one bit for each byte. If most bytes are zero, the bitmap form
needs less, because the bitmap is stored as a stream itself.

The form is chosen from a sample of the bytes, without trying all four. A pipeline without a
compressor (``method`` None) stores only the raw bytes.
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

SEGMENT = 4 * MIB  # bounds the memory of a compressor's window
_SAMPLE_BLOCKS, _SAMPLE_BLOCK = 8, 512  # bytes
_SMALL = 64  # bytes below which a frame's header outweighs its saving
_DEPTH = 4  # a bitmap is an eighth of its stream: 1 MiB, 128 KiB, 16 KiB, 2 KiB
_FULL_ENTROPY = 7.85  # bits per byte, above which coding gains less than 2 %
_SPARSE_SHARES = (0.01, 0.2)  # of nonzero bytes; with fewer, zstd's matches cover the zeros


def encode_stream(
    data: Bytes,
    method: Compressor | None,
    depth: int = 0,
    *,
    repeats: bool = False,
    sparse: tuple[float, float] = _SPARSE_SHARES,
) -> Parts:
    """Encodes ``data``; returns parts to be joined. With ``method`` None, these are the raw bytes.

    A part may be a view of ``data``, because a copy would need new memory. ``repeats``: whether the
    data may repeat over long distances although its bytes look random, as in the bitmap of a matrix
    with idle columns. ``sparse``: the shares of nonzero bytes between which a bitmap is stored.
    """
    if method is None:
        return [data.data]
    count = len(data)
    if count == 0:
        return []
    first = int(data[0])
    if count < _SMALL:  # a sample would be all of the data
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
    """``parts`` joined, in memory from ``allocate``."""
    room, at = allocate(sum(map(len, parts))), 0
    for part in parts:
        room[at : at + len(part)] = part
        at += len(part)
    return room


def _sample(data: Bytes) -> tuple[float, float]:
    """Entropy in bits per byte and share of nonzero bytes, in blocks spread over ``data``."""
    size = min(len(data), _SAMPLE_BLOCKS * _SAMPLE_BLOCK)
    counts = tally(data, _SAMPLE_BLOCKS, _SAMPLE_BLOCK)
    symbols = int(np.count_nonzero(counts))
    if symbols == 1:
        return 0.0, float(counts[0] == 0)
    # Miller and Madow: a sample underestimates entropy by (symbols - 1) / (2 n) nats.
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
    """The next stream of ``count`` bytes: an array, or one value if all bytes are equal.

    Any zstd ``method`` decodes the frames of every level. The array may be a view of the stored
    data or of the scratch buffer ``slot``. Do not write to the array. Raises DamagedData.
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
    """The next stream, which is a bitmap over ``count`` elements, and the number of ones in it."""
    marks = decode_array(cursor, -(-count // 8), method, slot + "m", depth=depth)
    if count % 8 and int(marks[-1]) & (0xFF >> count % 8):
        raise DamagedData("a bitmap marks elements past its end")
    even = len(marks) // 8 * 8  # words of 8 bytes, because summing the counts is slow
    rest = int(np.bitwise_count(marks[even:]).sum())
    return marks, int(np.bitwise_count(marks[:even].view(np.uint64)).sum()) + rest


def encode_segments(data: Bytes, method: Compressor | None) -> Parts:
    """Encodes bytes as streams of at most ``SEGMENT`` bytes."""
    starts = range(0, len(data), SEGMENT)
    # Copied, because a group's planes are freed before its record is appended.
    return [bytes(part) for at in starts for part in encode_stream(data[at : at + SEGMENT], method)]


def decode_segments(cursor: Cursor, out: Bytes, method: Compressor | None) -> None:
    """Fills ``out``. Raises DamagedData unless exactly as many bytes are stored."""
    for start in range(0, len(out), SEGMENT):
        segment = out[start : start + SEGMENT]
        segment[:] = decode_stream(cursor, len(segment), method, "segment")
