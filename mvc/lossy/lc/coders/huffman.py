"""Encodes symbols (small integers) by a canonical Huffman code, and decodes them.

docs/format.md, "Payload of steps", describes the bytes. A code word begins where the previous word
ends, so a simple decoder finds one word after another. This decoder processes a block of bits by a
few operations on numpy arrays. For each bit, the array ``jump`` has the end of a word that would
begin at this bit. A jump leads from the beginning of word 1 to the beginning of word 2. Two jumps
lead from words 1 and 2 to words 3 and 4. Four jumps lead from words 1-4 to words 5-8. So each round
doubles the number of known words.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes
from mvc.errors import DamagedData
from mvc.lossy.lc.packing import decode_constant, occurrences, pack, per_byte, symbol_type
from mvc.lossy.lc.step import BLOCK, Symbols

CONSTANT, CODED = range(2)
MOST_BITS = 15
_READ = 1 << 12  # bytes of a block

Lengths = NDArray[np.uint8]


def lengths_of(counts: Sequence[int] | NDArray[Any]) -> Lengths:
    """The length of each symbol's code word in bits: at most 15; 0 if the symbol does not occur.

    ``counts``: how often each symbol occurs. If only one symbol occurs, the word has one bit.

    >>> lengths_of([6, 1, 1, 2]).tolist()
    [1, 3, 3, 2]
    """
    weights = np.asarray(counts)
    used = np.flatnonzero(weights)
    lengths = np.zeros(len(weights), np.uint8)
    if len(used) == 1:
        lengths[used] = 1
    while len(used) > 1:
        depths = _depths([int(w) for w in weights[used]])
        if max(depths) <= MOST_BITS:
            lengths[used] = depths
            break
        weights = (weights + 1) // 2  # more similar weights make the longest word shorter
    return lengths


def _depths(weights: list[int]) -> list[int]:
    heap = [(weight, i) for i, weight in enumerate(weights)]
    heapq.heapify(heap)
    parents = [0] * (2 * len(weights) - 1)
    for node in range(len(weights), len(parents)):
        (one, first), (two, second) = heapq.heappop(heap), heapq.heappop(heap)
        parents[first] = parents[second] = node
        heapq.heappush(heap, (one + two, node))
    depths = [0] * len(parents)
    for node in range(len(parents) - 2, -1, -1):
        depths[node] = depths[parents[node]] + 1
    return depths[: len(weights)]


def encode(symbols: Symbols, alphabet: int) -> Parts:
    """Encodes symbols less than ``alphabet``. Returns parts of the encoded bytes."""
    if not len(symbols):
        return []
    if bool((symbols == symbols[0]).all()):
        return [bytes((CONSTANT,)) + varint(int(symbols[0]))]
    counts = occurrences(symbols)
    lengths = lengths_of(counts)
    total = int((lengths * counts).sum())
    return [
        bytes((CODED,)) + varint(len(lengths)),
        pack(lengths, 2).tobytes() + varint(total),
        _write(symbols, lengths, alphabet, total),
    ]


def decode(cursor: Cursor, count: int, alphabet: int) -> Symbols:
    """Decodes the next ``count`` symbols."""
    if not count:
        return np.empty(0, symbol_type(alphabet))
    form = cursor.byte()
    if form == CONSTANT:
        return decode_constant(cursor, count, alphabet)
    if form != CODED:
        raise DamagedData(f"symbols of unknown form {form}")
    known = cursor.varint()
    if not 2 <= known <= alphabet:
        raise DamagedData("a code of too many or too few symbols")
    halves = np.frombuffer(cursor.read(-(-known // 2)), np.uint8)
    lengths = np.stack([halves & 15, halves >> 4], axis=1).ravel()
    if lengths[known:].any() or int((lengths > 0) @ (1 << MOST_BITS - lengths.astype(int))) != (
        1 << MOST_BITS
    ):
        raise DamagedData("a code with missing or excess words")
    total = cursor.varint()
    if not count <= total <= MOST_BITS * count:
        raise DamagedData("coded symbols have too many or too few bits")
    data = np.frombuffer(cursor.read(-(-total // 8)), np.uint8)
    if total % 8 and int(data[-1]) & 0xFF >> total % 8:
        raise DamagedData("bits after the last symbol")
    return _read(data, total, lengths[:known], np.empty(count, symbol_type(alphabet)))


def _in_order(lengths: Lengths) -> NDArray[np.intp]:
    """The symbols that occur, sorted by the length of the word, and then by the symbol."""
    order = np.lexsort((np.arange(len(lengths)), lengths))
    return order[lengths[order] > 0]


def _codes(lengths: Lengths) -> NDArray[np.int64]:
    """The code word of each symbol, as an integer. ``lengths``: the number of bits of each word."""
    order = _in_order(lengths)
    sizes = 1 << MOST_BITS - lengths[order].astype(np.int64)
    codes = np.zeros(len(lengths), np.int64)
    codes[order] = (np.cumsum(sizes) - sizes) >> MOST_BITS - lengths[order].astype(np.int64)
    return codes


def _write(symbols: Symbols, lengths: Lengths, alphabet: int, total: int) -> bytes:
    """The code words of all symbols, joined.

    If the alphabet is small, several symbols are packed into a byte. For each value of this byte, a
    table has the joined words of the symbols.
    """
    together = {8: 4, 4: 4, 2: 2}.get(per_byte(alphabet), 1)
    codes, sizes = _codes(lengths), lengths.astype(np.int64)
    rest = len(symbols) % together
    letters = symbols[: len(symbols) - rest]
    if together > 1:
        rows = np.arange(256)[:, np.newaxis] >> np.arange(0, 8, 8 // together)
        rows = np.minimum(rows & (1 << 8 // together) - 1, len(lengths) - 1)
        long_codes, long_sizes = np.zeros(256, np.int64), np.zeros(256, np.int64)
        for part in rows.T:
            long_codes = long_codes << sizes[part] | codes[part]
            long_sizes += sizes[part]
        letters = pack(letters, together)
        at, out = 0, np.zeros(total // 32 + 2, ">u4")
        at = _place(letters, long_codes, long_sizes, out, at=at)
        _place(symbols[len(symbols) - rest :], codes, sizes, out, at=at)
    else:
        out = np.zeros(total // 32 + 2, ">u4")
        _place(letters, codes, sizes, out, at=0)
    return out.tobytes()[: -(-total // 8)]


def _place(
    letters: Symbols, codes: NDArray[np.int64], sizes: NDArray[np.int64], out: Any, *, at: int
) -> int:
    """Writes the word of each letter, from bit ``at`` on. Returns the bit after the last word.

    ``letters``: symbols, or bytes of packed symbols. The word of a byte is the joined words of its
    symbols: at most 30 bits (two words of 15 bits), which are in at most two items of ``out`` (32
    bits each). Words that begin in the same item are joined first.
    """
    for first in range(0, len(letters), BLOCK):
        block = letters[first : first + BLOCK]
        size = sizes.take(block)
        ends = np.cumsum(size)
        starts = ends - size + at
        at += int(ends[-1])
        shifted = codes.take(block) << 64 - size - (starts & 31) - 1
        place = starts >> 5
        begins = np.flatnonzero(np.diff(place, prepend=-1))
        both = np.bitwise_or.reduceat(shifted, begins).view(np.uint64) << np.uint64(1)
        place = place[begins]
        out[place] |= (both >> np.uint64(32)).astype(np.uint32)
        out[place + 1] |= both.astype(np.uint32)
    return at


def _read(data: Bytes, total: int, lengths: Lengths, out: Symbols) -> Symbols:
    longest = int(lengths.max())
    order = _in_order(lengths)
    repeats = 1 << longest - lengths[order].astype(np.int64)
    symbol_of = np.repeat(order, repeats).astype(out.dtype)
    size_of = np.repeat(lengths[order].astype(np.int64), repeats)
    shifts = 24 - longest - np.arange(8)
    at = done = 0
    while at < total and done < len(out):
        base = at >> 3
        part = np.zeros(min(_READ, len(data) - base) + 2, np.int64)
        piece = data[base : base + len(part)]
        part[: len(piece)] = piece
        wide = part[:-2] << 16 | part[1:-1] << 8 | part[2:]
        windows = (wide[:, np.newaxis] >> shifts & (1 << longest) - 1).ravel()
        starts, end = _follow(size_of.take(windows), at - 8 * base, len(out) - done)
        symbol_of.take(windows.take(starts), out=out[done : done + len(starts)], mode="clip")
        done += len(starts)
        at = 8 * base + end
    if at != total or done != len(out):
        raise DamagedData("coded symbols do not end where they should")
    return out


def _follow(sizes: NDArray[np.int64], start: int, most: int) -> tuple[NDArray[np.int64], int]:
    """The positions of the bits at which words begin, from ``start`` on, and the last word's end.

    ``sizes``: for each bit, the length of a word that would begin at this bit. ``most``: maximum
    number of words.
    """
    jump = np.arange(len(sizes))
    jump += sizes
    last = len(sizes) - 1
    starts = np.array([start])
    while len(starts) < most:
        following = jump.take(starts)
        inside = int(np.searchsorted(following, last, "right"))
        starts = np.concatenate((starts, following[:inside]))
        if inside < len(following):
            break
        # no jump begins outside the block
        jump = np.where(jump <= last, jump.take(jump, mode="clip"), jump)
    starts = starts[:most]
    return starts, int(starts[-1] + sizes[starts[-1]])
