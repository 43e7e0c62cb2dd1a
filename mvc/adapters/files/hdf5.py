"""HDF5 files, and Keras's zip files with one in them.

A dataset of little-endian numbers that lies in the file in one piece is a tensor; of one in chunks
those are that follow one another in the file. All else stays literal bytes: what is compressed, or
small enough to lie in a header.

h5py says where the datasets lie, in a process of its own (``hdf5_child``), whose answer is checked
as any file is. Nothing but reading a file for a commit needs h5py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from multiprocessing import Pipe
from threading import Timer
from typing import TypeAlias

from msgspec import MsgspecError, Struct, json

from mvc.adapters.files.numpy_files import DESCRIPTIONS
from mvc.adapters.files.zip_layout import KERAS_WEIGHTS, ZipMember, find_checks
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source, StoredSource
from mvc.errors import BadModelFile, NotInstalled, how_to_install
from mvc.io.process import import_path
from mvc.limits import MAX_DIMENSIONS, MIB
from mvc.model.tensor import TensorSpec

SECONDS = 60
"""In which the process reads a file, or is ended."""

_DTYPES = {**DESCRIPTIONS, "bfloat16": "bfloat16"}
_MOST = 32 * MIB
"""Bytes of one message to or from the process."""

# No compression filter is loaded from a folder, and no pool of threads is made.
_VARIABLES = {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1"}


class Read(Struct, tag=True, frozen=True):
    """Asks for bytes of the file; fewer come at its end, or if they are many."""

    offset: int
    length: int


class DatasetPlace(Struct, frozen=True):
    """A dataset that lies in one piece, or chunks of one; ``dtype`` is numpy's name."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class DatasetPlaces(Struct, tag=True, frozen=True):
    """The answer of the process."""

    places: list[DatasetPlace]


Message: TypeAlias = Read | DatasetPlaces


def parse_hdf5(source: Source, name: str) -> FileParts:
    """Tensors under the paths of datasets; the chunks of one in several places end in ``#NUMBER``.

    Raises BadModelFile, NotInstalled.
    """
    size = source.size()
    return FileParts("hdf5", *laid_out(ask(source, name, 0, size), name, 0, size))


def parse_keras(source: Source, name: str, members: tuple[ZipMember, ...]) -> FileParts:
    """As ``parse_hdf5`` of the member ``KERAS_WEIGHTS``, which there must be."""
    weights = next(member for member in members if member.name == KERAS_WEIGHTS)
    if not weights.stored:
        raise BadModelFile(f"{name}: its weights are compressed")
    places = ask(source, name, weights.start, weights.size)
    found = laid_out(places, name, weights.start, weights.size)
    return FileParts("keras", *found, find_checks(source, name, members))


def laid_out(
    places: Iterable[DatasetPlace], name: str, start: int, size: int
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    """What is said of the ``size`` bytes at ``start``, in file order. Raises BadModelFile."""
    rows = list[tuple[int, TensorSpec, str]]()
    for place in places:
        if place.dtype not in _DTYPES or len(place.shape) > MAX_DIMENSIONS:
            continue
        spec = TensorSpec(_DTYPES[place.dtype], place.shape)
        if not 0 <= place.offset <= size - spec.nbytes:
            raise BadModelFile(f"{name}: a dataset lies outside the file")
        rows.append((start + place.offset if spec.nbytes else 0, spec, place.key))
    if not rows:
        raise BadModelFile(f"{name}: none of its datasets is plain numbers, without compression")
    rows.sort(key=lambda row: (row[0], row[1].nbytes))
    contents = tuple(ParsedContent(offset, spec) for offset, spec, _ in rows)
    return contents, tuple(ParsedTensor(key, spec, i) for i, (_, spec, key) in enumerate(rows))


def ask(source: Source, name: str, start: int, size: int) -> list[DatasetPlace]:
    """What h5py says of the ``size`` bytes at ``start``. Raises BadModelFile, NotInstalled.

    Of a stored file it is not asked again: a version may have many, made to last.
    """
    if find_spec("h5py") is None:
        raise NotInstalled("h5py is not installed, which reads it", hint=how_to_install("hdf5"))
    if isinstance(source, StoredSource):
        raise BadModelFile(f"{name}: h5py saw no plain numbers in it, without compression")
    here, there = Pipe()
    command = [sys.executable, "-P", "-m", "mvc.adapters.files.hdf5_child"]
    try:
        with here:
            with there:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    [*command, str(there.fileno()), str(size)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": import_path(), **_VARIABLES},
                    pass_fds=[there.fileno()],
                )
            timer = Timer(SECONDS, process.kill)
            timer.start()
            try:
                while True:
                    message: Message = json.decode(here.recv_bytes(_MOST), type=Message)
                    if isinstance(message, DatasetPlaces):
                        return message.places
                    at = min(max(message.offset, 0), size)
                    length = min(max(message.length, 0), size - at, _MOST)
                    here.send_bytes(source.read(start + at, length))
            finally:
                timer.cancel()
                process.kill()
                process.wait()
    except (EOFError, OSError, MsgspecError) as error:
        raise BadModelFile(f"{name}: h5py cannot read it, or not in {SECONDS} s") from error
