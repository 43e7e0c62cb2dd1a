"""The coder ``packed`` of lossy deltas: packs symbols into bytes, and compresses the bytes.

A byte has eight, four, two or one symbol. If there are more than 256 different symbols, each symbol
has two bytes. The bytes are compressed by the Huffman codes of zstd or zlib, whichever result is
smaller. A Huffman code needs at least one bit for each byte. With four symbols in a byte, this is
only a quarter of a bit for each symbol. docs/format.md, "Payload of steps", describes the result.
"""

from __future__ import annotations

import zlib

import numpy as np

from mvc.codecs.compressors import HUFFMAN, Zlib
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes
from mvc.errors import DamagedData
from mvc.lossy.lc.packing import check_below, pack, per_byte, unpack
from mvc.lossy.lc.step import Symbols

CONSTANT, RAW, ZLIB, ZSTD = range(4)
_ZLIB = Zlib("zlib:1")
_SMALL = 16  # fewer bytes are not compressed, because a header needs more than is saved


def encode(symbols: Symbols, alphabet: int) -> Parts:
    """Encodes symbols below ``alphabet``. Returns parts, which the caller joins."""
    if not len(symbols):
        return []
    count = per_byte(alphabet)
    if count:
        return _encode(pack(symbols.astype(np.uint8, copy=False), count))
    return _encode(symbols.astype(np.uint8)) + _encode((symbols >> 8).astype(np.uint8))


def decode(cursor: Cursor, count: int, alphabet: int) -> Symbols:
    """Decodes the next ``count`` symbols. Raises DamagedData."""
    if not count:
        return np.empty(0, np.uint8)
    together = per_byte(alphabet)
    if together:
        symbols: Symbols = unpack(_decode(cursor, -(-count // together)), together, count)
    else:
        low, high = _decode(cursor, count), _decode(cursor, count)
        symbols = low | high.astype(np.uint16) << np.uint16(8)
    check_below(int(symbols.max()), alphabet)
    return symbols


def _encode(data: Bytes) -> Parts:
    first = int(data[0])
    if bool((data == first).all()):
        return [bytes((CONSTANT, first))]
    if len(data) < _SMALL:
        return [bytes((RAW,)), data.tobytes()]
    frames = {ZSTD: HUFFMAN.compress(data)}
    if len(frames[ZSTD]) > len(data) // 8:  # more than one bit per byte: zlib may need less
        code = zlib.compressobj(1, zlib.DEFLATED, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
        frames[ZLIB] = code.compress(data.data) + code.flush()
    form = min(frames, key=lambda f: len(frames[f]))
    frame = frames[form]
    if len(frame) >= len(data):
        return [bytes((RAW,)), data.tobytes()]
    return [bytes((form,)) + varint(len(frame)), frame]


def _decode(cursor: Cursor, count: int) -> Bytes:
    form = cursor.byte()
    if form == CONSTANT:
        return np.full(count, cursor.byte(), np.uint8)
    if form == RAW:
        return np.frombuffer(cursor.read(count), np.uint8)
    if form not in (ZLIB, ZSTD):
        raise DamagedData(f"packed symbols of unknown form {form}")
    out = np.empty(count, np.uint8)
    (_ZLIB if form == ZLIB else HUFFMAN).decompress_into(cursor.read(cursor.varint()), out)
    return out
