"""Calls ``kernels.c``, compiled with sanitizers, with buffers that fit and that do not.

``python -m tests.codecs.sanitized LIBRARY SEED CALLS MUTANTS`` prints counters as JSON. What the
sanitizers see ends the process. Every buffer is an allocation of its own that ends where the
buffer ends, so that a byte behind it is seen; it may begin at any address.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mvc.codecs import words
from tests.codecs.samples import WIDTHS
from tests.oracle.mutated import FORMS, agree
from tests.oracle.test_mutated import mutant

_COUNTS = (
    0, 1, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 1008, 1023, 1024, 1025, 1040, 1041, 2048, 5000,
)  # fmt: skip
_OTHER_WIDTHS = (0, 3, 5, 16, 64, -1, -8, 1 << 30, -(1 << 31), (1 << 31) - 1, 1 << 40)
_SIZES = (0, 1, 4, 8, 512, 4096, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, -1, -(1 << 63))
_REFUSALS = (ValueError, OverflowError, TypeError, BufferError)

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mvc.codecs._kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Drawing:
    """Draws calls; about half of them fit."""

    def __init__(self, kernels: ModuleType, rng: random.Random) -> None:
        self.kernels, self.rng = kernels, rng
        self.bytes = np.random.default_rng(rng.getrandbits(32))

    def call(self) -> Call:
        kinds = (self.move, self.split, self.join, self.tally, self.sort, self.differ)
        return self.rng.choice(kinds)()

    def buffer(self, size: int) -> np.ndarray:
        """Random bytes behind 0 to 15 others; about one in six has another size than it should."""
        if self.rng.random() < 0.16:
            size = max(0, size + self.rng.choice((-size, -16, -8, -1, 1, 2, 16, 4096)))
        before = self.rng.randrange(16)
        return self.bytes.integers(0, 256, before + size, np.uint8)[before:]

    def width(self) -> int:
        return self.rng.choice(WIDTHS if self.rng.random() < 0.9 else _OTHER_WIDTHS)

    def words(self) -> tuple[int, int]:
        """A width, and a number of words for which there is memory."""
        width = self.width()
        return width, self.rng.choice(_COUNTS) if 0 < width <= 64 else 8

    def marks(self, count: int) -> tuple[np.ndarray, int]:
        """A bitmap and how many it marks; one in ten has other bytes than it should."""
        flags = self.bytes.random(count) < self.rng.choice((0, 0.01, 0.2, 0.6, 1))
        packed = np.packbits(flags)
        marks = self.buffer(len(packed))
        if len(marks) == len(packed) and self.rng.random() < 0.9:
            marks[:] = packed
        return marks, int(flags.sum())

    def room(self, width: int, count: int) -> int:
        return count * width if 0 < width <= 64 else 64

    def move(self) -> Call:
        width, count = self.words()
        marks, marked = self.marks(count)
        state, moved = self.buffer(self.room(width, count)), self.buffer(self.room(width, marked))
        operation = self.rng.choice((0, 1, 2, 0, 1, 2, 3, -1, 1 << 40))
        return self.kernels.move, (state, moved, marks, width, operation)

    def split(self) -> Call:
        width, count = self.words()
        marks = self.marks(count)[0] if self.rng.random() < 0.7 else None
        data, planes = self.buffer(self.room(width, count)), self.buffer(self.room(width, count))
        return self.kernels.split, (data, marks, planes, width, self.rng.random() < 0.5)

    def differ(self) -> Call:
        width, count = self.words()
        new, base, delta = (self.buffer(self.room(width, count)) for _ in range(3))
        operation = self.rng.choice((1, 2, 1, 2, 0, 3, -1))
        marks = self.buffer(-(-count // 8))
        return self.kernels.differ, (new, base, delta, marks, width, operation)

    def join(self) -> Call:
        width, count = self.words()
        number = max(0, min(width, 9))
        planes = tuple(
            self.rng.choice((0, 255, 7, 256, -1, 1 << 70, None))
            if self.rng.random() < 0.2
            else self.bytes.integers(0, 256, count, np.uint8)
            if self.rng.random() < 0.95
            else self.buffer(count)
            for _ in range(number)
        )
        return self.kernels.join, (self.buffer(number * count), planes, self.rng.random() < 0.5)

    def sort(self) -> Call:
        count, kinds = self.rng.choice(_COUNTS), self.rng.choice((0, 1, 2, 10, 255, 256, 257))
        keys, at, places = self.buffer(count), self.buffer(8 * count), self.buffer(8 * count)
        if self.rng.random() < 0.7:
            keys %= min(max(1, kinds), 255)
        if self.rng.random() < 0.7 and len(at) % 8 == 0:
            at[:] = self.bytes.integers(0, max(1, len(keys)), len(at) // 8).view(np.uint8)
        return self.kernels.sort, (at, keys, places, self.buffer(8 * kinds))

    def tally(self) -> Call:
        counts = self.buffer(256 * 8)
        step, length = self.rng.choice(_SIZES), self.rng.choice(_SIZES)
        return self.kernels.tally, (self.buffer(self.rng.choice(_COUNTS)), counts, step, length)


def call_all(kernels: ModuleType, rng: random.Random, calls: int) -> Counter[str]:
    drawing, counted = Drawing(kernels, rng), Counter(calls=calls, refused=0, done=0)
    for _ in range(calls):
        function, arguments = drawing.call()
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        before = [array.tobytes() for array in arrays]
        try:
            function(*arguments)
            counted["done"] += 1
        except _REFUSALS:
            counted["refused"] += 1
            assert before == [array.tobytes() for array in arrays], "a refused call wrote"
    return counted


def decode_all(kernels: ModuleType, rng: random.Random, mutants: int) -> Counter[str]:
    """Mutated columns, which numpy and the second reader must read alike."""
    words.kernels = kernels  # type: ignore[assignment]
    counted = Counter(mutants=0, read=0)
    for name in ("columns", "groups"):
        seeds = FORMS[name].seeds()
        for _ in range(mutants):
            at = rng.randrange(len(seeds))
            counted["read"] += agree(FORMS[name], mutant(seeds[at], seeds[at - 1], rng), b"")
            counted["mutants"] += 1
    return counted


def main(path: str, seed: str, calls: int, mutants: int) -> None:
    kernels, rng = load(path), random.Random(seed)
    print(json.dumps(call_all(kernels, rng, calls) + decode_all(kernels, rng, mutants)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
