"""Finds the positions of the datasets in an HDF5 file, in a separate process.

libhdf5 is C code, and files may come from untrusted sources. So the module ``hdf5`` starts this
process (``python -m mvc.adapters.files.hdf5_child PIPE SIZE``). The process has little memory and
time, and cannot open files. It reads the HDF5 file and sends the positions through a pipe.
"""

from __future__ import annotations

import codecs
import io
import os
import resource
import sys
from contextlib import suppress
from functools import partial
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import h5py
from msgspec import json
from msgspec.structs import replace

from mvc.adapters.files.hdf5 import SECONDS, DatasetPlace, DatasetPlaces, Read

_MEMORY = 2 << 30
_LIMITS = {"RLIMIT_AS": _MEMORY, "RLIMIT_CPU": SECONDS, "RLIMIT_NOFILE": 0, "RLIMIT_CORE": 0}
_SMALL = 1024  # bytes; fewer adjacent bytes do not become a tensor
_IN_FILE = frozenset({h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED})


class _RemoteFile(io.RawIOBase):
    """A file of ``size`` bytes. The other process reads its bytes and sends them."""

    def __init__(self, pipe: Connection[Any, Any], size: int) -> None:
        self._pipe, self._size, self._at = pipe, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._pipe.send_bytes(json.encode(Read(self._at, len(buffer))))
        data = self._pipe.recv_bytes(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def main(pipe: Connection[Any, Any], size: int) -> None:
    """Reads the structure of the file and sends its ``DatasetPlaces``."""
    codecs.lookup("ascii")  # h5py needs it later, when no file can be opened
    for name, most in _LIMITS.items():
        with suppress(ValueError, OSError):  # some limits do not exist on macOS
            resource.setrlimit(getattr(resource, name), (most, most))
    places = list[DatasetPlace]()
    with h5py.File(_RemoteFile(pipe, size), "r") as file:
        file.visititems(partial(_add, places))
    pipe.send_bytes(json.encode(DatasetPlaces(places)))


def _add(places: list[DatasetPlace], key: str, data: Any) -> None:
    """Adds the positions of a dataset if its bytes are in this file, not changed by a filter."""
    if not isinstance(data, h5py.Dataset):
        return
    settings = data.id.get_create_plist()
    outside = settings.get_layout() not in _IN_FILE or settings.get_external_count()
    if outside or settings.get_nfilters() or data.shape is None:
        return
    with suppress(TypeError):  # numpy does not have a dtype for the numbers
        dtype = data.dtype.str
        if dtype == "|V2" and data.attrs.get("dtype") == "bfloat16":  # written by Keras
            dtype = "bfloat16"
        if data.chunks is None:
            if data.id.get_storage_size() == data.nbytes:  # False if nothing was written yet
                places.append(DatasetPlace(key, dtype, data.shape, data.id.get_offset() or 0))
            return
        runs = list[DatasetPlace]()
        one = DatasetPlace(key, dtype, (1, *data.chunks), 0)
        data.id.chunk_iter(partial(_add_chunk, runs, one))
        for run in runs:
            rows = (run.shape[0] * run.shape[1], *run.shape[2:])
            if rows == data.shape:
                places.append(DatasetPlace(key, dtype, rows, run.offset))
            elif prod(run.shape) * data.dtype.itemsize >= _SMALL:
                places.append(run)


def _add_chunk(runs: list[DatasetPlace], one: DatasetPlace, chunk: Any) -> None:
    """Adds a chunk to ``runs``. A run is several adjacent chunks. ``one``: a run of one chunk.

    If the chunk begins where the last run ends, extends the run. Otherwise starts a new run.
    """
    last = runs[-1] if runs else DatasetPlace("", "", (0,), -1)
    if last.offset + last.shape[0] * chunk.size == chunk.byte_offset:
        runs[-1] = replace(last, shape=(last.shape[0] + 1, *one.shape[1:]))
    else:
        runs.append(replace(one, key=f"{one.key}#{len(runs)}", offset=chunk.byte_offset))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
