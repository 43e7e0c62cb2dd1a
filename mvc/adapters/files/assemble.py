"""Reassembles a file: contents in order, the skeleton between them, CRCs computed.

One pass, one piece in memory at a time. The manifest may come from a damaged repository, so the
layout is checked.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise

from mvc.adapters.parsed import CHECK_BYTES, gaps
from mvc.errors import DamagedData
from mvc.model.manifest import Check, FileEntry

Write = Callable[[int, memoryview | bytes], None]


def assemble(
    entry: FileEntry,
    skeleton: bytes,
    content: Callable[[int], Iterable[memoryview]],
    write_at: Write,
) -> None:
    """Writes every byte of the file ``entry`` describes.

    ``content(i)`` gives the bytes of content i in pieces of any size. A byte is
    written in file order, except check fields that lie before what they cover:
    they are written as zero first and filled in last. Raises DamagedData if
    skeleton or contents have another length than the entry says.
    """
    if len(skeleton) != entry.skeleton_size:
        raise DamagedData(f"the skeleton of {entry.path} has a wrong length")
    out = _Writer(entry, write_at)
    spans = [(c.offset, c.spec.nbytes) for c in entry.contents]
    parts = [(start, length, i) for i, (start, length) in enumerate(spans) if length]
    parts += [(start, length, -1) for start, length in gaps(spans, entry.size)]
    rest = memoryview(skeleton)
    for start, length, i in sorted(parts):
        if out.position != start:
            raise DamagedData(f"contents of {entry.path} overlap")
        if i < 0:
            out.gap(rest[:length])
            rest = rest[length:]
        else:
            for piece in content(i):
                out.put(piece)
        if out.position != start + length:
            raise DamagedData(f"a content of {entry.path} has a wrong length")
    if rest.nbytes or out.position != entry.size:
        raise DamagedData(f"the parts of {entry.path} do not add up to its size")
    out.patch()


class _Writer:
    """Writes forward, and computes the CRC-32 of the ranges that the entry's checks cover."""

    def __init__(self, entry: FileEntry, write_at: Write) -> None:
        self.position = 0
        self._write_at = write_at
        self._fields = deque(sorted(entry.checks, key=lambda c: c.position))
        self._late: list[Check] = []
        ranges = sorted({(c.start, c.start + c.length) for c in entry.checks if c.length})
        if any(a[1] > b[0] for a, b in pairwise(ranges)):
            raise DamagedData(f"checksums of {entry.path} cover the same bytes twice")
        self._ranges = deque(ranges)
        self._sum = 0
        self._sums: dict[tuple[int, int], int] = {}

    def put(self, piece: memoryview) -> None:
        piece = piece.cast("B") if piece.nbytes else memoryview(b"")
        self._write_at(self.position, piece)
        end = self.position + piece.nbytes
        while self._ranges and self._ranges[0][0] < end:
            start, stop = self._ranges[0]
            part = piece[max(start - self.position, 0) : stop - self.position]
            self._sum = zlib.crc32(part, self._sum)
            if stop > end:
                break
            self._sums[self._ranges.popleft()] = self._sum
            self._sum = 0
        self.position = end

    def gap(self, piece: memoryview) -> None:
        """Writes skeleton bytes, with every check field in them filled in if known."""
        end = self.position + piece.nbytes
        if self._fields and self._fields[0].position < end:
            patched = bytearray(piece)
            while self._fields and self._fields[0].position < end:
                check = self._fields.popleft()
                at = check.position - self.position
                value = self._value(check)
                if value is None:
                    self._late.append(check)
                else:
                    patched[at : at + CHECK_BYTES] = value
            piece = memoryview(patched)[: piece.nbytes]
        self.put(piece)

    def patch(self) -> None:
        for check in self._late:
            value = self._value(check)
            if value is None:
                raise DamagedData("a checksum covers bytes past the end of a file")
            self._write_at(check.position, value)

    def _value(self, check: Check) -> bytes | None:
        found = self._sums.get((check.start, check.start + check.length))
        found = found if check.length else 0
        return None if found is None else found.to_bytes(CHECK_BYTES, "little")
