"""Whole tensors out of the chunks that ranks have written, read in windows.

A chunk is a box of a tensor. It is read from its shard when a part of the tensor is asked for,
so a tensor never has to be in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mvc.adapters.parsed import Source, read_exactly
from mvc.adapters.python.state import Deferred
from mvc.errors import BadModelFile
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["Chunk", "whole"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor (offsets and sizes in elements): row-major from byte ``start`` of
    ``source``, ``length`` bytes.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    source: Source
    start: int
    length: int


def whole(name: str, spec: TensorSpec, chunks: Sequence[Chunk]) -> Deferred:
    """The tensor that the chunks make up.

    Raises BadModelFile if the chunks overlap, leave gaps, lie outside the tensor or its shard,
    or have a length that does not fit their sizes.
    """
    _check_cover(name, spec.shape, chunks)
    for chunk in chunks:
        if chunk.length != TensorSpec(spec.dtype, chunk.sizes).nbytes:
            raise BadModelFile(f"a chunk of {name} has the wrong number of bytes")
        if chunk.start + chunk.length > chunk.source.size():
            raise BadModelFile(f"the shard that holds a chunk of {name} was cut short")
    blocks = [_Block(name, c) for c in chunks if 0 not in c.sizes]
    return Deferred(spec, _Whole(spec, blocks).read)


def _check_cover(name: str, shape: tuple[int, ...], chunks: Sequence[Chunk]) -> None:
    """Chunks inside the tensor, disjoint, with as many elements as the tensor."""
    for chunk in chunks:
        if not len(shape) == len(chunk.offsets) == len(chunk.sizes) or any(
            o < 0 or n < 0 or o + n > total
            for o, n, total in zip(chunk.offsets, chunk.sizes, shape, strict=True)
        ):
            raise BadModelFile(f"a chunk of {name} lies outside of it")
    full = sorted((c for c in chunks if 0 not in c.sizes), key=lambda c: c.offsets)
    for i, a in enumerate(full):
        for b in full[i + 1 :]:
            if shape and b.offsets[0] >= a.offsets[0] + a.sizes[0]:
                break
            if _overlap(a, b):
                raise BadModelFile(f"two chunks of {name} overlap")
    elements = TensorSpec("uint8", shape).elements
    if sum(TensorSpec("uint8", c.sizes).elements for c in full) != elements:
        raise BadModelFile(f"the chunks of {name} do not cover it")


def _overlap(a: Chunk, b: Chunk) -> bool:
    sides = zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
    return all(o < p + m and p < o + n for o, n, p, m in sides)


class _Block:
    """A chunk with at least one element and at least one dimension."""

    def __init__(self, name: str, chunk: Chunk) -> None:
        self._name, self._source, self._start = name, chunk.source, chunk.start
        self.offsets = chunk.offsets or (0,)
        self.sizes = chunk.sizes or (1,)
        self.nbytes = chunk.length

    def read(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with the block's bytes from ``start`` on."""
        read_exactly(self._source, self._name, self._start + start, out)


class _Whole:
    """A tensor out of blocks that cover it."""

    def __init__(self, spec: TensorSpec, blocks: list[_Block]) -> None:
        self._item = DTYPES[spec.dtype].itemsize
        self._shape = spec.shape or (1,)
        self._row = spec.nbytes // max(1, self._shape[0])
        self._blocks = blocks
        self._stacked = all(block.sizes[1:] == self._shape[1:] for block in blocks)

    def read(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with row-major bytes from ``start`` on."""
        if len(out):
            read = self._read_stacked if self._stacked else self._read_rows
            read(start, out)

    def _read_stacked(self, start: int, out: memoryview) -> None:
        """Blocks of whole rows, one after the other."""
        end = start + len(out)
        for block in self._blocks:
            at = block.offsets[0] * self._row
            low, high = max(start, at), min(end, at + block.nbytes)
            if low < high:
                block.read(low - at, out[low - start : high - start])

    def _read_rows(self, start: int, out: memoryview) -> None:
        """Any blocks, put together as the rows that ``out`` is a part of."""
        first, last = start // self._row, -(-(start + len(out)) // self._row)
        rows = np.empty((last - first, *self._shape[1:], self._item), np.uint8)
        for block in self._blocks:
            at, count = block.offsets[0], block.sizes[0]
            low, high = max(first, at), min(last, at + count)
            if low >= high:
                continue
            data = np.empty((high - low, *block.sizes[1:], self._item), np.uint8)
            block.read((low - at) * (block.nbytes // count), data.reshape(-1).data)
            inner = zip(block.offsets[1:], block.sizes[1:], strict=True)
            place = (slice(low - first, high - first), *(slice(o, o + n) for o, n in inner))
            rows[place] = data
        begin = start - first * self._row
        out[:] = rows.reshape(-1).data[begin : begin + len(out)]
