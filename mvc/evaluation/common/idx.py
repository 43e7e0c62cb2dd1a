"""IDX files, the format of MNIST: a magic, the lengths of the dimensions, then bytes.

Layout after Yann LeCun's description: two zero bytes, a type (8: unsigned byte), the number
of dimensions, each length as a big-endian 32-bit number.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mvc.errors import BadModelFile, UnknownPath, WrongUsage
from mvc.io.files import FileSystem
from mvc.limits import MIB

__all__ = ["MAX_FILE", "read_folder", "unpacked"]

MAX_FILE = 1024 * MIB
"""Bytes of one file of data, packed or not."""

_BYTES = 8
_AGAIN = "the files are not whole or not of one set: get them again"


def read_folder(fs: FileSystem, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 ``(n, height, width)`` and labels int64 ``(n,)`` of a folder of IDX files.

    The files are those of MNIST and its kin: ``*images*idx3*`` and ``*labels*idx1*``, packed
    with gzip or not. Where there are files whose names begin with ``train``, only these count.
    """
    names = fs.list(folder)
    images, labels = _pick(names, "images", "idx3"), _pick(names, "labels", "idx1")
    if not images or len(images) != len(labels):
        raise UnknownPath(
            f"{folder} holds {len(images)} IDX files of images and {len(labels)} of labels",
            hint="name them as MNIST does: train-images-idx3-ubyte, train-labels-idx1-ubyte",
        )
    pictures = [_read(fs, folder / name, 3) for name in images]
    numbers = [_read(fs, folder / name, 1) for name in labels]
    for name, one, other in zip(images, pictures, numbers, strict=True):
        if len(one) != len(other):
            raise BadModelFile(
                f"{name} has {len(one)} images, its labels are {len(other)}", hint=_AGAIN
            )
    if len({one.shape[1:] for one in pictures}) > 1:
        raise WrongUsage(f"the images of {folder} are not all of one size")
    return np.concatenate(pictures), np.concatenate(numbers).astype(np.int64)


def unpacked(fs: FileSystem, path: Path) -> bytes:
    """What a file holds, taken out of gzip if it is packed; at most ``MAX_FILE`` bytes."""
    data = fs.read_bytes(path, MAX_FILE)
    if not data.startswith(b"\x1f\x8b"):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, MAX_FILE)
    except zlib.error as error:
        raise BadModelFile(f"{path} is no sound gzip file: {error}") from None
    if unpacker.unconsumed_tail:
        raise BadModelFile(f"{path} unpacks to more than {MAX_FILE} bytes")
    if not unpacker.eof:
        raise BadModelFile(f"{path} is cut off", hint=_AGAIN)
    return content


def _pick(names: list[str], *words: str) -> list[str]:
    fitting = [name for name in names if all(word in name for word in words)]
    return [name for name in fitting if name.startswith("train")] or fitting


def _read(fs: FileSystem, path: Path, dimensions: int) -> NDArray[np.uint8]:
    data = unpacked(fs, path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes((0, 0, _BYTES, dimensions)):
        raise BadModelFile(f"{path} is no IDX file of bytes with {dimensions} dimensions")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    if len(data) - start != math.prod(shape):
        raise BadModelFile(
            f"{path} says {math.prod(shape)} bytes, but has {len(data) - start}", hint=_AGAIN
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
