"""What reading a version costs without any of mvc's machinery: a yardstick for recovery.

The deltas of the thesis's lossless pipeline, in memory, decoded one after the other in plain
numpy: zstd, four byte planes back to words, XOR.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from mvc.errors import DamagedData

__all__ = ["PlainChain"]

Words = NDArray[np.uint32]


class PlainChain:
    """A first version and the deltas to those after it, as ``xor | planes | zstd:1`` codes them."""

    def __init__(self, states: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        """``states`` are float32 tensors by name, in order."""
        packer = zstandard.ZstdCompressor(level=1)
        last: Words | None = None
        self._coded: list[bytes] = []
        for state in states:
            words = np.concatenate([a.reshape(-1).view(np.uint32) for a in state.values()])
            delta = words if last is None else words ^ last
            planes = delta.view(np.uint8).reshape(-1, 4).T
            self._coded.append(packer.compress(np.ascontiguousarray(planes).tobytes()))
            last = words
        assert last is not None
        self._newest = last

    @property
    def deltas(self) -> int:
        """How many deltas lie between the first version and the newest."""
        return len(self._coded) - 1

    def seconds(self) -> float:
        """How long it takes to get the newest from the first; DamagedData if its bits differ."""
        begun = time.perf_counter()
        unpacker = zstandard.ZstdDecompressor()
        words = np.zeros(len(self._newest), np.uint32)
        for coded in self._coded:
            planes = np.frombuffer(unpacker.decompress(coded), np.uint8).reshape(4, -1)
            words ^= np.ascontiguousarray(planes.T).view(np.uint32).reshape(-1)
        seconds = time.perf_counter() - begun
        if not np.array_equal(words, self._newest):
            raise DamagedData("the plain chain does not give back what went in")
        return seconds
