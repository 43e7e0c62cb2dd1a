"""Buffers that each thread reuses between chunks.

Fresh memory costs a page fault for every 4 KiB, many times the price of the
arithmetic done in it, so the stages work in these. A slot belongs to one
purpose at a time: what it held is gone once the same slot is asked for again.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.words import Words, word_type

__all__ = ["scratch_bytes", "scratch_words"]

_SMALLEST = 1 << 16


class _Slots(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[np.uint8]] = {}


_slots = _Slots()


def scratch_bytes(slot: str, count: int) -> NDArray[np.uint8]:
    """``count`` bytes (uint8, uninitialised) of this thread's buffer ``slot``."""
    buffer = _slots.buffers.get(slot)
    if buffer is None or len(buffer) < count:
        size = max(_SMALLEST, 1 << max(count - 1, 0).bit_length())
        buffer = _slots.buffers[slot] = np.empty(size, np.uint8)
    return buffer[:count]


def scratch_words(slot: str, count: int, width: int) -> Words:
    """``count`` unsigned words of ``width`` bytes of this thread's buffer ``slot``."""
    return scratch_bytes(slot, count * width).view(word_type(width))
