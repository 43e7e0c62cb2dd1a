"""Two images in shared memory, one of them the newest: who writes never disturbs who reads.

Layout, numbers of 64 bits, little-endian:

    0     "mvcSHM1" and a zero byte
    8     capacity of a slot in bytes
    16    number of the newest image, 0 for none; it lies in slot ``number % 2``
    64    slot 0: number, length, BLAKE3 over both and the image;  128  slot 1: the same
    4096  the image in slot 0, then the image in slot 1

An image is written to the slot that the newest one is not in, its number last. Whoever reads
copies first and compares the hash then: what was overwritten meanwhile, or left half written
by a process that died, is seen for what it is.
"""

from __future__ import annotations

import struct

import numpy as np
from blake3 import blake3

from mvc.errors import Busy, DamagedData
from mvc.io.shared import SharedMemory
from mvc.training.image import Image

__all__ = ["is_segment", "read_newest", "room", "segment_size", "start", "write"]

_MAGIC = b"mvcSHM1\0"
_CAPACITY, _NEWEST, _HEADS, _HEAD_STEP, _IMAGES = 8, 16, 64, 64, 4096
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<QQ32s")
_TRIES = 100


def segment_size(image: Image) -> int:
    """Bytes of a segment for images as large as this one, and a little larger."""
    return _IMAGES + 2 * _rounded(image.size + image.size // 64)


def start(memory: SharedMemory) -> None:
    """Makes a segment of fresh memory."""
    memory.view[: len(_MAGIC)] = _MAGIC
    _NUMBER.pack_into(memory.view, _CAPACITY, (memory.size - _IMAGES) // 2)


def is_segment(memory: SharedMemory) -> bool:
    """Whether the memory is a segment whose slots lie inside it."""
    if memory.size < _IMAGES or bytes(memory.view[: len(_MAGIC)]) != _MAGIC:
        return False
    return _IMAGES + 2 * room(memory) <= memory.size


def room(memory: SharedMemory) -> int:
    """Bytes of the largest image that fits."""
    return _number(memory, _CAPACITY)


def write(memory: SharedMemory, image: Image) -> None:
    """Makes ``image`` the newest. One process at a time."""
    number = _number(memory, _NEWEST) + 1
    at = _IMAGES + number % 2 * room(memory)
    hasher = _hasher(number, image.size)
    for part in image.parts:
        memory.view[at : at + len(part)] = part
        hasher.update(part)
        at += len(part)
    head = _HEADS + number % 2 * _HEAD_STEP
    _HEAD.pack_into(memory.view, head, number, image.size, hasher.digest())
    _NUMBER.pack_into(memory.view, _NEWEST, number)


def read_newest(memory: SharedMemory, after: int) -> tuple[int, memoryview] | None:
    """The newest image and its number; None if that is ``after``.

    Raises DamagedData for an image that does not fit its hash though nobody replaced it.
    """
    for _ in range(_TRIES):
        newest = _number(memory, _NEWEST)
        if newest in (0, after):
            return None
        number, length, digest = _HEAD.unpack_from(memory.view, _HEADS + newest % 2 * _HEAD_STEP)
        if number == newest and length <= room(memory):
            at = _IMAGES + newest % 2 * room(memory)
            copy = np.empty(length, np.uint8).data
            copy[:] = memory.view[at : at + length]
            hasher = _hasher(number, length)
            hasher.update(copy)
            if hasher.digest() == digest:
                return newest, copy
        if newest == _number(memory, _NEWEST):
            raise DamagedData(f"what {memory.path} holds does not match its hash")
    raise Busy(f"{memory.path} is written faster than it can be read")


def _hasher(number: int, length: int) -> blake3:
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update(_NUMBER.pack(number) + _NUMBER.pack(length))
    return hasher


def _number(memory: SharedMemory, at: int) -> int:
    return int(_NUMBER.unpack_from(memory.view, at)[0])


def _rounded(size: int) -> int:
    return -(-size // _IMAGES) * _IMAGES
