"""Words at the ends of what a dtype can hold, and how they change from version to version."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mvc.codecs.floats import FORMATS, Format, words_of_values
from mvc.model.tensor import DTYPES

__all__ = ["NAMES", "Words", "first", "later", "near_ends", "zero"]

Words = NDArray[Any]

NAMES = tuple(
    name for name in DTYPES if name != "raw" and not name.startswith("q") and hasattr(torch, name)
)
"""Every dtype that a Python state can hold."""

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def first(dtype: str, count: int, draw: random.Random) -> Words:
    """The words of ``count`` elements: numbers of a common size, or extremes."""
    words = np.zeros(_words(dtype, count), f"<u{DTYPES[dtype].width}")
    return _moved(words, dtype, draw) if draw.random() < 0.3 else later(words, dtype, draw)


def later(words: Words, dtype: str, draw: random.Random) -> Words:
    """What may become of ``words`` in the next version; a new array."""
    if dtype == "bool":
        return np.array([draw.random() < 0.5 for _ in words], words.dtype)
    change: Callable[[Words, str, random.Random], Words] = draw.choice(_CHANGES)
    return change(words.copy(), dtype, draw)


def _words(dtype: str, count: int) -> int:
    return count * DTYPES[dtype].itemsize // DTYPES[dtype].width


def _special(dtype: str, draw: random.Random) -> int:
    """One word: zero, an end of the range, a subnormal, an infinity, a NaN with a payload."""
    kind = FORMATS.get(_PARTS.get(dtype, dtype))
    bits = 8 * DTYPES[dtype].width
    if kind is None:
        return draw.choice((0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1))
    sign = draw.choice((0, 1 << bits - 1))
    return sign | draw.choice(
        (
            0,
            1,
            (1 << kind.fraction) - 1,  # the largest subnormal
            1 << kind.fraction,  # the smallest normal
            kind.exponent - 1,  # the largest
            kind.exponent - 2,
            kind.exponent - (1 << kind.fraction),  # a power of two
            kind.exponent,
            kind.exponent | 1 << kind.fraction - 1,
            kind.exponent | draw.randrange(1, 1 << kind.fraction),
            draw.randrange(kind.exponent),
        )
    )


def _constant(words: Words, dtype: str, draw: random.Random) -> Words:
    words[:] = _special(dtype, draw)
    return words


def _alternating(words: Words, dtype: str, draw: random.Random) -> Words:
    words[::2], words[1::2] = _special(dtype, draw), _special(dtype, draw)
    return words


def _halves(words: Words, dtype: str, draw: random.Random) -> Words:
    words[: len(words) // 2] = _special(dtype, draw)
    words[len(words) // 2 :] = _special(dtype, draw)
    return words


def zero(words: Words, dtype: str, draw: random.Random) -> Words:
    """Where a change to the end of the range overflows nothing."""
    return np.zeros_like(words)


def _ends(words: Words, dtype: str, draw: random.Random) -> Words:
    """Both ends of the range in one tensor, in the order of the version."""
    kind = FORMATS.get(_PARTS.get(dtype, dtype))
    bits = 8 * DTYPES[dtype].width
    low, high = (1 << bits - 1, (1 << bits - 1) - 1) if kind is None else _range(kind)
    words[:] = low if draw.random() < 0.5 else high
    words[:: draw.randrange(1, 5)] = draw.choice((low, high))
    return words


def near_ends(words: Words, dtype: str, draw: random.Random) -> Words:
    """A share of the largest number: sums of such numbers overflow, means are rounded up."""
    kind = FORMATS.get(_PARTS.get(dtype, dtype))
    if kind is None:
        return _ends(words, dtype, draw)
    share = draw.choice((-1, 1)) * draw.choice((1.0, 0.9999, 0.5, 1 / 3, draw.random()))
    values = np.full(len(words), share * kind.largest, "<f8" if kind.width == 8 else "<f4")
    with np.errstate(all="ignore"):
        return words_of_values(values, kind).astype(words.dtype)


def _range(kind: Format) -> tuple[int, int]:
    return 1 << 8 * kind.width - 1 | kind.exponent - 1, kind.exponent - 1


def _mixed(words: Words, dtype: str, draw: random.Random) -> Words:
    chosen = np.array([_special(dtype, draw) for _ in range(draw.randrange(1, 6))], words.dtype)
    picks = np.random.default_rng(draw.getrandbits(32)).integers(0, len(chosen), len(words))
    return chosen[picks]


def _random(words: Words, dtype: str, draw: random.Random) -> Words:
    rng = np.random.default_rng(draw.getrandbits(32))
    return rng.integers(0, 256, words.nbytes, np.uint8).view(words.dtype)


def _few(words: Words, dtype: str, draw: random.Random) -> Words:
    for _ in range(draw.randrange(1, 4)):
        if len(words):
            words[draw.randrange(len(words))] = _special(dtype, draw)
    return words


def _same(words: Words, dtype: str, draw: random.Random) -> Words:
    return words


def _signs(words: Words, dtype: str, draw: random.Random) -> Words:
    """From one end of the range to the other."""
    return words ^ words.dtype.type(1 << 8 * words.itemsize - 1)


def _moved(words: Words, dtype: str, draw: random.Random) -> Words:
    """As a step of training moves weights, by a size of its own."""
    kind = FORMATS.get(_PARTS.get(dtype, dtype))
    rng = np.random.default_rng(draw.getrandbits(32))
    if kind is None:
        return words + rng.integers(0, 3, len(words)).astype(words.dtype)
    scale = 10.0 ** draw.choice((-45, -38, -8, -3, -3, 0, 4, 37, 300))
    with np.errstate(all="ignore"):
        if kind.name == "bfloat16":
            wide = (words.astype("<u4") << 16).view("<f4")
            wide = wide + (rng.standard_normal(len(words)) * scale).astype("<f4")
            return (wide.view("<u4") >> 16).astype(words.dtype)
        values = words.view(f"<f{kind.width}")
        step = (rng.standard_normal(len(words)) * scale).astype(values.dtype)
        return (values + step).view(words.dtype)


_CHANGES = (
    _constant, _alternating, _halves, _ends, near_ends, near_ends, _mixed, _mixed,
    _random, _few, _same, _signs, _moved, _moved, _moved,
)  # fmt: skip
