"""Shards: one file per rank and save, in ``.mvc/staging``, until the coordinator commits them.

A shard holds the row-major bytes of chunks (boxes of tensors) and the bytes of objects, one after
the other. A tensor is put together from its chunks as parts of it are asked for, so it never has
to be in memory as a whole.

The process that wrote a shard holds a shared lock on a file beside it, which ends with the
process: a shard whose lock nobody holds was left by a crash, and the next save removes it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from mvc.adapters.parsed import Source, read_exactly
from mvc.adapters.python.state import Deferred
from mvc.errors import BadModelFile
from mvc.frameworks.common.staging import staging_folder
from mvc.io.files import TEMPORARY, FileSystem, ReadFile
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.repo.context import Context
from mvc.store.store import FOLDER
from mvc.types import Bytes

__all__ = ["Chunk", "Record", "Shard", "open_shard", "remove_shards", "whole"]

_TOKEN = re.compile(r"[0-9a-f]{32}")
_SHARD = ".shard"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes [offset, offset + length) of a shard."""

    shard: str
    offset: int
    length: int


class Shard:
    """A new shard of this process, open for writing until its ``with`` block ends.

    The lock stays until ``release``. An exception that leaves the block removes the shard.
    """

    def __init__(self, context: Context) -> None:
        self._fs = fs = context.store.fs
        self._within = context.root / FOLDER
        self.name = secrets.token_hex(16)
        folder = staging_folder(context)
        self._path = folder / f"{self.name}{_SHARD}"
        self._lock = fs.lock(folder / f"{self.name}{_LOCK}", shared=True)
        _sweep(fs, folder, self._within)
        self._file = fs.open_write(self._path, create=True, exclusive=True, within=self._within)

    def write(self, data: Bytes) -> Record:
        """Appends bytes."""
        start = self._file.position
        self._file.write(data)
        return Record(self.name, start, self._file.position - start)

    def release(self) -> None:
        """Releases the lock: the coordinator does not need the shard any more."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if kind is not None:
            self._fs.unlink(self._path, missing_ok=True, within=self._within)
            self.release()


def open_shard(context: Context, name: str) -> ReadFile:
    """The shard that a rank has written.

    Raises BadModelFile if it is not in this repository: the ranks do not use the same one.
    """
    if not _TOKEN.fullmatch(name):
        raise BadModelFile(f"a rank names something that is no shard: {name[:100]!r}")
    path = staging_folder(context) / f"{name}{_SHARD}"
    if context.store.fs.stat(path) is None:
        raise BadModelFile(
            "the shard of a rank was not written to this repository",
            hint="all ranks need the same repository: on several machines, a folder that "
            "they share",
        )
    return context.store.fs.open_read(path, follow=False)


def remove_shards(context: Context, names: set[str]) -> None:
    """Removes shards of a save that is complete or has failed."""
    for name in filter(_TOKEN.fullmatch, names):
        path = staging_folder(context) / f"{name}{_SHARD}"
        context.store.fs.unlink(path, missing_ok=True, within=context.root / FOLDER)


def _sweep(fs: FileSystem, folder: Path, within: Path) -> None:
    """Removes shards and scratch files whose process has ended, and other files' old locks."""
    for name in fs.list(folder):
        if name.startswith(TEMPORARY):
            fs.unlink(folder / name, missing_ok=True, within=within)
        if not name.endswith(_LOCK):
            continue
        lock = fs.lock(folder / name, block=False)
        if lock is not None:
            with lock:
                shard = folder / f"{name.removesuffix(_LOCK)}{_SHARD}"
                fs.unlink(shard, missing_ok=True, within=within)
                fs.unlink(folder / name, missing_ok=True, within=within)


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

    def overlaps(self, other: Chunk) -> bool:
        sides = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(o < p + m and p < o + n for o, n, p, m in sides)


