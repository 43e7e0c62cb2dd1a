"""Words to byte planes and back: byte i of every word, for each i."""

from __future__ import annotations

import numpy as np

from mvc.codecs.scratch import scratch_words
from mvc.codecs.streams import Bytes
from mvc.codecs.words import Words

__all__ = ["join", "split"]


def split(data: Words, slot: str = "half") -> list[Bytes]:
    """One stream per byte of a word, lowest first, in scratch buffers.

    By halves: the narrower the words, the more of them a processor handles at once.
    """
    half = data.itemsize // 2
    if not half:
        return [data.view(np.uint8)]
    spare = scratch_words("shifted", len(data), data.itemsize)
    np.right_shift(data, 8 * half, out=spare)
    low = scratch_words(slot + "0", len(data), half)
    high = scratch_words(slot + "1", len(data), half)
    np.copyto(low, data, casting="unsafe")
    np.copyto(high, spare, casting="unsafe")
    return split(low, slot + "0") + split(high, slot + "1")


def join(planes: list[Bytes | int], out: Words, slot: str = "half") -> None:
    """``out`` = the words whose bytes are ``planes``: arrays, or the value of a constant one."""
    half = len(planes) // 2
    if all(isinstance(plane, int) for plane in planes):
        out.fill(sum(plane << 8 * i for i, plane in enumerate(planes)))
    elif not half:
        out[:] = planes[0]
    else:
        low = _half(planes[:half], len(out), slot + "0")
        high = _half(planes[half:], len(out), slot + "1")
        if isinstance(high, int):
            np.copyto(out, low)
            if high:
                np.bitwise_or(out, out.dtype.type(high << 8 * half), out=out)
        else:
            np.copyto(out, high)
            np.left_shift(out, 8 * half, out=out)
            np.bitwise_or(out, low, out=out)


def _half(planes: list[Bytes | int], count: int, slot: str) -> Words | int:
    """The words of these planes, or their value if all are constant."""
    if len(planes) == 1:
        return planes[0]
    if all(isinstance(plane, int) for plane in planes):
        return sum(int(plane) << 8 * i for i, plane in enumerate(planes))
    out = scratch_words(slot, count, len(planes))
    join(planes, out, slot)
    return out
