"""Sorted runs: immutable sorted sets of byte strings, cut into verified blocks.

The index is a handful of runs (a log-structured merge tree). A run is a file of compressed
blocks, one behind the other, and a directory that holds every block's first key, hash and length,
so that an answer, "not there" included, is checked from the directory's hash down. Blocks are
lists, and directories are arrays, of MessagePack.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import zstandard
from blake3 import blake3
from msgspec import Struct

from mvc.errors import DamagedData
from mvc.limits import ZSTD_MAX_WINDOW

BLOCK_KEYS = 512
MAX_DIRECTORY = 1 << 28
CHECK = 16
_MAX_BLOCK = 1 << 22
_CACHED_BLOCKS = 512  # some 30 KiB each

Check = Annotated[bytes, msgspec.Meta(min_length=CHECK, max_length=CHECK)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
_Keys = Annotated[list[bytes], msgspec.Meta(max_length=BLOCK_KEYS)]
_T = TypeVar("_T")


class Block(NamedTuple):
    """First key and hash of a stored block, and the bytes that it takes."""

    first: bytes
    check: Check
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_BLOCK)]


class Directory(Struct, frozen=True, array_like=True):
    """A run's blocks in key order and the number of its keys."""

    blocks: tuple[Block, ...]
    count: Natural

    def encoded(self) -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, data: bytes, check: bytes) -> Directory:
        return _verified(data, check, MAX_DIRECTORY, cls)


def block_check(data: bytes) -> bytes:
    """The hash by which a block or a directory is known: 16 bytes."""
    return blake3(data).digest(CHECK)


def _verified(data: bytes, check: bytes, limit: int, kind: type[_T]) -> _T:
    """What a block or a directory holds, of at most ``limit`` bytes."""
    if block_check(data) != check:
        raise DamagedData("a block of the index does not match its checksum")
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limit:
            raise DamagedData("a block of the index has no size or too large a one")
        raw = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW).decompress(
            data, allow_extra_data=False
        )
        return msgspec.msgpack.decode(raw, type=kind)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise DamagedData("a block of the index does not decode") from error


def build_run(keys: Sequence[bytes], put: Callable[[bytes], object]) -> Directory:
    """Cuts sorted, distinct ``keys`` into blocks, handing the bytes of each to ``put``."""
    compressor = zstandard.ZstdCompressor(level=1)
    blocks: list[Block] = []
    for begin in range(0, len(keys), BLOCK_KEYS):
        part = keys[begin : begin + BLOCK_KEYS]
        data = compressor.compress(msgspec.msgpack.encode(part))
        blocks.append(Block(part[0], block_check(data), len(data)))
        put(data)
    return Directory(tuple(blocks), len(keys))


class RunReader:
    """Look-ups in one run. ``read`` gives bytes of its file: offset and length."""

    def __init__(self, directory: Directory, read: Callable[[int, int], bytes]) -> None:
        self._directory = directory
        self._firsts = [b.first for b in directory.blocks]
        self._begins = list(accumulate((b.size for b in directory.blocks), initial=0))
        self._read = read
        self._cache: dict[int, list[bytes]] = {}

    def _block(self, number: int) -> list[bytes]:
        cached = self._cache.get(number)
        if cached is None:
            _, check, size = self._directory.blocks[number]
            data = self._read(self._begins[number], size)
            cached = _verified(data, check, _MAX_BLOCK, _Keys)
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.clear()
            self._cache[number] = cached
        return cached

    def scan(self, low: bytes, high: bytes) -> Iterator[bytes]:
        number = max(bisect_right(self._firsts, low) - 1, 0)
        while number < len(self._firsts) and self._firsts[number] < high:
            block = self._block(number)
            for i in range(bisect_left(block, low), len(block)):
                if block[i] >= high:
                    return
                yield block[i]
            number += 1

    def last(self, low: bytes, high: bytes) -> bytes | None:
        number = bisect_left(self._firsts, high) - 1
        if number < 0:
            return None
        block = self._block(number)
        key = block[bisect_left(block, high) - 1]
        return key if key >= low else None
