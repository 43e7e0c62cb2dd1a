"""Reassembles a file: contents in order, the skeleton between them, CRCs computed.

One pass, one piece in memory at a time. The manifest may come from a damaged repository, so the
layout is checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise

from mvc.adapters.parsed import CHECK_BYTES, gaps
from mvc.errors import DamagedData
from mvc.model.manifest import FileEntry

__all__ = ["assemble"]

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
    sums = _Sums(entry)
    writer = _Writer(sums, write_at)
    spans = [(c.offset, c.spec.nbytes) for c in entry.contents]
    outside = list(gaps(spans, entry.size))
    rest = memoryview(skeleton)
    at = 0
    for index, (offset, length) in enumerate(spans):
        if not length:
            continue
        if at < len(outside) and outside[at][0] < offset:
            writer.gap(outside[at][0], rest[: outside[at][1]])
            rest = rest[outside[at][1] :]
            at += 1
        if writer.position != offset:
            raise DamagedData(f"contents of {entry.path} overlap")
        for piece in content(index):
            writer.put(piece)
        if writer.position != offset + length:
            raise DamagedData(f"a content of {entry.path} has a wrong length")
    if rest.nbytes:
        writer.gap(outside[at][0], rest)
    if writer.position != entry.size:
        raise DamagedData(f"the parts of {entry.path} do not add up to its size")
    writer.patch()


class _Sums:
    """CRC-32 of the ranges that an entry's checks cover; ranges do not overlap."""

    def __init__(self, entry: FileEntry) -> None:
        self.fields = sorted((c.position, c.start, c.length) for c in entry.checks)
        self._ranges = sorted({(c.start, c.start + c.length) for c in entry.checks if c.length})
        self._current = 0
        self.done: dict[tuple[int, int], int] = {}
        self._value = 0
        if any(a[1] > b[0] for a, b in pairwise(self._ranges)):
            raise DamagedData(f"checksums of {entry.path} cover the same bytes twice")

    def feed(self, position: int, piece: memoryview) -> None:
        end = position + piece.nbytes
        while self._current < len(self._ranges):
            start, stop = self._ranges[self._current]
            if start >= end:
                return
            part = piece[max(start - position, 0) : stop - position]
            self._value = zlib.crc32(part, self._value)
            if stop > end:
                return
            self.done[start, stop - start] = self._value
            self._value = 0
            self._current += 1

    def value(self, start: int, length: int) -> bytes | None:
        found = self.done.get((start, length), None if length else 0)
        return None if found is None else found.to_bytes(CHECK_BYTES, "little")


class _Writer:
    """Writes forward, feeding the sums; keeps the check fields that have to wait."""

    def __init__(self, sums: _Sums, write_at: Write) -> None:
        self.position = 0
        self._sums = sums
        self._write_at = write_at
        self._next = 0
        self._waiting: list[tuple[int, int, int]] = []

    def put(self, piece: memoryview) -> None:
        piece = piece.cast("B") if piece.nbytes else memoryview(b"")
        self._write_at(self.position, piece)
        self._sums.feed(self.position, piece)
        self.position += piece.nbytes

    def gap(self, start: int, piece: memoryview) -> None:
        """Skeleton bytes at ``start``, with every check field in them filled in if known."""
        fields = self._sums.fields
        end = start + piece.nbytes
        if self._next < len(fields) and fields[self._next][0] < end:
            patched = bytearray(piece)
            while self._next < len(fields) and fields[self._next][0] < end:
                position, first, length = fields[self._next]
                value = self._sums.value(first, length)
                if value is None:
                    self._waiting.append(fields[self._next])
                else:
                    patched[position - start : position - start + CHECK_BYTES] = value
                self._next += 1
            piece = memoryview(patched)[: end - start]
        self.put(piece)

    def patch(self) -> None:
        for position, start, length in self._waiting:
            value = self._sums.value(start, length)
            if value is None:
                raise DamagedData("a checksum covers bytes past the end of a file")
            self._write_at(position, value)
