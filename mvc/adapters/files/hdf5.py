"""Finds the tensors in HDF5 files, and in Keras's zip files that contain an HDF5 file.

A *dataset* is an array in an HDF5 file. A dataset with contiguous little-endian numbers becomes a
tensor. If a dataset is stored in chunks, each series of adjacent chunks becomes a tensor. Datasets
that are compressed, or so small that they are stored in a header, do not become tensors.

The library h5py finds the positions of the datasets. It runs in a separate process
(``hdf5_child``). Without h5py, a new file is stored without tensors. A checkout needs no h5py.
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
"""Maximum seconds that the process may take for one file."""

_DTYPES = {**DESCRIPTIONS, "bfloat16": "bfloat16"}
_MOST = 32 * MIB
"""Maximum bytes of one message to or from the process."""

# The child process must not load plugins for compression, and must not start a thread pool.
_VARIABLES = {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1"}


class Read(Struct, tag=True, frozen=True):
    """A request of the child process for bytes of the file.

    The answer may have fewer bytes, at the end of the file or if the request is too large.
    """

    offset: int
    length: int


class DatasetPlace(Struct, frozen=True):
    """The position of a tensor: a contiguous dataset, or a series of adjacent chunks.

    ``dtype``: numpy's name of the dtype.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class DatasetPlaces(Struct, tag=True, frozen=True):
    """The last message of the child process: the positions of all tensors."""

    places: list[DatasetPlace]


Message: TypeAlias = Read | DatasetPlaces


def parse_hdf5(source: Source, name: str) -> FileParts:
    """The tensors of a file. The name of a tensor is the path of its dataset in the file.

    The name of a series of chunks ends in ``#NUMBER``, unless the series is a whole dataset. Raises
    BadModelFile, NotInstalled.
    """
    size = source.size()
    return FileParts("hdf5", *laid_out(query_h5py(source, name, 0, size), name, 0, size))


def parse_keras(source: Source, name: str, members: tuple[ZipMember, ...]) -> FileParts:
    """As ``parse_hdf5``, for a zip file that contains the HDF5 file ``KERAS_WEIGHTS``."""
    weights = next(member for member in members if member.name == KERAS_WEIGHTS)
    if not weights.stored:
        raise BadModelFile(f"{name}: its weights are compressed")
    places = query_h5py(source, name, weights.start, weights.size)
    parts = laid_out(places, name, weights.start, weights.size)
    return FileParts("keras", *parts, find_checks(source, name, members))


def laid_out(
    places: Iterable[DatasetPlace], name: str, start: int, size: int
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    """Checks the positions ``places``, and converts them to contents and tensors, in file order.

    The HDF5 file is the ``size`` bytes at ``start``. Raises BadModelFile.
    """
    rows = list[tuple[int, TensorSpec, str]]()
    for place in places:
        if place.dtype not in _DTYPES or len(place.shape) > MAX_DIMENSIONS:
            continue
        spec = TensorSpec(_DTYPES[place.dtype], place.shape)
        if not 0 <= place.offset <= size - spec.nbytes:
            raise BadModelFile(f"{name}: a dataset is outside the file")
        rows.append((start + place.offset if spec.nbytes else 0, spec, place.key))
    if not rows:
        raise BadModelFile(f"{name}: it has no uncompressed dataset of plain numbers")
    rows.sort(key=lambda row: (row[0], row[1].nbytes))
    contents = tuple(ParsedContent(offset, spec) for offset, spec, _ in rows)
    return contents, tuple(ParsedTensor(key, spec, i) for i, (_, spec, key) in enumerate(rows))


def query_h5py(source: Source, name: str, start: int, size: int) -> list[DatasetPlace]:
    """The tensors that h5py finds in the HDF5 file in the ``size`` bytes at ``start``.

    Raises NotInstalled and BadModelFile. Always raises BadModelFile for a file of a stored version
    (``StoredSource``), because an attacker's version could have many files that keep h5py busy.
    """
    if find_spec("h5py") is None:
        raise NotInstalled("reading an HDF5 file needs h5py", hint=how_to_install("hdf5"))
    if isinstance(source, StoredSource):
        raise BadModelFile(f"{name}: it has no uncompressed dataset of plain numbers")
    parent, child = Pipe()
    command = [sys.executable, "-P", "-m", "mvc.adapters.files.hdf5_child"]
    try:
        with parent:
            with child:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    [*command, str(child.fileno()), str(size)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": import_path(), **_VARIABLES},
                    pass_fds=[child.fileno()],
                )
            timer = Timer(SECONDS, process.kill)
            timer.start()
            try:
                while True:
                    message: Message = json.decode(parent.recv_bytes(_MOST), type=Message)
                    if isinstance(message, DatasetPlaces):
                        return message.places
                    at = min(max(message.offset, 0), size)
                    length = min(max(message.length, 0), size - at, _MOST)
                    parent.send_bytes(source.read(start + at, length))
            finally:
                timer.cancel()
                process.kill()
                process.wait()
    except (EOFError, OSError, MsgspecError) as error:
        raise BadModelFile(f"{name}: h5py could not read it within {SECONDS} s") from error
