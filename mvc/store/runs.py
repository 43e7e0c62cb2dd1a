"""Sorted runs: immutable sorted sets of byte strings, cut into verified blocks.

The index is a handful of runs (a log-structured merge tree). A run is a list of
compressed blocks and a directory that holds every block's first key and hash, so
that an answer, "not there" included, is checked from the directory's hash down.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import zstandard
from blake3 import blake3

from mvc.errors import DamagedData
from mvc.model.canonical import Reader, Writer

__all__ = ["Block", "Directory", "RunReader", "build_run"]

BLOCK_KEYS = 512
_CHECK = 16
_MAX_BLOCK = 1 << 22
_MAX_DIRECTORY = 1 << 28


@dataclass(frozen=True, slots=True)
class Block:
    """First key and hash of a stored block."""

    first: bytes
    check: bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """A run's blocks in key order and the number of its keys."""

    blocks: tuple[Block, ...]
    count: int

    def encoded(self) -> bytes:
        writer = Writer().uint(self.count).uint(len(self.blocks))
        for block in self.blocks:
            writer.blob(block.first).raw(block.check)
        return zstandard.ZstdCompressor(level=1).compress(writer.done())

    @classmethod
    def decode(cls, data: bytes, check: bytes) -> Directory:
        raw = _verified(data, check, _MAX_DIRECTORY)
        reader = Reader(raw, "an index directory")
        count = reader.uint()
        blocks = tuple(
            Block(reader.blob(4096), reader.raw(_CHECK)) for _ in range(reader.count(1 << 26))
        )
        reader.end()
        return cls(blocks, count)


def block_check(data: bytes) -> bytes:
    return blake3(data).digest(_CHECK)


def _verified(data: bytes, check: bytes, limit: int) -> bytes:
    if block_check(data) != check:
        raise DamagedData("a block of the index does not match its checksum")
    if zstandard.frame_content_size(data) > limit:
        raise DamagedData("a block of the index is too large")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)


def build_run(keys: Iterable[bytes], put: Callable[[int, bytes], None]) -> Directory:
    """Cuts sorted, distinct ``keys`` into blocks, handing (number, bytes) of each to ``put``."""
    compressor = zstandard.ZstdCompressor(level=1)
    blocks: list[Block] = []
    waiting: list[bytes] = []
    count = 0

    def flush() -> None:
        writer = Writer().uint(len(waiting))
        for key in waiting:
            writer.blob(key)
        data = compressor.compress(writer.done())
        put(len(blocks), data)
        blocks.append(Block(waiting[0], block_check(data)))
        waiting.clear()

    for key in keys:
        waiting.append(key)
        count += 1
        if len(waiting) == BLOCK_KEYS:
            flush()
    if waiting:
        flush()
    return Directory(tuple(blocks), count)


class RunReader:
    """Look-ups in one run. ``get`` fetches a block's bytes by number, None if absent."""

    def __init__(self, directory: Directory, get: Callable[[int], bytes | None]) -> None:
        self._directory = directory
        self._firsts = [b.first for b in directory.blocks]
        self._get = get
        self._cache: dict[int, Sequence[bytes]] = {}

    def _block(self, number: int) -> Sequence[bytes]:
        cached = self._cache.get(number)
        if cached is None:
            data = self._get(number)
            if data is None:
                raise DamagedData("a block of the index is missing")
            raw = _verified(data, self._directory.blocks[number].check, _MAX_BLOCK)
            reader = Reader(raw, "an index block")
            cached = [reader.blob(4096) for _ in range(reader.count(BLOCK_KEYS))]
            reader.end()
            if len(self._cache) > 256:
                self._cache.clear()
            self._cache[number] = cached
        return cached

    def scan(self, low: bytes, high: bytes) -> Iterator[bytes]:
        """Keys with low <= key < high, ascending."""
        number = max(bisect_right(self._firsts, low) - 1, 0)
        while number < len(self._firsts) and self._firsts[number] < high:
            block = self._block(number)
            for i in range(bisect_left(block, low), len(block)):
                if block[i] >= high:
                    return
                yield block[i]
            number += 1

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The greatest key with low <= key < high."""
        number = bisect_left(self._firsts, high) - 1
        if number < 0:
            return None
        block = self._block(number)
        key = block[bisect_left(block, high) - 1]
        return key if key >= low else None
