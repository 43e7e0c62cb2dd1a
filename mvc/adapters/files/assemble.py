"""Writes a model file from its stored parts, at a checkout.

mvc stores a model file in parts. The *contents* are the ranges of the file with tensors, and the
*skeleton* is all other bytes. Correct CRC-32 checksums of zip files are not stored, but computed
from the written bytes. Only one piece of a content is in memory at a time. A ``FileEntry`` has the
positions of all parts. The positions are checked, because a repository may be damaged.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise

from mvc.adapters.parsed import CHECK_BYTES, gaps, skeleton_places
from mvc.errors import DamagedData
from mvc.limits import CHUNK
from mvc.model.manifest import FileEntry

Write = Callable[[int, memoryview | bytes], None]
Span = tuple[int, int, int]
"""The start of a content in its file, the length of the content, and its number."""


def assemble(
    entry: FileEntry,
    skeleton: bytes,
    content: Callable[[int, int], Iterable[memoryview]],
    write_at: Write,
) -> None:
    """Writes every byte of the file that ``entry`` describes.

    ``content(i, length)`` yields ``length`` bytes: content i and the contents that ``joined`` adds
    to it, in pieces of any size. Contents are written in file order, then the skeleton. Raises
    DamagedData if a content or the skeleton does not have the length in ``entry``, or if a position
    in ``entry`` is wrong.
    """
    if len(skeleton) != entry.skeleton_size:
        raise DamagedData(f"the skeleton of {entry.path} has a wrong length")
    checksums = _Checksums(entry)
    spans = [(c.offset, c.spec.nbytes) for c in entry.contents]
    outside = list(gaps(spans, entry.size))
    parts = joined((start, length, i) for i, (start, length) in enumerate(spans))
    parts += [(start, length, -1) for start, length in outside]
    remaining, position = memoryview(skeleton), 0
    for start, length, i in sorted(parts):
        if position != start:
            raise DamagedData(f"contents of {entry.path} overlap")
        if i < 0:
            checksums.add(position, remaining[:length])
            remaining, position = remaining[length:], position + length
            continue
        for piece in content(i, length):
            checksums.add(position, piece)
            write_at(position, piece)
            position += piece.nbytes
        if position != start + length:
            raise DamagedData(f"a content of {entry.path} has a wrong length")
    if remaining.nbytes or position != entry.size:
        raise DamagedData(f"the parts of {entry.path} do not add up to its size")
    remaining = memoryview(checksums.filled_in(skeleton))
    for start, length in outside:
        write_at(start, remaining[:length])
        remaining = remaining[length:]


def joined(spans: Iterable[Span]) -> list[Span]:
    """The non-empty contents of a file, with short contents joined to neighbours.

    A short content is joined to the content before it if there is no gap between them.
    """
    spans_, last = list[Span](), -1
    for start, length, i in sorted(span for span in spans if span[1]):
        if length < CHUNK and i > last >= 0 and start == spans_[-1][0] + spans_[-1][1]:
            spans_[-1] = (spans_[-1][0], spans_[-1][1] + length, spans_[-1][2])
        else:
            spans_.append((start, length, i))
        last = i
    return spans_


class _Checksums:
    """Computes the CRC-32 checksums of a file. ``entry.checks`` lists the ranges with a checksum.

    Pass all bytes of the file to ``add``, in file order.
    """

    def __init__(self, entry: FileEntry) -> None:
        self._entry = entry
        ranges = sorted({(c.start, c.start + c.length) for c in entry.checks if c.length})
        if any(a[1] > b[0] for a, b in pairwise(ranges)):
            raise DamagedData(f"checksums of {entry.path} cover the same bytes twice")
        self._ranges = deque(ranges)
        self._sum = 0
        self._sums: dict[tuple[int, int], int] = {}

    def add(self, at: int, piece: memoryview) -> None:
        end = at + piece.nbytes
        while self._ranges and self._ranges[0][0] < end:
            start, stop = self._ranges[0]
            self._sum = zlib.crc32(piece.cast("B")[max(start - at, 0) : stop - at], self._sum)
            if stop > end:
                break
            self._sums[self._ranges.popleft()] = self._sum
            self._sum = 0

    def filled_in(self, skeleton: bytes) -> bytearray:
        """Returns a copy of the skeleton that contains the checksums."""
        entry, out = self._entry, bytearray(skeleton)
        places = skeleton_places(entry.contents, (c.position for c in entry.checks))
        for check, at in zip(entry.checks, places, strict=True):
            if self._ranges or at + CHECK_BYTES > len(out):
                raise DamagedData(f"a checksum of {entry.path} reaches past its end")
            value = self._sums.get((check.start, check.start + check.length), 0)
            out[at : at + CHECK_BYTES] = value.to_bytes(CHECK_BYTES, "little")
        return out