def whole(name: str, spec: TensorSpec, chunks: Sequence[Chunk]) -> Deferred:
    """The tensor that the chunks make up.

    Raises BadModelFile if the chunks overlap, leave gaps, lie outside the tensor or its shard,
    or have a length that does not fit their sizes.
    """
    full = [chunk for chunk in chunks if 0 not in chunk.sizes]
    _check_cover(name, spec.shape, chunks, sorted(full, key=lambda c: c.offsets))
    for chunk in chunks:
        if chunk.length != TensorSpec(spec.dtype, chunk.sizes).nbytes:
            raise BadModelFile(f"a chunk of {name} has the wrong number of bytes")
        if chunk.start + chunk.length > chunk.source.size():
            raise BadModelFile(f"the shard that holds a chunk of {name} was cut short")
    return Deferred(spec, _Whole(name, spec, full).read)


def _check_cover(
    name: str, shape: Sequence[int], chunks: Sequence[Chunk], full: list[Chunk]
) -> None:
    """Chunks inside the tensor; the ``full`` ones disjoint, with as many elements as the tensor."""
    for chunk in chunks:
        if not len(shape) == len(chunk.offsets) == len(chunk.sizes) or any(
            o < 0 or n < 0 or o + n > total
            for o, n, total in zip(chunk.offsets, chunk.sizes, shape, strict=True)
        ):
            raise BadModelFile(f"a chunk of {name} lies outside of it")
    for i, a in enumerate(full):
        for b in full[i + 1 :]:
            if shape and b.offsets[0] >= a.offsets[0] + a.sizes[0]:
                break
            if a.overlaps(b):
                raise BadModelFile(f"two chunks of {name} overlap")
    elements = TensorSpec("uint8", shape).elements
    if sum(TensorSpec("uint8", c.sizes).elements for c in full) != elements:
        raise BadModelFile(f"the chunks of {name} do not cover it")


class _Whole:
    """A tensor out of chunks that cover it. A scalar is one row of one element."""

    def __init__(self, name: str, spec: TensorSpec, chunks: list[Chunk]) -> None:
        self._name = name
        self._item = DTYPES[spec.dtype].itemsize
        self._shape = spec.shape or (1,)
        self._row = spec.nbytes // max(1, self._shape[0])
        self._chunks = [
            replace(chunk, offsets=chunk.offsets or (0,), sizes=chunk.sizes or (1,))
            for chunk in chunks
        ]
        self._stacked = all(chunk.sizes[1:] == self._shape[1:] for chunk in self._chunks)

    def read(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with row-major bytes from ``start`` on."""
        if len(out):
            read = self._read_stacked if self._stacked else self._read_rows
            read(start, out)

    def _read_stacked(self, start: int, out: memoryview) -> None:
        """Chunks of whole rows, one after the other."""
        end = start + len(out)
        for chunk in self._chunks:
            at = chunk.offsets[0] * self._row
            low, high = max(start, at), min(end, at + chunk.length)
            if low < high:
                part = out[low - start : high - start]
                read_exactly(chunk.source, self._name, chunk.start + low - at, part)

    def _read_rows(self, start: int, out: memoryview) -> None:
        """Any chunks, put together as the rows that ``out`` is a part of."""
        first, last = start // self._row, -(-(start + len(out)) // self._row)
        rows = np.empty((last - first, *self._shape[1:], self._item), np.uint8)
        for chunk in self._chunks:
            at, count = chunk.offsets[0], chunk.sizes[0]
            low, high = max(first, at), min(last, at + count)
            if low >= high:
                continue
            data = np.empty((high - low, *chunk.sizes[1:], self._item), np.uint8)
            begin = chunk.start + (low - at) * (chunk.length // count)
            read_exactly(chunk.source, self._name, begin, data.reshape(-1).data)
            inner = zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            place = (slice(low - first, high - first), *(slice(o, o + n) for o, n in inner))
            rows[place] = data
        begin = start - first * self._row
        out[:] = rows.reshape(-1).data[begin : begin + len(out)]
