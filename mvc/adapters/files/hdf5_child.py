"""Sends ``hdf5`` the places of datasets: ``python -m mvc.adapters.files.hdf5_child PIPE SIZE``.

libhdf5 is C code, and the file a stranger's: it is read in this process alone, which has little
memory and time and can open no file. What it reads comes through the pipe.
"""

from __future__ import annotations

import codecs
import io
import os
import resource
import sys
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import h5py
from msgspec import json

from mvc.adapters.files.hdf5 import SECONDS, Place, Places, Read

_MEMORY = 2 << 30
_LIMITS = {"RLIMIT_AS": _MEMORY, "RLIMIT_CPU": SECONDS, "RLIMIT_NOFILE": 0, "RLIMIT_CORE": 0}
_IN_FILE = frozenset({h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED})


class _File(io.RawIOBase):
    """A file of ``size`` bytes, which the other end of the pipe reads."""

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
    """Reads the structure of the file and sends its ``Places``."""
    codecs.lookup("ascii")  # h5py asks for it later, and Python would open a file then
    for name, most in _LIMITS.items():
        with suppress(ValueError, OSError):  # macOS has not all
            resource.setrlimit(getattr(resource, name), (most, most))
    found = list[Place]()
    with h5py.File(_File(pipe, size), "r") as file:
        file.visititems(partial(_add, found))
    pipe.send_bytes(json.encode(Places(found)))


def _add(found: list[Place], key: str, data: Any) -> None:
    """Adds the places of a dataset whose bytes lie in this file as they are."""
    if not isinstance(data, h5py.Dataset):
        return
    settings = data.id.get_create_plist()
    outside = settings.get_layout() not in _IN_FILE or settings.get_external_count()
    if outside or settings.get_nfilters() or data.shape is None:
        return
    with suppress(TypeError):  # numpy has no such numbers
        dtype = data.dtype.str
        if dtype == "|V2" and data.attrs.get("dtype") == "bfloat16":  # as Keras writes it
            dtype = "bfloat16"
        if data.chunks is not None:
            data.id.chunk_iter(partial(_add_chunk, found, key, dtype, data))
        elif data.id.get_storage_size() == data.nbytes:  # none before the first write
            found.append(Place(key, dtype, data.shape, data.id.get_offset() or 0))


def _add_chunk(found: list[Place], key: str, dtype: str, data: Any, chunk: Any) -> None:
    """A chunk at the edge of its dataset has its full size in the file, too."""
    begin = "" if data.shape == data.chunks else f"#{','.join(map(str, chunk.chunk_offset))}"
    found.append(Place(key + begin, dtype, data.chunks, chunk.byte_offset))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
