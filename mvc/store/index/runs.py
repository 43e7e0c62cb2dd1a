"""Sorted runs: the immutable sorted sets of keys (byte strings) in the index of a repository.

The index consists of a few runs, as in a log-structured merge tree. The keys of a run are divided
into compressed blocks. The *directory* of a run lists the first key and the hash of every block. A
reader knows the hash of the directory, so it notices every damaged or missing block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import zstandard
from blake3 import blake3
from msgspec import Struct

from mvc.canonical import Reader, Writer, encode_uint
from mvc.errors import DamagedData
from mvc.limits import ZSTD_MAX_WINDOW

BLOCK_KEYS = 512
_CHECK = 16
_MAX_BLOCK = 1 << 22
_MAX_DIRECTORY = 1 << 28
_MAX_KEY = 4096
_LONG = 128  # an encoded length below this takes one byte
_CACHED_BLOCKS = 512  # about 30 KiB each


class Block(NamedTuple):
    """First key and hash of a stored block."""

    first: bytes
    check: bytes


class Directory(Struct, frozen=True):
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
        number = reader.count(1 << 26)
        at, size = reader.position, len(raw)
        blocks = []
        for _ in range(number):  # a fast path, because there may be thousands of blocks
            begin = at + 1
            middle = begin + raw[at] if at < size else size
            at = middle + _CHECK
            if at > size or raw[begin - 1] >= _LONG:
                return cls(_read_blocks(raw), count)
            blocks.append(Block(raw[begin:middle], raw[middle:at]))
        if at != size:
            raise DamagedData("an index directory is damaged: bytes follow its end")
        return cls(tuple(blocks), count)


def _read_blocks(raw: bytes) -> tuple[Block, ...]:
    """Reads the blocks of a directory, without the fast path for short first keys."""
    reader = Reader(raw, "an index directory")
    reader.uint()
    blocks = tuple(
        Block(reader.blob(_MAX_KEY), reader.raw(_CHECK)) for _ in range(reader.count(1 << 26))
    )
    reader.end()
    return blocks


def _read_keys(raw: bytes) -> list[bytes]:
    """Reads the keys of a block, with a fast path for short keys of the same length."""
    reader = Reader(raw, "an index block")
    count = reader.count(BLOCK_KEYS)
    at = reader.position
    if count:
        step = raw[at] + 1
        alike = step <= _LONG and len(raw) == at + count * step
        if alike and raw[at::step] == raw[at : at + 1] * count:
            return [raw[begin + 1 : begin + step] for begin in range(at, len(raw), step)]
    keys = [reader.blob(_MAX_KEY) for _ in range(count)]
    reader.end()
    return keys


def block_check(data: bytes) -> bytes:
    """The hash (16 bytes) under which a block is stored."""
    return blake3(data).digest(_CHECK)


def _verified(data: bytes, check: bytes, limit: int) -> bytes:
    if block_check(data) != check:
        raise DamagedData("a block of the index does not match its checksum")
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limit:
            raise DamagedData("a block of the index has no valid size")
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW).decompress(
            data, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise DamagedData("a block of the index does not decode") from error


def build_run(keys: Sequence[bytes], put: Callable[[bytes, bytes], object]) -> Directory:
    """Divides ``keys``, sorted and distinct, into blocks.

    Passes each block's hash and bytes to ``put``.
    """
    compressor = zstandard.ZstdCompressor(level=1)
    blocks: list[Block] = []
    for begin in range(0, len(keys), BLOCK_KEYS):
        part = keys[begin : begin + BLOCK_KEYS]
        data = compressor.compress(encode_uint(len(part)) + _body(part))
        blocks.append(Block(part[0], block_check(data)))
        put(blocks[-1].check, data)
    return Directory(tuple(blocks), len(keys))


def _body(keys: Sequence[bytes]) -> bytes:
    """Encodes the keys of a block: each key, preceded by its length."""
    lengths = set(map(len, keys))
    if len(lengths) == 1:
        length = encode_uint(lengths.pop())
        return length + length.join(keys)
    return b"".join([encode_uint(len(key)) + key for key in keys])


class RunReader:
    """Searches in one run. ``get``: takes the hash of a block, returns its bytes or None."""

    def __init__(self, directory: Directory, get: Callable[[bytes], bytes | None]) -> None:
        self._directory = directory
        self._firsts = [b.first for b in directory.blocks]
        self._get = get
        self._cache: dict[int, list[bytes]] = {}

    def _block(self, number: int) -> list[bytes]:
        cached = self._cache.get(number)
        if cached is None:
            check = self._directory.blocks[number].check
            data = self._get(check)
            if data is None:
                raise DamagedData("a block of the index is missing")
            cached = _read_keys(_verified(data, check, _MAX_BLOCK))
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.clear()
            self._cache[number] = cached
        return cached

    def scan(self, low: bytes, high: bytes) -> Iterator[bytes]:
        """Yields the keys from ``low`` (inclusive) to ``high`` (exclusive)."""
        number = max(bisect_right(self._firsts, low) - 1, 0)
        while number < len(self._firsts) and self._firsts[number] < high:
            block = self._block(number)
            for i in range(bisect_left(block, low), len(block)):
                if block[i] >= high:
                    return
                yield block[i]
            number += 1

    def last(self, low: bytes, high: bytes) -> bytes | None:
        """The largest key from ``low`` (inclusive) to ``high`` (exclusive), or None."""
        number = bisect_left(self._firsts, high) - 1
        if number < 0:
            return None
        block = self._block(number)
        key = block[bisect_left(block, high) - 1]
        return key if key >= low else None
