"""Whole tensors out of the shards that ranks have written.

A shard is a file of records, each what ``torch.save`` wrote for one chunk. Chunks are found
by the zip's structure alone and read when a part of the tensor is asked for, so that a
tensor never has to be in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mvc.adapters.files.torch_zip import parse_torch_zip
from mvc.adapters.files.zip_layout import read_members
from mvc.adapters.parsed import FileParts, Source, read_exactly
from mvc.adapters.python.state import Deferred
from mvc.adapters.views import extract
from mvc.errors import BadModelFile
from mvc.frameworks.fsspec.dcp_metadata import Chunk, Placed, Record
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["Window", "record_source", "whole"]


class Window:
    """A part of a source as a source of its own."""

    def __init__(self, source: Source, offset: int, length: int) -> None:
        self._source, self._offset, self._length = source, offset, length

    def size(self) -> int:
        return self._length

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self._length - offset))
        return self._source.read(self._offset + offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        length = max(0, min(len(buffer), self._length - offset))
        return self._source.read_into(self._offset + offset, buffer[:length])


def record_source(files: Mapping[str, Source], record: Record) -> Window:
    """One record of a shard. Raises BadModelFile where the shard is shorter."""
    source = files[record.file]
    if record.offset + record.length > source.size():
        raise BadModelFile(f"{record.file} is shorter than .metadata says")
    return Window(source, record.offset, record.length)


def whole(name: str, placed: Placed, files: Mapping[str, Source]) -> Deferred:
    """The tensor that the chunks make up. Raises BadModelFile for a record that is none of it."""
    blocks = [
        _Block(name, placed.spec.dtype, chunk, record_source(files, chunk.record))
        for chunk in placed.chunks
        if 0 not in chunk.sizes
    ]
    return Deferred(placed.spec, _Whole(placed.spec, blocks).read)


class _Block:
    """The elements of one chunk, row-major."""

    def __init__(self, name: str, dtype: str, chunk: Chunk, source: Source) -> None:
        members = read_members(source, name)
        parts: FileParts = parse_torch_zip(source, name, members)
        spec = TensorSpec(dtype, chunk.sizes)
        if len(parts.tensors) != 1 or parts.tensors[0].spec != spec:
            raise BadModelFile(f"the record of {name} holds something else than .metadata says")
        self.name, self.spec = name, spec
        self.offsets = chunk.offsets or (0,)
        self.sizes = chunk.sizes or (1,)
        self._source = source
        self._view = parts.tensors[0].view
        self._content = parts.contents[parts.tensors[0].content]

    def read(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with the block's bytes from ``start`` on."""
        if self._view is None:
            read_exactly(self._source, self.name, self._content.offset + start, out)
            return
        raw = memoryview(bytearray(self._content.spec.nbytes))
        read_exactly(self._source, self.name, self._content.offset, raw)
        out[:] = extract(raw, self.spec, self._view)[start : start + len(out)]


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
        """Blocks of whole rows lie behind one another."""
        end = start + len(out)
        for block in self._blocks:
            at = block.offsets[0] * self._row
            low, high = max(start, at), min(end, at + block.spec.nbytes)
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
            block.read((low - at) * (block.spec.nbytes // count), data.reshape(-1).data)
            inner = zip(block.offsets[1:], block.sizes[1:], strict=True)
            place = (slice(low - first, high - first), *(slice(o, o + n) for o, n in inner))
            rows[place] = data
        begin = start - first * self._row
        out[:] = rows.reshape(-1).data[begin : begin + len(out)]
